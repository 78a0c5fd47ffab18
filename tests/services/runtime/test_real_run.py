"""The frame of a node's process, with real signals."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from squall.api.errors import ExitCode
from squall.runtime.real.node_process import REPEAT_S

HEAD = """
import asyncio, os, sys, time
from squall.runtime.real import node_process
from squall.runtime.real.node_process import Frame, run

def say(*words):
    print(*words, flush=True)

def node(main, **options):
    sys.exit(run(main, Frame(
        "node",
        on_failure=lambda failure: say("failed", failure.name, failure.error),
        on_unfinished=lambda left: say("unfinished", *(task.name for task in left)),
        **{"shutdown_s": 5.0, **options},
    )))
"""
WAITS = """
async def main(runtime, tasks, stop):
    say("ready")
    await stop.wait()
"""


class Node:
    def __init__(self, code: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HEAD + code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ready(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def end(self, *signals: int) -> tuple[int, list[str], str]:
        """Exit code, what was said since the last `ready`, and the standard error."""
        for number in signals:
            self.process.send_signal(number)
        killer = threading.Timer(30, self.process.kill)
        killer.start()
        try:
            # Not `communicate`, which would miss what `readline` has buffered.
            with self.process as process:
                assert process.stdout is not None
                assert process.stderr is not None
                out, error = process.stdout.read(), process.stderr.read()
        finally:
            killer.cancel()
            killer.join()
        return process.returncode, out.splitlines(), error


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_node_in_order(number: int) -> None:
    code = """
async def background():
    try:
        await asyncio.sleep(600)
    finally:
        say("task ended")

async def main(runtime, tasks, stop):
    tasks.start("background", background())
    await asyncio.sleep(0)
    say("ready")
    await stop.wait()
    await asyncio.sleep(0.05)
    say("handed over")

node(main)
"""
    node = Node(code)
    node.ready()
    assert node.end(number) == (0, ["handed over", "task ended"], "")


def test_the_result_of_main_is_the_exit_code() -> None:
    code = "async def main(runtime, tasks, stop):\n    return 98\nnode(main)"
    assert Node(code).end() == (98, [], "")


def test_what_main_raises_is_raised_and_everything_else_still_ends() -> None:
    code = """
async def main(runtime, tasks, stop):
    tasks.start("background", asyncio.sleep(600))
    raise ValueError("no quorum")

try:
    node(main)
except ValueError as error:
    say("raised", error)
"""
    assert Node(code).end() == (0, ["raised no quorum"], "")


def test_the_failure_of_an_essential_task_ends_the_node() -> None:
    code = """
async def replica():
    raise ValueError("the log is broken")

async def main(runtime, tasks, stop):
    tasks.start("replica", replica(), essential=True)
    await stop.wait()
    say("handed over")

node(main)
"""
    status, said, _ = Node(code).end()
    assert status == ExitCode.INTERNAL
    assert said == ["failed replica the log is broken", "handed over"]


def test_what_does_not_stop_is_named_and_does_not_hold_the_process() -> None:
    code = """
async def deaf():
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            pass

async def main(runtime, tasks, stop):
    tasks.start("deaf", deaf())
    tasks.start("polite", asyncio.sleep(600))
    await asyncio.sleep(0)
    say("ready")
    await deaf()

# A process that stands still must not end before it can name them.
node_process.LAST_GRACE_S = 60.0
node(main, shutdown_s=2.0)
"""
    node = Node(code)
    node.ready()
    status, said, error = node.end(signal.SIGTERM)
    assert (status, said, error) == (ExitCode.INTERNAL, ["unfinished deaf main"], "")


def test_a_loop_that_stands_still_does_not_outlive_the_deadline() -> None:
    code = """
async def main(runtime, tasks, stop):
    say("ready")
    await stop.wait()
    time.sleep(600)

node(main, shutdown_s=0.3)
"""
    node = Node(code)
    node.ready()
    assert node.end(signal.SIGTERM)[0] == ExitCode.INTERNAL


def test_a_second_signal_ends_the_process_at_once() -> None:
    code = """
async def main(runtime, tasks, stop):
    say("ready")
    await stop.wait()
    say("ready")
    await asyncio.sleep(600)

node(main, shutdown_s=600.0)
"""
    node = Node(code)
    node.ready()
    node.process.send_signal(signal.SIGTERM)
    node.ready()
    # Longer than it needs: its loop has clock ticks of its own.
    time.sleep(2.0 * REPEAT_S)
    assert node.end(signal.SIGTERM)[0] == ExitCode.INTERRUPTED


def test_one_request_to_stop_may_arrive_as_two_signals() -> None:
    """A supervisor and the launcher both pass it on."""
    code = """
async def main(runtime, tasks, stop):
    say("ready")
    await stop.wait()
    say("ready")
    await asyncio.sleep(0.3)
    say("in order")

# However late the second one comes on a busy machine.
node_process.REPEAT_S = 60.0
node(main)
"""
    node = Node(code)
    node.ready()
    node.process.send_signal(signal.SIGTERM)
    node.ready()
    status, said, _ = node.end(signal.SIGTERM, signal.SIGINT)
    assert (status, said) == (0, ["in order"])


def test_sockets_files_and_children_of_a_node_end_with_it(tmp_path: Path) -> None:
    code = f"""
class Quiet:
    def on_open(self, connection): pass
    def on_data(self, data): pass
    def on_closed(self, error): say("closed")

async def main(runtime, tasks, stop):
    listener = await runtime.network.listen(("127.0.0.1", 0), Quiet)
    await runtime.network.dial(listener.address, Quiet(), timeout_s=5.0)
    await (await runtime.disk.open("wal")).append(b"x")
    runtime.disk.lock()
    child = await runtime.processes.spawn([sys.executable, "-c", "import time; time.sleep(600)"])
    say("ready")
    say(child.pid)
    await stop.wait()

from pathlib import Path
node(main, data_dir=Path({str(tmp_path)!r}))
"""
    node = Node(code)
    node.ready()
    status, said, error = node.end(signal.SIGTERM)
    assert (status, error) == (0, "")
    pid, *closed = said
    assert closed == ["closed", "closed"]
    assert not Path(f"/proc/{pid}").exists()


def test_the_frame_leaves_the_signals_of_its_caller_alone() -> None:
    code = (
        WAITS
        + """
import signal
try:
    node(main, shutdown_s=1.0)
except SystemExit as ended:
    say(ended.code, signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
"""
    )
    node = Node(code)
    node.ready()
    assert node.end(signal.SIGTERM)[1] == ["0 True"]
