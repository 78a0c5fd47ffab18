"""A terminal that accepts no output, such as a suspended connection, does not delay the end of a
run.
"""

from __future__ import annotations

import os
import pty
import sys
import threading
from types import SimpleNamespace

import pytest

from squall.cli.shared import live_screen as screen


def test_what_a_stuck_terminal_does_not_take_is_thrown_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outside, terminal = pty.openpty()
    monkeypatch.setattr(sys, "__stderr__", SimpleNamespace(fileno=lambda: terminal))
    monkeypatch.setattr(screen, "CLOSE_WAIT_S", 0.05)
    writer = threading.Thread(target=os.write, args=(terminal, b"x" * 200_000), daemon=True)
    writer.start()
    writer.join(0.2)
    assert writer.is_alive(), "there is no reader, so the writer is stuck"
    with screen._discard_stuck_output():  # pyright: ignore[reportPrivateUsage]
        writer.join(30.0)
    assert not writer.is_alive()
    os.close(outside)
    os.close(terminal)
