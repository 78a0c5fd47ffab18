"""One message in a mailbox: an envelope with stream parts of several connections.

A connection is named by the number that its dialler gave it; the dialled side uses the negative
number. So both sides of a pair may dial, and a process may dial itself. `sequence` counts what
the sender put into the connection, from 0 for OPEN or ACCEPT on. A RESET has no sequence number;
a CREDIT carries there the total number of bytes read.

Envelopes hold no secrets of their own: the wire seals the content. A process that can write into
the store can end a connection, and nothing more.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

VERSION = 1


class PartKind(IntEnum):
    """The kind of a stream part."""

    OPEN = 0
    ACCEPT = 1
    REFUSE = 2
    DATA = 3
    CLOSE = 4
    RESET = 5
    CREDIT = 6


class StreamPart(msgspec.Struct, frozen=True, array_like=True):
    """One numbered part of one connection's byte stream."""

    connection: int
    sequence: int
    kind: PartKind
    data: bytes = b""


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """One message in a mailbox: stream parts from one sender."""

    version: int
    sender: str
    parts: list[StreamPart]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Envelope).decode


def encode_envelope(sender: str, parts: list[StreamPart]) -> bytes:
    return _encode(Envelope(VERSION, sender, parts))


def decode_envelope(content: bytes) -> Envelope | None:
    """None if the content is damaged or of another version."""
    try:
        envelope_id = _decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return envelope_id if envelope_id.version == VERSION else None
