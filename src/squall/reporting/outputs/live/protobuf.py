"""Writes the protobuf wire format: the few field types that metrics need.

Live outputs send three kinds of messages with fixed fields, so a library with generated classes is
not worth its cost. Tests decode the bytes with such classes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

_DOUBLE = struct.Struct("<d")
_FIXED64 = struct.Struct("<Q")


def varint(value: int) -> bytes:
    """An unsigned number."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def zigzag(value: int) -> int:
    """The unsigned form of `sint32` and `sint64`."""
    return value * 2 if value >= 0 else -value * 2 - 1


def unsigned(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def signed(field: int, value: int) -> bytes:
    """`sint32`, `sint64`."""
    return unsigned(field, zigzag(value))


def double(field: int, value: float) -> bytes:
    return varint(field << 3 | 1) + _DOUBLE.pack(value)


def fixed64(field: int, value: int) -> bytes:
    return varint(field << 3 | 1) + _FIXED64.pack(value)


def message(field: int, content: bytes) -> bytes:
    """A message, or bytes."""
    return varint(field << 3 | 2) + varint(len(content)) + content


def text(field: int, value: str) -> bytes:
    # A name may hold half of a surrogate pair, from a path that is not UTF-8.
    return message(field, value.encode(errors="replace"))


def packed(field: int, values: Iterable[int]) -> bytes:
    """Repeated unsigned numbers; `zigzag` them for signed ones."""
    return message(field, b"".join(map(varint, values)))
