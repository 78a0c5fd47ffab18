from __future__ import annotations

import subprocess
import sys

import pytest

from squall.runtime.invariants import InvariantViolation, invariant


def test_a_broken_invariant_raises_with_its_text() -> None:
    invariant(1 == 1, "fine")
    with pytest.raises(InvariantViolation, match="commit went back"):
        invariant(False, "commit went back")


def test_invariants_stay_on_when_asserts_are_off() -> None:
    code = "from squall.runtime.invariants import invariant\nassert False\ninvariant(0, 'broke')"
    ended = subprocess.run(
        [sys.executable, "-O", "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert "InvariantViolation: broke" in ended.stderr
