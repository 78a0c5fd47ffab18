"""Short, stable reasons for failed exchanges.

A reason is the key under which failures are counted, so it never contains a port, an address
or anything else that differs between two failures of the same kind.
"""

from __future__ import annotations

import errno
import ssl

_BY_ERRNO = {
    errno.ECONNREFUSED: "connection refused",
    errno.ECONNRESET: "connection reset",
    errno.EPIPE: "connection reset",
    errno.ECONNABORTED: "connection reset",
    errno.ETIMEDOUT: "connection timed out",
    errno.EHOSTUNREACH: "no route to host",
    errno.ENETUNREACH: "network unreachable",
    errno.EADDRNOTAVAIL: "no local ports left",
    errno.EMFILE: "too many open files",
    errno.ENFILE: "too many open files",
    errno.EACCES: "connecting is not permitted",
    errno.EPERM: "connecting is not permitted",
}


def reason_of(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: certificate verify failed: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        # An error that did not come out of OpenSSL has no reason.
        reason: str = getattr(error, "reason", None) or "handshake failed"
        return f"TLS: {reason.replace('_', ' ').lower()}"
    if isinstance(error, OSError) and error.errno in _BY_ERRNO:
        return _BY_ERRNO[error.errno]
    if isinstance(error, ConnectionResetError | BrokenPipeError | ConnectionAbortedError):
        return "connection reset"
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()


def timeout_reason(timeout_s: float) -> str:
    return f"timeout after {timeout_s:g} s"
