"""Short, stable reasons for failed exchanges.

A reason is the key under which failures are counted, so it contains nothing that differs between
two failures of the same kind: the host and port that were asked for, but never a local port.
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


# Failures to connect that are the peer's: the others (no ports, too many files) are ours.
_OF_PEER = (
    "connection refused",
    "connection reset",
    "connection timed out",
    "no route to host",
    "network unreachable",
)
NOT_HTTP = "not an HTTP response"
SPEAKS_TLS = "the port speaks TLS; write https://"
# How OpenSSL says that what it read is no TLS.
_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "UNEXPECTED_MESSAGE")
# Alerts about the client's certificate (RFC 8446, 6.2). With TLS 1.3 they come after the handshake.
_WANTED = "TLS: the server wants a client certificate; use --cert FILE"
_REFUSED = "TLS: the server refuses the client certificate of --cert"
_BY_ALERT = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": _WANTED,
    # TLS 1.2 has no alert of its own for a missing certificate.
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "TLS: the server refused the handshake; if it wants a client "
    "certificate, use --cert FILE, else it accepts no version or cipher of this machine",
    "SSLV3_ALERT_NO_CERTIFICATE": _WANTED,
    "SSLV3_ALERT_BAD_CERTIFICATE": f"{_REFUSED}: bad certificate",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": f"{_REFUSED}: unsupported certificate",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": f"{_REFUSED}: it was revoked",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": f"{_REFUSED}: it has expired",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": f"{_REFUSED}: certificate unknown",
    "TLSV1_ALERT_UNKNOWN_CA": f"{_REFUSED}: unknown authority",
    "TLSV1_ALERT_ACCESS_DENIED": f"{_REFUSED}: access denied",
}
# The first bytes of a TLS alert, with which a server answers a request in clear.
_TLS_ALERT = b"\x15\x03"


def connect_reason(error: BaseException, where: str) -> str:
    """The reason of a connection that could not be made; `where` is the host and port."""
    reason = reason_of(error)
    return f"{reason}: {where}" if reason in _OF_PEER else reason


def no_http_reason(received: bytes) -> str:
    """The reason of bytes that are no HTTP response."""
    return SPEAKS_TLS if received.startswith(_TLS_ALERT) else NOT_HTTP


def reason_of(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        what = f"TLS: certificate verify failed: {error.verify_message}"
        return f"{what}; use --cacert FILE or --insecure"
    if isinstance(error, ssl.SSLError):
        # An error that did not come out of OpenSSL has no reason.
        reason: str = getattr(error, "reason", None) or "handshake failed"
        if reason in _NO_TLS:
            return "TLS: the port does not speak TLS; write http://"
        if reason in _BY_ALERT:
            return _BY_ALERT[reason]
        return f"TLS: {reason.replace('_', ' ').lower()}"
    if isinstance(error, OSError) and error.errno in _BY_ERRNO:
        return _BY_ERRNO[error.errno]
    if isinstance(error, ConnectionResetError | BrokenPipeError | ConnectionAbortedError):
        return "connection reset"
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()


def timeout_reason(timeout_s: float) -> str:
    return f"timeout after {timeout_s:g} s"
