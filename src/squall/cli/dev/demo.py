"""`squall demo`: the built-in target in a process of its own, loaded for ten seconds.

The target never outlives the demo: it ends when its standard input closes, and that
happens however this process ends.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from squall.api.errors import SquallError
from squall.cli.run.command import perform, print_summary
from squall.cli.shared.presenters import mode_of, presenter_of
from squall.cli.shared.run_options import seconds
from squall.engine.run_options import ProfileFlags, RunOptions
from squall.reporting.redaction import Redactor
from squall.reporting.text.progress_lines import ProgressLines

WORKFLOW = Path(__file__).with_name("demo_workflow.py")
_ANNOUNCED = "listening on "


def execute(arguments: Namespace) -> int:
    duration_s = seconds(arguments.duration, "--duration")
    with running_target() as url:
        options = RunOptions(
            file=str(WORKFLOW),
            host=url,
            profiles={"": ProfileFlags(duration=duration_s)},
            command=tuple(arguments.words),
        )
        redact = Redactor()
        lines = ProgressLines(redact, no_color=arguments.no_color, shown_path=WORKFLOW.name)
        mode = mode_of(None, quiet=False, once=False)
        outcome = perform(options, presenter_of(mode, lines))
    print_summary(outcome, None, redact, no_color=arguments.no_color)
    print(f"\nnow your own: {_typed_command()} new shop.py", file=sys.stderr)
    return int(outcome.exit_code)


def _typed_command() -> str:
    """`squall` where a shell finds it; otherwise the way to this one."""
    own = Path(sys.executable).with_name("squall")
    found = shutil.which("squall")
    if not own.exists() or (found is not None and Path(found).resolve() == own.resolve()):
        return "squall"
    here = Path.cwd()
    return str(own.relative_to(here)) if own.is_relative_to(here) else str(own)


@contextmanager
def running_target() -> Generator[str]:
    """The address of a target that runs until the block is left."""
    process = subprocess.Popen(
        # -P: modules in the working directory must not hide those of Squall and Python.
        [sys.executable, "-P", "-m", "squall", "target", "--port", "0", "--exit-with-stdin"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # Ctrl-C goes to the whole terminal group; the target must outlive the load.
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        first = process.stdout.readline().strip()
        if not first.startswith(_ANNOUNCED):
            raise SquallError("the target of the demo did not start; try: squall target --port 0")
        yield first.removeprefix(_ANNOUNCED)
    finally:
        process.stdin.close()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
