"""The message catalogue: numbers, sizes, and tolerant decoding."""

from __future__ import annotations

import msgspec
import pytest

from squall.cluster.wire.catalogue import CATALOGUE, Catalogue, SizeClass
from squall.cluster.wire.errors import DecodeError, MessageTooLarge, UnknownType
from squall.cluster.wire.header import MessageClass
from squall.cluster.wire.messages import ErrorAnswer
from squall.cluster.wire.roles import Role


class Apple(msgspec.Struct, frozen=True):
    weight: int
    colour: str = "green"


class Pear(msgspec.Struct, frozen=True):
    weight: int


def catalogue() -> Catalogue:
    made = Catalogue()
    made.message(7, MessageClass.DATA, size=SizeClass.DATAGRAM)(Apple)
    return made


def test_a_message_survives_the_round_trip() -> None:
    row, body = catalogue().encode(Apple(3, "red"))
    assert (row.number, row.message_class) == (7, MessageClass.DATA)
    assert catalogue().decode(row, body) == Apple(3, "red")


def test_a_number_is_given_only_once() -> None:
    with pytest.raises(ValueError, match="7 of Pear belongs to Apple already"):
        catalogue().message(7, MessageClass.DATA)(Pear)


def test_a_struct_has_only_one_number() -> None:
    with pytest.raises(ValueError, match="Apple has a type number already"):
        catalogue().message(8, MessageClass.DATA)(Apple)


@pytest.mark.parametrize("number", [0, -1, 65_536])
def test_a_number_must_fit_the_header(number: int) -> None:
    with pytest.raises(ValueError, match=r"not in 1\.\.65535"):
        catalogue().message(number, MessageClass.DATA)(Pear)


def test_a_message_that_could_change_after_sending_is_not_registered() -> None:
    class Plum(msgspec.Struct):
        weight: int

    with pytest.raises(ValueError, match="must be frozen"):
        catalogue().message(8, MessageClass.DATA)(Plum)


def test_unknown_fields_are_ignored_and_missing_optional_ones_take_their_defaults() -> None:
    made = catalogue()
    body = msgspec.msgpack.encode({"weight": 3, "worm": "yes"})
    assert made.decode(made.by_number[7], body) == Apple(3, "green")


def test_a_missing_required_field_is_named() -> None:
    made = catalogue()
    with pytest.raises(DecodeError, match=r"Apple: .*missing required field `weight`"):
        made.decode(made.by_number[7], msgspec.msgpack.encode({"colour": "red"}))


def test_a_field_of_the_wrong_type_is_named_without_its_value() -> None:
    made = catalogue()
    body = msgspec.msgpack.encode({"weight": "a secret value"})
    with pytest.raises(DecodeError, match=r"\$\.weight") as caught:
        made.decode(made.by_number[7], body)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x81", b"\xff" * 20, b"\x93" * 2000])
def test_bytes_that_are_not_messagepack_are_a_decode_error(body: bytes) -> None:
    made = catalogue()
    with pytest.raises(DecodeError, match="Apple"):
        made.decode(made.by_number[7], body)


def test_a_message_beyond_its_size_class_is_refused_to_its_sender() -> None:
    with pytest.raises(MessageTooLarge, match="DATAGRAM allows 1024"):
        catalogue().encode(Apple(1, "x" * 1024))


def test_a_struct_outside_of_the_catalogue_cannot_be_sent() -> None:
    with pytest.raises(UnknownType, match="Pear is not in the message catalogue"):
        catalogue().encode(Pear(1))


def test_the_wires_own_messages_leave_the_numbers_from_100_on_to_others() -> None:
    own = [row for row in CATALOGUE if row.struct.__module__ == "squall.cluster.wire.messages"]
    assert own
    assert all(row.number < 100 for row in own)
    assert CATALOGUE.by_struct[ErrorAnswer].senders == set(Role)
