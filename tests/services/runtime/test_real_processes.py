"""Child processes: codes, signals, groups, and a parent that is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from squall.runtime.real.processes import RealProcesses

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def processes() -> AsyncIterator[RealProcesses]:
    made = RealProcesses()
    yield made
    await made.close()
    assert made.open_count == 0


def python(code: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", code, *map(str, arguments)]


def runs(pid: int) -> bool:
    """Whether it exists and is not a corpse that waits for its parent."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


async def gone(*pids: int) -> None:
    async with asyncio.timeout(20.0):
        while any(runs(pid) for pid in pids):
            await asyncio.sleep(0.01)


async def read_pids(file: Path, count: int) -> list[int]:
    async with asyncio.timeout(20.0):
        while True:
            found = file.read_text(encoding="utf-8").split() if file.exists() else []
            if len(found) >= count:
                return [int(pid) for pid in found]
            await asyncio.sleep(0.01)


SLEEPER = "import os, time; open(os.environ['F'], 'a').write(f'{os.getpid()} '); time.sleep(600)"
FAMILY = (
    "import os, subprocess, sys, time\n"
    "code = \"import os, time; open(os.environ['F'], 'a').write(f'{os.getpid()} ');"
    ' time.sleep(600)"\n'
    "subprocess.Popen([sys.executable, '-c', code])\n"
    "open(os.environ['F'], 'a').write(f'{os.getpid()} ')\n"
    # What it leaves behind has spoken before it ends.
    "while len(open(os.environ['F']).read().split()) < 2:\n"
    "    time.sleep(0.01)\n"
    "time.sleep(float(sys.argv[1]))\n"
)


async def test_an_exit_code_is_told_and_a_signal_is_negative(processes: RealProcesses) -> None:
    ended = await processes.spawn(python("raise SystemExit(7)"))
    assert await ended.wait() == 7
    assert await ended.wait() == 7
    ended.send_signal(signal.SIGTERM)
    ended.kill()
    waits = await processes.spawn(python("import time; time.sleep(600)"))
    waits.send_signal(signal.SIGTERM)
    assert await waits.wait() == -signal.SIGTERM


async def test_a_cancelled_wait_does_not_lose_the_end(processes: RealProcesses) -> None:
    child = await processes.spawn(python("import time; time.sleep(600)"))
    waiting = asyncio.ensure_future(child.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    child.kill()
    assert await child.wait() == -signal.SIGKILL


async def test_a_command_that_does_not_exist_is_refused(processes: RealProcesses) -> None:
    with pytest.raises(FileNotFoundError):
        await processes.spawn(["/no/such/command"])
    assert processes.open_count == 0


async def test_a_child_gets_its_descriptors_environment_niceness_and_group(
    processes: RealProcesses,
) -> None:
    reading, writing = os.pipe()
    hidden, hidden_end = os.pipe()
    os.set_inheritable(hidden, False)
    code = (
        "import os, sys\n"
        "open_here = os.path.exists(f'/proc/self/fd/{sys.argv[2]}')\n"
        "text = f\"{os.environ.get('A')} {os.environ.get('HOME')} {os.nice(0)} \"\n"
        "text += f'{os.getpgid(0) == os.getpid()} {open_here}'\n"
        "os.write(int(sys.argv[1]), text.encode())\n"
    )
    child = await processes.spawn(
        python(code, writing, hidden), environment={"A": "b"}, inherit=[writing], niceness=5
    )
    assert await child.wait() == 0
    words = os.read(reading, 1000).decode().split()
    assert words == ["b", "None", str(min(os.nice(0) + 5, 19)), "True", "False"]
    for descriptor in (reading, writing, hidden, hidden_end):
        os.close(descriptor)


async def test_a_kill_takes_everything_that_the_child_started(
    processes: RealProcesses, tmp_path: Path
) -> None:
    file = tmp_path / "pids"
    environment = {**os.environ, "F": str(file)}
    child = await processes.spawn(python(FAMILY, 600), environment=environment)
    pids = await read_pids(file, 2)
    child.kill()
    assert await child.wait() == -signal.SIGKILL
    await gone(*pids)


async def test_what_a_child_leaves_behind_is_killed_when_it_ends(
    processes: RealProcesses, tmp_path: Path
) -> None:
    file = tmp_path / "pids"
    environment = {**os.environ, "F": str(file)}
    child = await processes.spawn(python(FAMILY, 0.0), environment=environment)
    pids = await read_pids(file, 2)
    assert await child.wait() == 0
    await gone(*pids)


async def test_closing_kills_and_reaps_what_still_runs(tmp_path: Path) -> None:
    processes = RealProcesses()
    children = [await processes.spawn(python("import time; time.sleep(600)")) for _ in range(3)]
    assert processes.open_count == 3
    await processes.close()
    for child in children:
        assert not Path(f"/proc/{child.pid}").exists()
        assert await child.wait() == -signal.SIGKILL


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a mechanism of Linux")
async def test_children_die_when_their_parent_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    code = (
        "import asyncio, os, sys\n"
        "from squall.runtime.real.processes import RealProcesses\n"
        "async def main():\n"
        "    processes = RealProcesses()\n"
        f"    await processes.spawn([sys.executable, '-c', {SLEEPER!r}])\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    environment = {**os.environ, "F": str(file)}
    with subprocess.Popen(python(code), env=environment) as parent:
        [pid] = await read_pids(file, 1)
        assert runs(pid)
        parent.kill()
    await gone(pid)
