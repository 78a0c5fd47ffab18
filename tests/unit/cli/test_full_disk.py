"""Output that goes nowhere: a full disk, closed streams. One clear line, no traceback."""

import subprocess
import sys
from pathlib import Path

import pytest

FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="a device of Linux")
def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "shop.py"
    command = [sys.executable, "-m", "squall"]
    subprocess.run([*command, "new", str(file)], check=True, capture_output=True)
    with FULL.open("w") as full:
        ended = subprocess.run(
            [*command, "explain", str(file)], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert ended.returncode == 1
    assert ended.stderr == "squall explain: cannot write: no space left\n"


@pytest.mark.parametrize(
    ("closed", "is_shown"),
    [("<&-", True), (">&-", False), ("2>&-", True), ("<&- >&- 2>&-", False)],
)
def test_streams_that_the_caller_closed_change_nothing(
    closed: str, is_shown: bool, tmp_path: Path
) -> None:
    file = tmp_path / "shop.py"
    command = [sys.executable, "-m", "squall"]
    subprocess.run([*command, "new", str(file)], check=True, capture_output=True)
    # The core process that reads the file inherits the streams.
    ended = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *command, "explain", str(file)],
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert bool(ended.stdout) == is_shown
