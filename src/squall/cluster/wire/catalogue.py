"""The message catalogue: the number, class, size and senders of every message type.

Messages are frozen `msgspec` structs of plain data, encoded as MessagePack maps: unknown
fields are ignored, missing optional fields take their defaults, a missing required field is
an error that names it. A number is never reused; registering it twice fails at import.
Decoding never executes anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Any, NamedTuple, TypeVar

import msgspec

from squall.cluster.wire.errors import DecodeError, MessageTooLarge, UnknownType
from squall.cluster.wire.header import MessageClass
from squall.cluster.wire.roles import Role

TYPE_NUMBER_MAX = 0xFFFF
# A body of this size does not hold up the messages behind it on the control link.
LIGHT_MAX_BYTES = 16 * 1024


class SizeClass(Enum):
    """The largest encoded body of a type, which decides which link carries it."""

    DATAGRAM = 1_024
    """Fits a sealed datagram of 1,200 bytes; may travel on the control link too."""
    CONTROL = 256 * 1024
    BULK = 4 * 1024 * 1024


class MessageType(NamedTuple):
    """A row of the catalogue, with the decoder that the hot path calls."""

    number: int
    struct: type[msgspec.Struct]
    message_class: MessageClass
    size: SizeClass
    senders: frozenset[Role]
    decode: Callable[[bytes], Any]
    body_max: int
    """The bytes of the size class."""
    light: bool = False
    """Requests of this BULK type take the control link while they are small; its answers are
    always small."""

    @property
    def name(self) -> str:
        return self.struct.__name__


S = TypeVar("S", bound=type[msgspec.Struct])


class Catalogue:
    def __init__(self) -> None:
        self.by_number: dict[int, MessageType] = {}
        self.by_struct: dict[type, MessageType] = {}
        self._encode = msgspec.msgpack.Encoder().encode

    def __iter__(self) -> Iterator[MessageType]:
        return iter(sorted(self.by_number.values(), key=lambda row: row.number))

    def message(
        self,
        number: int,
        message_class: MessageClass,
        *,
        size: SizeClass = SizeClass.CONTROL,
        senders: Iterable[Role] = (Role.NODE,),
        light: bool = False,
    ) -> Callable[[S], S]:
        """Registers the decorated struct. Only `senders` may send it unasked; answers are free.
        An answer takes the link of its request: the request of a BULK answer is BULK, too."""

        def register(struct: S) -> S:
            self._register(number, struct, message_class, size, frozenset(senders), light)
            return struct

        return register

    def encode(self, message: msgspec.Struct) -> tuple[MessageType, bytes]:
        row = self.by_struct.get(type(message))
        if row is None:
            raise UnknownType(f"{type(message).__name__} is not in the message catalogue")
        body = self._encode(message)
        if len(body) > row.body_max:
            raise MessageTooLarge(
                f"{row.name} has {len(body)} bytes, its size class {row.size.name} allows "
                f"{row.body_max}: send it as a blob or in parts"
            )
        return row, body

    def decode(self, row: MessageType, body: bytes) -> Any:
        try:
            return row.decode(body)
        except msgspec.ValidationError as error:
            raise DecodeError(f"{row.name}: {_without_values(str(error))}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise DecodeError(f"{row.name}: not MessagePack") from None

    def _register(
        self,
        number: int,
        struct: type[msgspec.Struct],
        message_class: MessageClass,
        size: SizeClass,
        senders: frozenset[Role],
        light: bool,
    ) -> None:
        if not 0 < number <= TYPE_NUMBER_MAX:
            raise ValueError(f"{struct.__name__}: type number {number} is not in 1..65535")
        taken = self.by_number.get(number)
        if taken is not None:
            raise ValueError(
                f"type number {number} of {struct.__name__} belongs to {taken.name} already"
            )
        if struct in self.by_struct:
            raise ValueError(f"{struct.__name__} has a type number already")
        if not struct.__struct_config__.frozen:
            raise ValueError(f"{struct.__name__} must be frozen: what was sent stays as sent")
        decode = msgspec.msgpack.Decoder(struct).decode
        row = MessageType(number, struct, message_class, size, senders, decode, size.value, light)
        self.by_number[number] = row
        self.by_struct[struct] = row


CATALOGUE = Catalogue()
"""The catalogue of every node; a module registers its messages when it is imported."""

message = CATALOGUE.message


def _without_values(text: str) -> str:
    """A validator may quote a value; the peer gets names and types only."""
    return re.sub(r"value '(?:[^'\\]|\\.)*'", "value", text)
