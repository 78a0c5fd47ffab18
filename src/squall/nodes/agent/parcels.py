"""What lies in a mailbox: letters, each with parcels of several connections.

A connection is named by the number that its dialler gave it, negative in letters of the
side that was dialled; so both sides of a pair may dial, and a process itself. `sequence`
counts what the sender put into the connection, from 0 for OPEN or ACCEPT on; a RESET has
no place in it, and a CREDIT carries there how many bytes were read in all.

Letters carry nothing secret of their own: the content is sealed by the wire. Whoever can
write into the store can end a connection, and nothing more.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

VERSION = 1


class Kind(IntEnum):
    OPEN = 0
    ACCEPT = 1
    REFUSE = 2
    DATA = 3
    CLOSE = 4
    RESET = 5
    CREDIT = 6


class Parcel(msgspec.Struct, frozen=True, array_like=True):
    connection: int
    sequence: int
    kind: Kind
    data: bytes = b""


class Letter(msgspec.Struct, frozen=True, array_like=True):
    version: int
    sender: str
    parcels: list[Parcel]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Letter).decode


def encode_letter(sender: str, parcels: list[Parcel]) -> bytes:
    return _encode(Letter(VERSION, sender, parcels))


def decode_letter(content: bytes) -> Letter | None:
    """None for what is no letter of this version: it is somebody else's, or damaged."""
    try:
        letter = _decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return letter if letter.version == VERSION else None
