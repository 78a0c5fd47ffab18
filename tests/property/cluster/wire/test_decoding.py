"""Frames, headers and handshakes under any bytes: nothing but the typed outcome."""

from __future__ import annotations

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from squall.cluster.wire.catalogue import CATALOGUE
from squall.cluster.wire.datagram import DatagramSeal
from squall.cluster.wire.errors import BadFrame, DecodeError, SealBroken, UnknownType
from squall.cluster.wire.header import PREFIX_SIZE, MessageClass
from squall.cluster.wire.limits import WireLimits
from squall.cluster.wire.links.frames import BufferBudget, FrameDecoder, with_prefix
from squall.cluster.wire.links.handshake import DiallerHandshake, ListenerHandshake
from squall.cluster.wire.links.outbox import Outbox, PutResult, QueuedMessage
from squall.cluster.wire.messages import ErrorAnswer
from squall.cluster.wire.negotiation import LinkKind, Profile
from squall.cluster.wire.roles import Role
from squall.cluster.wire.seal.keyring import Keyring
from squall.cluster.wire.seal.replay import ReplayWindow
from squall.cluster.wire.seal.secrets import Secrets
from squall.runtime.interfaces import BootId, NodeId

SECRETS = Secrets.of_node("a secret of the tests")


def keyring(name: str) -> Keyring:
    return Keyring(
        SECRETS,
        cluster="c",
        node=NodeId(name),
        boot=BootId(name),
        entropy=random.Random(name).randbytes,
    )


def cut(data: bytes, at: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(n % (len(data) + 1) for n in at)})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(st.lists(st.binary(max_size=200)), st.lists(st.integers(min_value=0)))
def test_any_cut_of_the_stream_gives_the_same_frames(frames: list[bytes], at: list[int]) -> None:
    budget = BufferBudget(1 << 20)
    decoder = FrameDecoder(200, budget)
    pieces = cut(b"".join(map(with_prefix, frames)), at)
    assert [frame for piece in pieces for frame in decoder.feed(piece)] == frames
    assert (decoder.buffered, budget.held, decoder.broken) == (0, 0, None)


@given(st.binary(max_size=2_000), st.lists(st.integers(min_value=0)))
def test_any_bytes_give_the_same_outcome_however_they_are_cut(data: bytes, at: list[int]) -> None:
    whole, pieces = FrameDecoder(64), FrameDecoder(64)
    expected = whole.feed(data)
    found: list[bytes] = []
    for piece in cut(data, at):
        if pieces.broken is None:
            found += pieces.feed(piece)
    assert found == expected
    assert (pieces.broken is None) == (whole.broken is None)
    assert pieces.buffered <= 64 + PREFIX_SIZE


@given(st.binary(max_size=300))
def test_a_listener_answers_no_invented_bytes(frame: bytes) -> None:
    step = ListenerHandshake(keyring("l"), Profile(), frozenset(Role)).on_frame(frame)
    assert not step.send and step.session is None and step.failure is not None


@given(st.binary(max_size=300))
def test_a_dialler_believes_no_invented_bytes(frame: bytes) -> None:
    dialler = DiallerHandshake(keyring("d"), Profile(), LinkKind.CONTROL)
    dialler.start()
    step = dialler.on_frame(frame)
    assert not step.send and step.session is None and step.failure is not None


@given(
    st.integers(min_value=0, max_value=2),
    st.integers(min_value=0),
    st.integers(min_value=1, max_value=255),
)
def test_one_changed_byte_anywhere_in_a_handshake_means_no_session(
    which: int, at: int, change: int
) -> None:
    dialler = DiallerHandshake(keyring("d"), Profile(), LinkKind.CONTROL)
    listener = ListenerHandshake(keyring("l"), Profile(), frozenset(Role))

    def passed(number: int, data: bytes) -> bytes:
        frame = bytearray(data[PREFIX_SIZE:])
        if number == which:
            frame[at % len(frame)] ^= change
        return bytes(frame)

    hello = listener.on_frame(passed(0, dialler.start().send))
    if which == 0:
        assert not hello.send and hello.failure is not None
        return
    welcome = dialler.on_frame(passed(1, hello.send))
    if which == 1:
        assert welcome.session is None and welcome.failure is not None
        return
    confirm = listener.on_frame(passed(2, welcome.send))
    assert confirm.session is None and confirm.failure is not None


@given(st.binary(max_size=1_300))
def test_any_datagram_is_a_typed_refusal(data: bytes) -> None:
    try:
        DatagramSeal(keyring("l")).open(data, ("host", 1))
    except (BadFrame, SealBroken, UnknownType, DecodeError):
        return
    raise AssertionError("invented bytes were believed")


@given(st.integers(min_value=0), st.integers(min_value=1, max_value=255))
def test_one_changed_byte_of_a_datagram_is_a_typed_refusal(at: int, change: int) -> None:
    data = bytearray(DatagramSeal(keyring("d")).seal(ErrorAnswer("x"), ("h", 1), Role.NODE))
    data[at % len(data)] ^= change
    try:
        DatagramSeal(keyring("l")).open(bytes(data), ("host", 1))
    except (BadFrame, SealBroken):
        return
    raise AssertionError("a changed datagram was believed")


@given(st.integers(min_value=0, max_value=5), st.binary(max_size=400))
def test_any_body_is_a_message_or_a_decode_error(which: int, body: bytes) -> None:
    rows = list(CATALOGUE)
    row = rows[which % len(rows)]
    try:
        message = CATALOGUE.decode(row, body)
    except DecodeError:
        return
    assert isinstance(message, row.struct)


@given(st.lists(st.integers(min_value=0, max_value=60)), st.integers(min_value=1, max_value=20))
def test_the_replay_window_agrees_with_a_plain_set(sequences: list[int], size: int) -> None:
    window, seen, highest = ReplayWindow(size), set[int](), -1
    for sequence in sequences:
        expected = sequence not in seen and sequence > highest - size
        assert window.accept(sequence) == expected
        seen.add(sequence)
        highest = max(highest, sequence)


@given(
    st.lists(
        st.tuples(st.sampled_from(list(MessageClass)), st.booleans()), min_size=1, max_size=200
    )
)
def test_an_outbox_loses_nothing_but_counted_telemetry(
    events: list[tuple[MessageClass, bool]],
) -> None:
    limits = WireLimits(queue_messages=10, queue_overflow_messages=4, control_queue_messages=5)
    outbox = Outbox(limits)
    queued: list[tuple[MessageClass, int]] = []
    taken: list[tuple[MessageClass, int]] = []
    for number, (message_class, takes) in enumerate(events):
        if takes and (entry := outbox.take()) is not None:
            taken.append((entry.message_class, entry.type_number))
        outcome = outbox.put(QueuedMessage(message_class, 0, number, 0, 0.0, b"x"))
        if outcome is PutResult.QUEUED:
            queued.append((message_class, number))
        assert outbox.waiting <= 10 + 4 + 5
    while (entry := outbox.take()) is not None:
        taken.append((entry.message_class, entry.type_number))
    lost = set(queued) - set(taken)
    assert all(message_class is MessageClass.TELEMETRY for message_class, _ in lost)
    assert len(lost) == outbox.dropped
    for wanted in MessageClass:
        order = [number for message_class, number in taken if message_class is wanted]
        assert order == sorted(order)
