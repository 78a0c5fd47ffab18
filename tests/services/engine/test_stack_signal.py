"""A process that is busy in C sends its stack to its parent."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from pathlib import Path

from squall.engine.process.lease import LeaseMemory
from squall.engine.process.stack_signal import SIGNAL, authors_place


def test_a_process_that_keeps_the_interpreters_lock_shows_its_stack(tmp_path: Path) -> None:
    memory = LeaseMemory()
    memory.write(0, 7.0, 8.0)
    script = tmp_path / "busy.py"
    script.write_text(
        textwrap.dedent("""
        import re, sys
        from squall.engine.process.stack_signal import answer_with_stack

        def never_ends():
            print("begins", flush=True)
            re.match(r"(a+)+$", "a" * 60 + "b")

        answer_with_stack(int(sys.argv[1]))
        never_ends()
        """)
    )
    descriptor = memory.descriptor
    command = [sys.executable, str(script), str(descriptor)]
    with subprocess.Popen(command, pass_fds=[descriptor], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"begins\n"
            until = time.monotonic() + 30.0
            while authors_place(memory.stack, str(tmp_path)) != "busy.py:7 in never_ends":
                assert process.poll() is None and time.monotonic() < until, memory.stack
                memory.await_stack()
                process.send_signal(SIGNAL)
                time.sleep(0.05)
            assert process.poll() is None, "it goes on"
            assert memory.deadlines(0) == (7.0, 8.0)
        finally:
            process.kill()
    memory.close()
