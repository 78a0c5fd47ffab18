"""Facts about a run that its report shows: id, machine, time, versions, commit."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from squall.engine.outcome import RunInfo
from squall.engine.process.system_limits import available_cores
from squall.engine.run_options import RunOptions

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def run_info(options: RunOptions) -> RunInfo:
    return RunInfo(
        id=_run_id(),
        squall=squall_version(),
        python=platform.python_version(),
        command=options.command,
        git=git_commit(options.file),
        seed=options.seed,
        tags=dict(options.tags),
        cores=available_cores(),
        os=f"{platform.system()} {platform.release()}",
        memory_mb=_memory_mb(),
        started_at=datetime.now(UTC),
        warmup_s=options.warmup_s,
    )


def squall_version() -> str:
    try:
        return version("squall")
    except PackageNotFoundError:
        return "0+unknown"


def _run_id() -> str:
    """The last eight base-32 digits of the milliseconds since 1970: short, sortable by time,
    unlikely to repeat on one machine."""
    number = time.time_ns() // 1_000_000
    digits: list[str] = []
    for _ in range(8):
        number, digit = divmod(number, 32)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))


def git_commit(file: str) -> str:
    folder = Path(file).resolve().parent if file else Path.cwd()
    try:
        found = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            timeout=2,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""


def _memory_mb() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (1024 * 1024)
    except (ValueError, OSError):
        return 0
