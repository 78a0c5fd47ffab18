"""Failures have short, stable names."""

from __future__ import annotations

import errno
import ssl

import pytest

from squall.clients.http.failure_reasons import reason_of, timeout_reason


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "x"), "connection refused"),
        (ConnectionResetError(), "connection reset"),
        (ConnectionResetError(errno.ECONNRESET, "x"), "connection reset"),
        (BrokenPipeError(errno.EPIPE, "x"), "connection reset"),
        (OSError(errno.EADDRNOTAVAIL, "x"), "no local ports left"),
        (OSError(errno.EMFILE, "x"), "too many open files"),
        (OSError(errno.ENFILE, "x"), "too many open files"),
        (OSError(errno.EHOSTUNREACH, "x"), "no route to host"),
        (TimeoutError(errno.ETIMEDOUT, "x"), "connection timed out"),
        (OSError(errno.EIO, "Input/output error"), "input/output error"),
        (ssl.SSLError(1, "[SSL] x"), "TLS: handshake failed"),
        (ValueError(), "ValueError"),
    ],
)
def test_reasons(error: Exception, reason: str) -> None:
    assert reason_of(error).lower() == reason.lower()


def test_limits_are_written_as_people_write_them() -> None:
    assert [timeout_reason(s) for s in (5.0, 0.25, 60)] == [
        "timeout after 5 s",
        "timeout after 0.25 s",
        "timeout after 60 s",
    ]
