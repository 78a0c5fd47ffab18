"""Failures have short, stable names."""

from __future__ import annotations

import errno
import ssl

import pytest

from squall.clients.http.failure_reasons import connect_reason, reason_of, timeout_reason


def of_openssl(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}]")
    error.reason = reason
    return error


def untrusted(why: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "x")
    error.verify_message = why
    return error


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
        (of_openssl("WRONG_VERSION_NUMBER"), "TLS: the port does not speak TLS; write http://"),
        (of_openssl("HTTP_REQUEST"), "TLS: the port does not speak TLS; write http://"),
        (of_openssl("UNSUPPORTED_PROTOCOL"), "TLS: unsupported protocol"),
        (
            untrusted("self-signed certificate"),
            "TLS: certificate verify failed: self-signed certificate; "
            "use --cacert FILE or --insecure",
        ),
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


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (errno.ECONNREFUSED, "connection refused: shop.test:8080"),
        (errno.EHOSTUNREACH, "no route to host: shop.test:8080"),
        (errno.EMFILE, "too many open files"),
        (errno.EADDRNOTAVAIL, "no local ports left"),
    ],
)
def test_a_failure_to_connect_names_the_peer_where_it_is_the_peers(code: int, reason: str) -> None:
    assert connect_reason(OSError(code, "x"), "shop.test:8080") == reason
