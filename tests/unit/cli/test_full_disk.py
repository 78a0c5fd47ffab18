"""Output to a full disk: one clear line, no traceback."""

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
