"""Admission against a simple model, under any order of requests, ends and cancellations."""

from __future__ import annotations

import copy
import heapq
import random
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from squall.cluster.control.admission import (
    SHARED_CLASSES,
    Admission,
    Admitted,
    LoadState,
    Overrun,
    Shed,
    Token,
)
from squall.cluster.control.settings import AdmissionSettings
from squall.cluster.wire.header import MessageClass
from squall.runtime.invariants import InvariantViolation

CONTROL, DISPATCH, DATA, TELEMETRY = MessageClass
SOURCES = ("a", "b", "c")


@st.composite
def some_settings(draw: st.DrawFn, least: int = 0) -> AdmissionSettings:
    telemetry_max = draw(st.integers(least, 3))
    data_max = telemetry_max + draw(st.integers(0, 3))
    shared_max = max(1, data_max + draw(st.integers(0, 3)))
    per_source = draw(st.integers(1, 3))
    return AdmissionSettings(
        telemetry_max=telemetry_max,
        data_max=data_max,
        shared_max=shared_max,
        control_max=draw(st.integers(1, 3)),
        control_waiting_per_source_max=per_source,
        control_waiting_max=per_source + draw(st.integers(0, 4)),
    )


def halfway(low: float, high: float) -> float:
    return (low + high) / 2


class AdmissionMachine(RuleBasedStateMachine):
    """The model is three lists. `alone` is a node that never sees any CONTROL."""

    @initialize(limits=some_settings())
    def begin(self, limits: AdmissionSettings) -> None:
        self.limits = limits
        self.node = Admission(limits, halfway)
        self.alone = Admission(limits, halfway)
        self.now = 0.0
        self.running: dict[Token, MessageClass] = {}
        self.twins: dict[Token, Token] = {}
        self.waiting: dict[Token, str] = {}
        self.ended: list[Token] = []
        self.admitted = 0
        self.refused = 0

    def count(self, *classes: MessageClass) -> int:
        return sum(each in classes for each in self.running.values())

    def has_room(self, message_class: MessageClass) -> bool:
        limits = self.limits
        return (
            self.count(*SHARED_CLASSES) < limits.shared_max
            and (message_class is DISPATCH or self.count(DATA, TELEMETRY) < limits.data_max)
            and (message_class is not TELEMETRY or self.count(TELEMETRY) < limits.telemetry_max)
        )

    @rule(seconds=st.floats(0, 5))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(message_class=st.sampled_from(SHARED_CLASSES))
    def a_shared_request_arrives(self, message_class: MessageClass) -> None:
        expected = self.has_room(message_class)
        decision = self.node.admit(message_class, self.now)
        twin = self.alone.admit(message_class, self.now)
        if isinstance(decision, Admitted) and isinstance(twin, Admitted):
            assert expected
            assert not decision.waits
            self.running[decision.token] = message_class
            self.twins[decision.token] = twin.token
            self.admitted += 1
            return
        # What CONTROL does changes neither the answer nor the hint that the others get.
        assert decision == twin
        assert not expected
        assert isinstance(decision, Shed)
        limits = self.limits
        most_s = limits.retry_after_max_s * (1 + limits.retry_after_spread)
        assert limits.retry_after_min_s <= decision.retry_after_s <= most_s
        self.refused += 1

    @rule(source=st.sampled_from(SOURCES))
    def a_control_request_arrives(self, source: str) -> None:
        free = self.count(CONTROL) < self.limits.control_max
        line = sum(each == source for each in self.waiting.values())
        too_long = (
            line >= self.limits.control_waiting_per_source_max
            or len(self.waiting) >= self.limits.control_waiting_max
        )
        decision = self.node.admit(CONTROL, self.now, source)
        if isinstance(decision, Overrun):
            assert not free
            assert too_long
            assert decision == Overrun(source, line)
            return
        assert isinstance(decision, Admitted)
        assert free or not too_long
        assert decision.waits is not free
        self.admitted += 1
        if free:
            self.running[decision.token] = CONTROL
        else:
            self.waiting[decision.token] = source

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def running_work_ends(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(list(self.running)))
        message_class = self.running.pop(token)
        started = self.node.release(token, self.now)
        self.ended.append(token)
        if message_class is not CONTROL:
            self.alone.release(self.twins.pop(token), self.now)
        assert len(started) == (1 if message_class is CONTROL and self.waiting else 0)
        for each in started:
            source = self.waiting.pop(each)
            assert not any(
                other < each and self.waiting[other] == source for other in self.waiting
            ), "a source's own work overtook itself"
            self.running[each] = CONTROL

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def waiting_work_is_cancelled(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(list(self.waiting)))
        del self.waiting[token]
        assert self.node.release(token, self.now) == ()
        self.ended.append(token)

    @precondition(lambda self: self.ended)
    @rule(data=st.data())
    def a_slot_is_released_again(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(self.ended))
        with pytest.raises(InvariantViolation):
            self.node.release(token, self.now)

    @invariant()
    def counts_are_those_of_the_model(self) -> None:
        load = self.node.load()
        assert load.in_flight == {each: self.count(each) for each in MessageClass}
        assert load.control_waiting == len(self.waiting)
        assert load.shared_in_flight == self.count(*SHARED_CLASSES)
        assert sum(load.admitted_total.values()) == self.admitted
        assert sum(load.shed_total.values()) == self.refused
        assert load.shed_total[CONTROL] == 0

    @invariant()
    def no_limit_is_exceeded(self) -> None:
        assert self.count(*SHARED_CLASSES) <= self.limits.shared_max
        assert self.count(DATA, TELEMETRY) <= self.limits.data_max
        assert self.count(TELEMETRY) <= self.limits.telemetry_max
        assert self.count(CONTROL) <= self.limits.control_max
        assert len(self.waiting) <= self.limits.control_waiting_max

    @invariant()
    def control_waits_only_while_all_of_its_slots_work(self) -> None:
        assert not self.waiting or self.count(CONTROL) == self.limits.control_max

    @invariant()
    def a_lower_class_is_shed_no_later_than_a_higher_one(self) -> None:
        would_be_shed = [
            isinstance(copy.deepcopy(self.node).admit(each, self.now), Shed)
            for each in SHARED_CLASSES
        ]
        assert would_be_shed == sorted(would_be_shed)
        state = (
            LoadState.OVERLOADED
            if would_be_shed[1]
            else LoadState.PRESSURED
            if would_be_shed[2]
            else LoadState.HEALTHY
        )
        assert self.node.state is state


