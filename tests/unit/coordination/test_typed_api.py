"""The public functions have real signatures, for type checkers and for `help()`, and one name for
one idea.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import squall.coordination as library
from squall.coordination.signals.member_signals import Signals
from tests.lab.programs import ROOT

TYPED = """
from collections.abc import Callable
from typing import assert_type

from squall.coordination import Coordinator, Delivery, Queue, RunRecord, Scheduler, Signal


async def handle(delivery: Delivery) -> None: ...


async def main(member: Coordinator) -> None:
    assert_type(await member.send_signal("b", "job", payload=1), Signal)
    assert_type(await member.block_until_signal(from_="b", timeout_s=3.0), Signal)
    assert_type(await member.wait_all(["a"], from_=["b"], timeout_s=2.0), dict[str, Signal])
    assert_type((await member.send_signal_with_retry("b", "job", timeout_s=60.0)).receiver_id, str)
    assert_type(member.on_signal("job", handle), Callable[[], None])
    assert_type(await member.ensure_coordinator(timeout_s=9.0), str)
    assert_type((await Queue().result("t", timeout_s=9.0)).finished_by, str)
    await member.send_signal(5, "job")
    await member.block_until_signal(timeout=3.0)
    member.on_signal("job", 5)


scheduler = Scheduler()


@scheduler.every(1.0, misfire="never")
async def tick(run: RunRecord) -> None: ...
"""
WRONG = {
    'await member.send_signal(5, "job")',
    "await member.block_until_signal(timeout=3.0)",
    'member.on_signal("job", 5)',
    '@scheduler.every(1.0, misfire="never")',
}
CLASSES = [
    getattr(library, name) for name in library.__all__ if isinstance(getattr(library, name), type)
]


def test_mypy_knows_the_signatures(tmp_path: Path) -> None:
    mypy = Path(sys.executable).with_name("mypy")
    if not mypy.exists():
        pytest.skip("mypy is not installed")
    (tmp_path / "typed.py").write_text(TYPED)
    command = [str(mypy), "--strict", "--no-error-summary", str(tmp_path / "typed.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    lines = [line.split(":")[1] for line in done.stdout.splitlines() if ": error: " in line]
    found = {TYPED.splitlines()[int(line) - 1].strip() for line in lines}
    assert found == WRONG, done.stdout + done.stderr


def methods(kind: type) -> list[tuple[str, Any]]:
    return [
        (f"{kind.__name__}.{name}", each)
        for name, each in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and each.__module__.startswith("squall.")
    ]


@pytest.mark.parametrize("kind", [*CLASSES, Signals], ids=lambda kind: kind.__name__)
def test_every_argument_has_a_type_and_one_name_per_idea(kind: type) -> None:
    for name, method in methods(kind):
        signature = inspect.signature(method)
        assert signature.return_annotation is not inspect.Signature.empty, name
        for each in list(signature.parameters.values())[1:]:
            assert each.annotation is not inspect.Parameter.empty, f"{name}({each.name})"
            assert each.name not in ("timeout", "within", "timeout_ms"), f"{name}({each.name})"


def test_help_shows_what_a_call_takes() -> None:
    shown = inspect.signature(library.Coordinator.block_until_signal)
    assert list(shown.parameters)[:3] == ["self", "correlation_id", "types"]
    for name in ("send_signal", "send_signal_with_retry", "block_until_signal", "on_signal"):
        assert inspect.getdoc(getattr(library.Coordinator, name)), name
