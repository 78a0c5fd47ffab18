"""The clear, authenticated header of every frame.

    offset  size
       0     4   length of what follows (frames.py)
       4     1   version of this layout; another one is not a frame
       5     1   class: CONTROL, DISPATCH, DATA, TELEMETRY
       6     1   kind: request, response, ...
       7     1   reserved, 0
       8     2   message type
      10     2   reserved, 0
      12     4   correlation: joins an answer, a cancellation or a pong to what it belongs to
      16     4   budget in milliseconds that the caller still has; 0 says none
      20     4   nonce, first part: 0 on streams, the lane on datagrams
      24     8   nonce, second part: sequence
      32         sealed body, ending in 16 bytes of tag

It is clear so that a receiver can shed a frame by class and type without decrypting it. It is
the associated data of the seal, so a changed byte breaks the tag; until the tag is checked,
the header may only be used to drop a frame.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct

LAYOUT_VERSION = 1
PREFIX_SIZE = 4
HEADER_SIZE = 28
TAG_SIZE = 16
OVERHEAD = HEADER_SIZE + TAG_SIZE
NONCE_AT = HEADER_SIZE - 12

BUDGET_MAX_MS = 0xFFFF_FFFF
CORRELATION_MAX = 0xFFFF_FFFF

_FRAME = Struct(">IBBBxHxxIIxxxxQ")
_HEADER = Struct(">BBBxHxxIIxxxxQ")

pack_frame_header = _FRAME.pack
"""(length, version, class, kind, type, correlation, budget_ms, sequence) -> 32 bytes."""
unpack_header = _HEADER.unpack_from
"""A frame without its prefix -> (version, class, kind, type, correlation, budget_ms, sequence)."""


class MessageClass(IntEnum):
    """The priority of a message under load; lower is more important."""

    CONTROL = 0
    """Membership, replication, sessions, cancellation: never shed."""
    DISPATCH = 1
    DATA = 2
    TELEMETRY = 3
    """Shed first; a newer message replaces an older one."""


CLASSES = tuple(MessageClass)


class Kind(IntEnum):
    ONE_WAY = 0
    REQUEST = 1
    RESPONSE = 2
    ERROR = 3
    PING = 4
    PONG = 5
    CANCEL = 6
    HELLO = 7
    WELCOME = 8
    REFUSAL = 9
    CONFIRM = 10
    BUSY = 11
    """Clear and not authenticated: the listener has no room for a handshake."""


assert _HEADER.size == HEADER_SIZE
assert _FRAME.size == PREFIX_SIZE + HEADER_SIZE
