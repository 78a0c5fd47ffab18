"""Admission, case by case; the laws for all cases are in tests/property."""

from __future__ import annotations

import pytest

from squall.cluster.control.admission import Admission, Admitted, LoadState, Overrun, Shed, Token
from squall.cluster.control.settings import AdmissionSettings
from squall.cluster.wire.header import MessageClass
from squall.runtime.invariants import InvariantViolation

CONTROL, DISPATCH, DATA, TELEMETRY = MessageClass
SMALL = AdmissionSettings(
    shared_max=10,
    data_max=5,
    telemetry_max=2,
    control_max=2,
    control_waiting_max=4,
    control_waiting_per_source_max=3,
)


def lowest(low: float, high: float) -> float:
    return low


def highest(low: float, high: float) -> float:
    return high


def admission(settings: AdmissionSettings = SMALL) -> Admission:
    return Admission(settings, lowest)


def taken(node: Admission, message_class: MessageClass, count: int, now: float = 0) -> list[Token]:
    tokens: list[Token] = []
    for _ in range(count):
        decision = node.admit(message_class, now)
        assert isinstance(decision, Admitted)
        tokens.append(decision.token)
    return tokens


def shed(node: Admission, message_class: MessageClass, now: float = 0) -> float:
    decision = node.admit(message_class, now)
    assert isinstance(decision, Shed)
    return decision.retry_after_s


def test_telemetry_is_shed_first_then_data_then_dispatch() -> None:
    node = admission()
    assert node.state is LoadState.HEALTHY
    taken(node, TELEMETRY, 2)
    assert node.state is LoadState.PRESSURED
    shed(node, TELEMETRY)
    taken(node, DATA, 3)
    assert node.state is LoadState.OVERLOADED
    shed(node, DATA)
    taken(node, DISPATCH, 5)
    shed(node, DISPATCH)
    taken(node, CONTROL, 2)


def test_a_lower_class_leaves_slots_that_only_higher_ones_may_take() -> None:
    node = admission()
    taken(node, DISPATCH, 10)
    shed(node, TELEMETRY)
    shed(node, DATA)
    assert node.state is LoadState.OVERLOADED


def test_control_neither_takes_shared_slots_nor_loses_its_own() -> None:
    node = admission()
    taken(node, CONTROL, 5)
    assert node.load().shared_in_flight == 0
    taken(node, DISPATCH, 10)
    assert node.state is LoadState.OVERLOADED


def test_control_beyond_its_slots_waits_and_starts_when_one_is_released() -> None:
    node = admission()
    first, _ = taken(node, CONTROL, 2)
    waiting = node.admit(CONTROL, 0, "m1")
    assert isinstance(waiting, Admitted)
    assert waiting.waits
    assert node.load().control_waiting == 1
    assert node.release(first, 1) == (waiting.token,)
    assert node.load().control_waiting == 0
    assert node.load().in_flight[CONTROL] == 2


def test_waiting_sources_take_turns() -> None:
    node = admission()
    running = taken(node, CONTROL, 2)
    named: dict[Token, str] = {}
    for source in ("a", "a", "a", "b"):
        decision = node.admit(CONTROL, 0, source)
        assert isinstance(decision, Admitted)
        named[decision.token] = source
    order: list[str] = []
    while running:
        started = node.release(running.pop(0), 0)
        order += [named[token] for token in started]
        running += started
    assert order == ["a", "b", "a", "a"]


def test_work_that_is_cancelled_while_it_waits_leaves_the_line() -> None:
    node = admission()
    first, second = taken(node, CONTROL, 2)
    waiting = node.admit(CONTROL, 0, "m1")
    assert isinstance(waiting, Admitted)
    assert node.release(waiting.token, 0) == ()
    assert node.release(first, 0) == ()
    assert node.release(second, 0) == ()
    assert node.load().in_flight[CONTROL] == 0


def test_a_source_with_too_much_control_waiting_is_to_be_cut_off_and_no_other() -> None:
    node = admission()
    taken(node, CONTROL, 2)
    for _ in range(3):
        assert isinstance(node.admit(CONTROL, 0, "flood"), Admitted)
    assert node.admit(CONTROL, 0, "flood") == Overrun("flood", 3)
    assert isinstance(node.admit(CONTROL, 0, "calm"), Admitted)
    assert node.admit(CONTROL, 0, "later") == Overrun("later", 0)
    assert node.load().overrun_total == 2
    assert node.load().shed_total[CONTROL] == 0


