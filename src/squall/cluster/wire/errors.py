"""The errors of conversations between nodes.

    WireError
    ├── FrameTooLarge         a peer announced more bytes than its connection may carry
    ├── BadFrame              bytes that no Squall node sends
    ├── SealBroken            a frame that was not sealed with the expected key
    ├── NotAdmitted           too many frames of senders that have proved nothing
    ├── MessageTooLarge       a message of ours exceeds the size class of its type
    ├── UnknownType           a type number, or a class, that the catalogue does not have
    ├── DecodeError           a body that does not fit its type; names the field
    ├── HandshakeFailed       no session: wrong secret, or a typed refusal
    ├── NotSent               the request never left, so it was not executed
    ├── OutcomeUnknown        the request left; it may have been executed
    ├── RemoteError           the peer answered with a typed error
    └── BlobError             a blob could not be fetched
        └── BlobRefused       its content, size or chunks are not what was announced

A request fails with `NotSent`, `OutcomeUnknown` or `RemoteError`, and with nothing else.
"""

from __future__ import annotations

from squall.api.errors import ExitCode, SquallError

WRONG_SECRET = "wrong secret or not a Squall node"
CERTIFICATE_REJECTED = "or it does not accept our certificate: its log says so"
SPEAKS_TLS = "it speaks TLS and this side does not: set certificate, key and ca under [tls]"
BUSY = "too many connections wait for a session there; trying again"
NO_HANDSHAKE = "is connected and says nothing: it hangs, or is not a Squall node"


class WireError(SquallError):
    """Root of this package's errors."""


class FrameTooLarge(WireError):
    pass


class BadFrame(WireError):
    pass


class SealBroken(WireError):
    pass


class NotAdmitted(WireError):
    pass


class MessageTooLarge(WireError):
    pass


class UnknownType(WireError):
    pass


class DecodeError(WireError):
    """The text is safe to send to the peer: it names the type and the field, no value."""


class HandshakeFailed(WireError):
    """`code` is a `RefusalCode`, or "" if the peer gave no reason."""

    exit_code = ExitCode.UNREACHABLE

    def __init__(self, text: str, *, code: str = "") -> None:
        super().__init__(text)
        self.code = code


class NotSent(WireError):
    """Safe to send again. `retry_after_s` is a hint; 0.0 means none."""

    exit_code = ExitCode.UNREACHABLE

    def __init__(self, reason: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after_s = retry_after_s


class OutcomeUnknown(WireError):
    """Only a request that the receiver deduplicates may be sent again."""

    exit_code = ExitCode.UNREACHABLE

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class RemoteError(WireError):
    """The peer answered with an error. `code` is an `ErrorCode`, or unknown from a newer peer."""

    def __init__(
        self,
        code: str,
        text: str = "",
        *,
        retry_after_s: float = 0.0,
        primary: str = "",
        leader_within_s: float = 0.0,
    ) -> None:
        super().__init__(f"{code}: {text}" if text else code)
        self.code = code
        self.text = text
        self.retry_after_s = retry_after_s
        self.primary = primary
        self.leader_within_s = leader_within_s


class BlobError(WireError):
    pass


class BlobRefused(BlobError):
    pass
