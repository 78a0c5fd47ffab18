"""Properties of the coordination cores over arbitrary inputs."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from squall.coordination.election import messages as m
from squall.coordination.election.core import Election
from squall.coordination.member_stats import RecentValues
from squall.coordination.records.schemas import Codec, LeaseRecord, Signal
from squall.coordination.secrets.signing import Keyring, canonical
from squall.coordination.signals.matching import SignalFilter, SignalMatcher
from squall.coordination.timing import Timing

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
FIELDS = st.dictionaries(st.text(min_size=1, max_size=6), JSON, max_size=5)
TIMING = Timing()
RING = Keyring.of(["s3cret" * 10], "staging", "default")


@given(FIELDS, FIELDS, st.sampled_from(["Signal", "SignalAck"]))
def test_two_records_have_one_canonical_form_only_if_they_are_equal(
    one: dict[str, Any], other: dict[str, Any], kind: str
) -> None:
    one.pop("signature", None)
    other.pop("signature", None)
    same = canonical(kind, one) == canonical(kind, other)
    assert same == (repr_of(one) == repr_of(other))
    assert canonical("Signal", one) != canonical("SignalAck", one)


def repr_of(value: Any) -> Any:
    """Equality that tells True from 1."""
    if isinstance(value, dict):
        return {key: repr_of(each) for key, each in value.items()}
    if isinstance(value, list):
        return [repr_of(each) for each in value]
    return (type(value).__name__, value)


@given(JSON, st.text(max_size=10))
def test_a_record_comes_back_as_it_was_and_no_other_text_verifies(payload: Any, text: str) -> None:
    codec = Codec(RING)
    signal = Signal(
        signal_id="1",
        sender_id="a",
        sender_boot=1,
        receiver_id="b",
        type="wake",
        payload=payload,
        timestamp=1.0,
        expires_at=2.0,
    )
    encoded = codec.encode(signal)
    read = codec.read(Signal, encoded)
    assert read is not None
    assert read.payload == payload
    other = Codec(Keyring.of([text + "x"], "staging", "default"))
    assert other.decode(Signal, encoded) == "unknown_key"


@given(st.binary(max_size=200))
def test_bytes_that_are_no_record_are_refused_and_raise_nothing(value: bytes) -> None:
    assert isinstance(Codec(RING).decode(Signal, value), str)


@given(st.lists(st.floats(0.0, 1e6), max_size=250), st.floats(0.01, 1.0))
def test_a_percentile_is_a_value_that_was_seen_lately(values: list[float], share: float) -> None:
    ring = RecentValues()
    for value in values:
        ring.add(value)
    assert ring.percentile(share) in (values[-100:] or [0.0])


@given(st.data())
def test_each_signal_goes_to_one_consumer_in_the_order_of_arrival(data: st.DataObject) -> None:
    matcher = SignalMatcher()
    consumers: dict[int, SignalFilter] = {}
    given_to: list[tuple[int, int]] = []
    arrived = 0
    for step in data.draw(st.lists(st.sampled_from(["arrive", "take", "match"]), max_size=40)):
        if step == "arrive":
            arrived += 1
            signal = Signal(
                signal_id=str(arrived),
                correlation_id=data.draw(st.sampled_from(["", "x", "y"])),
                sender_id="a",
                sender_boot=1,
                receiver_id="b",
                type=data.draw(st.sampled_from(["wake", "done"])),
                timestamp=0.0,
                expires_at=1.0,
            )
            matcher.arrive("s", str(arrived), "b", signal, 0)
        elif step == "take":
            wanted = SignalFilter(
                data.draw(st.sampled_from([None, "x", "y"])),
                data.draw(st.sampled_from([(), ("wake",), ("done",)])),
            )
            consumers[matcher.add_consumer(wanted, once=data.draw(st.booleans()))] = wanted
        else:
            for consumer, entry in matcher.match():
                assert consumers[consumer].matches(entry.signal)
                given_to.append((consumer, entry.number))
    numbers = [number for _, number in given_to]
    assert len(numbers) == len(set(numbers))
    for consumer in consumers:
        mine = [number for each, number in given_to if each == consumer]
        assert mine == sorted(mine)


class Register:
    """The lease record, with replies that may be lost and come late."""

    def __init__(self) -> None:
        self.version: str | None = None
        self.lease: LeaseRecord | None = None
        self.writes = 0

    def write(self, request: m.WriteLease) -> bool:
        if request.expect != self.version:
            return False
        if self.lease is not None and request.lease.epoch < self.lease.epoch:
            return False
        self.writes += 1
        self.version, self.lease = f"v{self.writes}", request.lease
        return True

    def read(self) -> m.LeaseRead:
        if self.version is None or self.lease is None:
            return m.LeaseRead(None)
        return m.LeaseRead(m.SeenLease(self.version, self.lease.epoch, self.lease))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_two_members_never_lead_at_once_whatever_is_lost_or_late(data: st.DataObject) -> None:
    register = Register()
    cores = [
        Election(
            *(name, 1, TIMING, 0.0),
            uniform=lambda low, high: low,
            wall=lambda: 0.0,
            skip_cold_start=True,
        )
        for name in ("a", "b", "c")
    ]
    pending: list[tuple[int, m.Effect]] = []
    answers: list[tuple[int, m.Event]] = []
    now, epochs = 0.0, {}

    def perform(number: int, effects: list[m.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, m.ReadLease | m.WriteLease):
                pending.append((number, effect))
            elif isinstance(effect, m.FindRank):
                answers.append((number, m.RankKnown(number)))
            elif isinstance(effect, m.Promote):
                assert epochs.setdefault(effect.epoch, number) == number
            elif isinstance(effect, m.Demote):
                answers.append((number, m.WorkEnded()))

    def serve(number: int, effect: m.Effect, lost: bool) -> None:
        if isinstance(effect, m.ReadLease):
            answers.append((number, register.read()))
        elif isinstance(effect, m.WriteLease):
            done = register.write(effect)
            if lost:
                answers.append((number, m.LeaseUnanswered(effect)))
            elif done:
                assert register.version is not None
                answers.append((number, m.LeaseWritten(effect, register.version)))
            else:
                answers.append((number, m.LeaseRefused(effect)))

    for _ in range(data.draw(st.integers(20, 120))):
        step = data.draw(st.sampled_from(["time", "serve", "serve", "answer", "answer", "jump"]))
        if step == "serve" and pending:
            number, effect = pending.pop(data.draw(st.integers(0, len(pending) - 1)))
            serve(number, effect, data.draw(st.integers(0, 9)) == 0)
        elif step == "answer" and answers:
            number, event = answers.pop(0)
            perform(number, cores[number].handle(event, now))
        else:
            now += data.draw(st.floats(0.01, 20.0 if step == "jump" else 2.0))
            for number, core in enumerate(cores):
                # A member that is paused does not tick; `leads` is what others rely on.
                if data.draw(st.booleans()):
                    perform(number, core.tick(now))
        assert sum(core.leads(now) for core in cores) <= 1