def test_a_second_release_is_a_bug_and_changes_nothing() -> None:
    node = admission()
    (token,) = taken(node, DATA, 1)
    node.release(token, 1)
    before = node.load()
    with pytest.raises(InvariantViolation, match="released twice"):
        node.release(token, 2)
    assert node.load() == before


def test_the_load_counts_what_runs_what_was_admitted_and_what_was_shed() -> None:
    node = admission()
    tokens = taken(node, TELEMETRY, 2)
    shed(node, TELEMETRY)
    node.release(tokens[0], 1)
    load = node.load()
    assert load.in_flight == {CONTROL: 0, DISPATCH: 0, DATA: 0, TELEMETRY: 1}
    assert load.admitted_total[TELEMETRY] == 2
    assert load.shed_total == {CONTROL: 0, DISPATCH: 0, DATA: 0, TELEMETRY: 1}
    assert (load.shared_max, load.data_max, load.telemetry_max, load.control_max) == (10, 5, 2, 2)


def test_the_hint_follows_the_service_time() -> None:
    def hint(service_s: float) -> float:
        node = admission()
        for round_number in range(60):
            (token,) = taken(node, TELEMETRY, 1, round_number * service_s)
            node.release(token, (round_number + 1) * service_s)
        now = 60 * service_s
        taken(node, TELEMETRY, 2, now)
        return shed(node, TELEMETRY, now)

    assert hint(0.001) == SMALL.retry_after_min_s
    # Two slots of 4 s each: one of them is free after about 2 s.
    assert hint(4.0) == pytest.approx(2.0, rel=0.05)


def test_the_hint_grows_with_the_callers_that_were_shed_before() -> None:
    node = admission()
    taken(node, TELEMETRY, 2)
    hints = [shed(node, TELEMETRY) for _ in range(10)]
    assert hints == sorted(hints)
    assert hints[-1] > 5 * hints[0]
    assert shed(node, TELEMETRY, 0.2) > hints[0]


def test_the_hint_grows_while_nothing_ends_and_has_a_cap() -> None:
    node = admission()
    taken(node, TELEMETRY, 2)
    assert shed(node, TELEMETRY, 7) >= 7
    assert shed(node, TELEMETRY, 10_000) == SMALL.retry_after_max_s


def test_the_hint_is_spread_upwards() -> None:
    node = Admission(SMALL, highest)
    taken(node, TELEMETRY, 2)
    assert shed(node, TELEMETRY) == pytest.approx(0.05 * 1.5)


def test_a_limit_of_zero_admits_nothing_and_says_so() -> None:
    node = admission(AdmissionSettings(telemetry_max=0))
    assert shed(node, TELEMETRY) == 30.0
    taken(node, DATA, 1)


def test_warnings_come_once_per_threshold_and_again_after_a_clear_fall() -> None:
    node = admission(AdmissionSettings(shared_max=20, data_max=20, telemetry_max=20))

    def fill(count: int) -> list[str]:
        told: list[str] = []
        for _ in range(count):
            decision = node.admit(DISPATCH, 0)
            assert isinstance(decision, Admitted)
            tokens.append(decision.token)
            if decision.warning:
                told.append(f"{decision.warning.limit} {decision.warning.percent}")
        return told

    tokens: list[Token] = []
    assert fill(15) == []
    assert fill(5) == ["shared 80", "shared 90"]
    node.release(tokens.pop(), 0)
    assert fill(1) == []
    for _ in range(4):
        node.release(tokens.pop(), 0)
    assert fill(4) == ["shared 90"]


def test_control_warns_about_its_own_slots() -> None:
    node = admission(AdmissionSettings(control_max=5))
    taken(node, CONTROL, 3)
    decision = node.admit(CONTROL, 0)
    assert isinstance(decision, Admitted)
    assert decision.warning
    assert (decision.warning.limit, decision.warning.percent) == ("control", 80)


def test_what_ends_at_once_passes_where_there_is_room_and_takes_none() -> None:
    node = admission()
    before = node.load()
    for each in MessageClass:
        assert node.passes(each)
    assert node.load() == before
    taken(node, CONTROL, 2)
    assert not node.passes(CONTROL)
    assert node.passes(TELEMETRY)
    taken(node, DISPATCH, 10)
    for each in (DISPATCH, DATA, TELEMETRY):
        assert not node.passes(each)


def test_a_node_that_falls_behind_lets_no_telemetry_pass() -> None:
    node = admission()
    node.sheds_telemetry = True
    assert not node.passes(TELEMETRY)
    assert node.passes(DATA)
    assert node.passes(CONTROL)
