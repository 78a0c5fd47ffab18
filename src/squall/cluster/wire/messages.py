"""The messages of the wire itself: type numbers 1 to 99. Other packages begin at 100."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from squall.cluster.wire.catalogue import SizeClass, message
from squall.cluster.wire.header import MessageClass
from squall.cluster.wire.roles import Role

EVERY_ROLE = (Role.NODE, Role.WORKER, Role.CLIENT)


class RefusalCode(StrEnum):
    """Why a listener refuses a session to an authenticated peer."""

    VERSION = "version"
    SETTINGS = "settings"
    ROLE = "role"
    NODE = "node"
    BUSY = "busy"
    """It has no room for another handshake; says nothing about the secret."""


class ErrorCode(StrEnum):
    """The code of an error answer; a newer peer may send others."""

    OVERLOADED = "overloaded"
    NOT_PRIMARY = "not_primary"
    GATED = "gated"
    """The request belongs to the gates, another group: `primary` has their addresses, joined by
    commas."""
    UNKNOWN_TYPE = "unknown_type"
    BAD_MESSAGE = "bad_message"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    RETRY_LATER = "retry_later"
    CANCELLED = "cancelled"
    INTERNAL = "internal"


@message(1, MessageClass.CONTROL, senders=EVERY_ROLE)
class Hello(msgspec.Struct, frozen=True, omit_defaults=True):
    """The sealed part of a dialler's first frame; a listener's `Welcome` has the same."""

    node: str
    link: int
    protocol_min: int
    protocol_max: int
    features: tuple[str, ...] = ()
    group: str = ""
    epoch: int = 0
    digest: bytes = b""
    version: str = ""
    timers: bytes = b""


@message(2, MessageClass.CONTROL, senders=EVERY_ROLE)
class Welcome(msgspec.Struct, frozen=True, omit_defaults=True):
    node: str
    role: int
    protocol_min: int
    protocol_max: int
    features: tuple[str, ...] = ()
    group: str = ""
    epoch: int = 0
    digest: bytes = b""
    version: str = ""
    timers: bytes = b""


@message(3, MessageClass.CONTROL, senders=EVERY_ROLE)
class Refusal(msgspec.Struct, frozen=True, omit_defaults=True):
    """`epoch` is that of the refusing member's group."""

    code: str
    text: str = ""
    epoch: int = 0


@message(4, MessageClass.CONTROL, senders=EVERY_ROLE)
class ErrorAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """`text` is for people and holds no internals. `primary` names the node to ask instead. A group
    that may have lost its leader elects one in `leader_within_s`."""

    code: str
    text: str = ""
    retry_after_s: float = 0.0
    primary: str = ""
    leader_within_s: float = 0.0


@message(11, MessageClass.DATA, size=SizeClass.BULK, senders=EVERY_ROLE)
class BlobFetch(msgspec.Struct, frozen=True):
    """Answered by a `BlobChunk`, or by `not_found`. On the bulk link, as its answer."""

    blob: str
    offset: int
    length: int
    own: bool = False
    """Answer only if the receiver itself holds the blob. Members of a group ask each other this
    way: a member that lacks the blob would otherwise ask back."""


@message(12, MessageClass.DATA, size=SizeClass.BULK, senders=EVERY_ROLE)
class BlobChunk(msgspec.Struct, frozen=True):
    """`length` bytes from `offset` on, fewer only at the end of the blob."""

    blob: str
    offset: int
    size: int
    data: bytes