AdmissionMachine.TestCase.settings = settings(
    max_examples=50, stateful_step_count=40, deadline=None
)
TestAdmission = AdmissionMachine.TestCase


@given(
    joins=st.lists(st.sampled_from(SOURCES), max_size=40),
    slots=st.integers(1, 3),
)
@settings(max_examples=100, deadline=None)
def test_a_source_waits_for_its_own_line_and_for_one_turn_of_each_other(
    joins: list[str], slots: int
) -> None:
    limits = AdmissionSettings(control_max=slots)
    node = Admission(limits, halfway)
    running: list[Token] = []
    rank: dict[Token, int] = {}
    for _ in range(slots):
        decision = node.admit(CONTROL, 0, "before")
        assert isinstance(decision, Admitted)
        running.append(decision.token)
    for number, source in enumerate(joins):
        decision = node.admit(CONTROL, 0, source)
        assert isinstance(decision, Admitted)
        rank[decision.token] = joins[:number].count(source)
    order: list[Token] = []
    while running:
        started = node.release(running.pop(0), 0)
        order += started
        running += started
    assert sorted(order) == sorted(rank)
    for position, token in enumerate(order):
        assert position < (rank[token] + 1) * len(SOURCES)


@dataclass(order=True)
class Arrival:
    at: float
    number: int
    message_class: MessageClass = field(compare=False)
    takes_s: float = field(compare=False)


requests = st.lists(
    st.tuples(
        st.floats(0, 3),
        st.sampled_from(list(MessageClass)),
        st.floats(0.001, 2),
    ),
    max_size=60,
)


@given(
    requests=requests,
    limits=some_settings(least=1),
    flood=st.booleans(),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=100, deadline=None)
def test_callers_that_follow_their_hints_are_all_served_in_the_end(
    requests: list[tuple[float, MessageClass, float]],
    limits: AdmissionSettings,
    flood: bool,
    seed: int,
) -> None:
    """With `flood`, one source keeps all CONTROL slots and its own line full all the time."""
    limits = msgspec.structs.replace(limits, control_waiting_max=100)
    node = Admission(limits, random.Random(seed).uniform)
    arrivals = [
        Arrival(at, number, each, takes_s) for number, (at, each, takes_s) in enumerate(requests)
    ]
    heapq.heapify(arrivals)
    ends: list[tuple[float, Token]] = []
    takes: dict[Token, float] = {}
    numbers: dict[Token, int] = {}
    served: set[int] = set()

    def pour(now: float) -> None:
        while flood and isinstance(decision := node.admit(CONTROL, now, "flood"), Admitted):
            takes[decision.token] = 0.5
            if not decision.waits:
                heapq.heappush(ends, (now + 0.5, decision.token))

    for _ in range(20_000):
        if len(served) == len(requests):
            break
        if arrivals and (not ends or arrivals[0].at <= ends[0][0]):
            arrival = heapq.heappop(arrivals)
            now = arrival.at
            pour(now)
            decision = node.admit(arrival.message_class, now, f"caller {arrival.number}")
            match decision:
                case Admitted():
                    takes[decision.token] = arrival.takes_s
                    numbers[decision.token] = arrival.number
                    if not decision.waits:
                        heapq.heappush(ends, (now + arrival.takes_s, decision.token))
                case Shed():
                    arrival.at = now + decision.retry_after_s
                    heapq.heappush(arrivals, arrival)
                case Overrun():
                    raise AssertionError("each caller has one request and room for it")
        else:
            now, token = heapq.heappop(ends)
            if token in numbers:
                served.add(numbers[token])
            for started in node.release(token, now):
                heapq.heappush(ends, (now + takes[started], started))
    assert len(served) == len(requests)
