"""Why an HTTP/3 connection or stream ended, as the short and stable reason of a failure."""

from __future__ import annotations

from qh3.h3.connection import ErrorCode
from qh3.quic.events import ConnectionTerminated

NOT_HTTP3 = "the server does not speak HTTP/3; use self.client.http"

# RFC 9000, 20.1: a TLS alert is 0x100 and its number.
_CRYPTO_ERRORS = range(0x100, 0x200)
_NO_APPLICATION_PROTOCOL = 120
_CERTIFICATE_ALERTS = frozenset({42, 43, 44, 45, 46, 48})
_ALERTS = {
    40: "handshake failure",
    70: "protocol version",
    71: "insufficient security",
    80: "internal error",
    112: "unrecognized name",
    116: "certificate required",
}
_TRANSPORT_ERRORS = {
    0x1: "INTERNAL_ERROR",
    0x2: "CONNECTION_REFUSED",
    0x3: "FLOW_CONTROL_ERROR",
    0x4: "STREAM_LIMIT_ERROR",
    0x5: "STREAM_STATE_ERROR",
    0x6: "FINAL_SIZE_ERROR",
    0x7: "FRAME_ENCODING_ERROR",
    0x8: "TRANSPORT_PARAMETER_ERROR",
    0xA: "PROTOCOL_VIOLATION",
    0xB: "INVALID_TOKEN",
    0xC: "APPLICATION_ERROR",
    0xD: "CRYPTO_BUFFER_EXCEEDED",
    0xE: "KEY_UPDATE_ERROR",
    0xF: "AEAD_LIMIT_REACHED",
}


def error_name(code: int) -> str:
    """The name of an HTTP/3 error code (RFC 9114, 8.1)."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code:#x}"


def closed_reason(closed: ConnectionTerminated, *, ours: bool) -> str:
    """Why a connection ended; empty if the peer closed it without an error. `ours` says that we
    ended it because the peer broke HTTP/3."""
    code, text = closed.error_code, closed.reason_phrase.lower()
    if ours:
        return f"HTTP/3 {error_name(code)}: {text}".removesuffix(": ")
    if "idle timeout" in text:
        return "connection timed out"
    if closed.frame_type is None:
        if code in (0, ErrorCode.H3_NO_ERROR):
            return ""
        return f"connection ended by the server: {error_name(code)}"
    if code in _CRYPTO_ERRORS:
        return _alert_reason(code - _CRYPTO_ERRORS.start, text)
    return f"QUIC {_TRANSPORT_ERRORS.get(code, f'error {code:#x}')}" if code else ""


def _alert_reason(alert: int, text: str) -> str:
    if alert == _NO_APPLICATION_PROTOCOL or "alpn" in text:
        return NOT_HTTP3
    if alert in _CERTIFICATE_ALERTS and text:
        return f"TLS: certificate verify failed: {text}; use --cacert FILE or --insecure"
    return f"TLS: {text or _ALERTS.get(alert, f'alert {alert}')}"
