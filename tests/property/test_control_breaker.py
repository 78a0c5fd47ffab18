"""The circuit breaker under any order of requests, ends and waiting."""

from __future__ import annotations

import copy

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from squall.control.breaker import Blocked, Breaker, Breakers, CircuitState, Permit
from squall.control.classes import SHARED_CLASSES, MessageClass
from squall.control.settings import BreakerSettings

some_settings = st.builds(
    BreakerSettings,
    failures_to_open=st.integers(1, 4),
    window_s=st.sampled_from([5.0, 30.0]),
    open_s=st.sampled_from([1.0, 10.0]),
    probes_max=st.integers(1, 3),
    successes_to_close=st.integers(1, 3),
    probe_timeout_s=st.sampled_from([2.0, 10.0]),
)
REASON = "timed out"


class BreakerMachine(RuleBasedStateMachine):
    @initialize(limits=some_settings)
    def begin(self, limits: BreakerSettings) -> None:
        self.limits = limits
        self.breaker = Breaker(limits, "peer")
        self.now = 0.0
        self.openings = 0
        self.out: list[tuple[int, Permit]] = []
        """Requests under way, with the openings that were seen when they began."""
        self.probes: dict[Permit, float] = {}
        self.failures: list[float] = []
        """When requests failed that began in the closed circuit of now."""

    @rule(seconds=st.sampled_from([0.5, 1.0, 3.0, 10.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(message_class=st.sampled_from(SHARED_CLASSES))
    def a_request_is_made(self, message_class: MessageClass) -> None:
        state = self.breaker.state(self.now)
        would_pass = self.breaker.would_pass(self.now)
        answer = self.breaker.ask(message_class, self.now)
        assert would_pass is isinstance(answer, Permit)
        if isinstance(answer, Blocked):
            assert state is not CircuitState.CLOSED
            longest_s = max(self.limits.open_s, self.limits.probe_timeout_s)
            assert 0 < answer.retry_after_s <= longest_s
            assert answer.reason == REASON
            return
        assert state is not CircuitState.OPEN
        self.out.append((self.openings, answer))
        if state is CircuitState.HALF_OPEN:
            self.probes[answer] = self.now
            timeout_s = self.limits.probe_timeout_s
            young = [at for at in self.probes.values() if self.now - at < timeout_s]
            assert len(young) <= self.limits.probes_max

    @rule(failed=st.booleans())
    def control_passes_always_and_counts_for_nothing(self, failed: bool) -> None:
        before = self.breaker.status(self.now)
        permit = self.breaker.ask(MessageClass.CONTROL, self.now)
        assert isinstance(permit, Permit)
        if failed:
            self.breaker.failed(permit, self.now, "a heartbeat was lost")
        else:
            self.breaker.succeeded(permit, self.now)
        assert self.breaker.status(self.now) == before

    @precondition(lambda self: self.out)
    @rule(data=st.data(), end=st.sampled_from(["answer", "no answer", "cancelled"]))
    def a_request_ends(self, data: st.DataObject, end: str) -> None:
        openings, permit = data.draw(st.sampled_from(self.out))
        self.end(openings, permit, end)

    @rule(count=st.integers(1, 2), windows=st.sampled_from([0.0, 0.4, 0.7, 1.1, 1.6]))
    def requests_fail_after_a_while(self, count: int, windows: float) -> None:
        self.now += windows * self.limits.window_s
        for _ in range(count):
            self.request_that_ends("no answer")

    @rule()
    def the_peer_recovers(self) -> None:
        self.now += max(self.limits.open_s, self.limits.probe_timeout_s)
        for _ in range(self.limits.successes_to_close):
            self.request_that_ends("answer")
        assert self.breaker.state(self.now) is CircuitState.CLOSED

    def request_that_ends(self, end: str) -> None:
        before = len(self.out)
        self.a_request_is_made(MessageClass.DATA)
        if len(self.out) > before:
            self.end(*self.out[-1], end)

    def end(self, openings: int, permit: Permit, end: str) -> None:
        self.out.remove((openings, permit))
        was_probe = self.probes.pop(permit, None) is not None
        before = self.breaker.state(self.now)
        if end == "answer":
            self.breaker.succeeded(permit, self.now)
        elif end == "cancelled":
            self.breaker.abandoned(permit, self.now)
        else:
            self.breaker.failed(permit, self.now, REASON)
        after = self.breaker.state(self.now)
        if before is CircuitState.CLOSED:
            if end == "no answer" and openings == self.openings and not was_probe:
                self.failures.append(self.now)
            recent = [at for at in self.failures if self.now - at <= self.limits.window_s]
            enough = len(recent) >= self.limits.failures_to_open
            assert after is (CircuitState.OPEN if enough else CircuitState.CLOSED)
        elif after is CircuitState.CLOSED:
            assert before is CircuitState.HALF_OPEN and was_probe and end == "answer"
        elif after is not before:
            assert before is CircuitState.HALF_OPEN and was_probe and end == "no answer"
        if after is CircuitState.OPEN and before is not CircuitState.OPEN:
            self.openings += 1
            self.failures.clear()
            self.probes.clear()

    @invariant()
    def every_circuit_is_tried_again_after_a_bounded_time(self) -> None:
        breaker = copy.deepcopy(self.breaker)
        later = self.now + max(self.limits.open_s, self.limits.probe_timeout_s)
        assert isinstance(breaker.ask(MessageClass.DISPATCH, later), Permit)


BreakerMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestBreaker = BreakerMachine.TestCase


@given(
    uses=st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans()), max_size=60),
    peers_max=st.integers(1, 5),
)
@settings(max_examples=100, deadline=None)
def test_circuits_are_bounded_and_an_idle_one_goes_before_one_with_failures(
    uses: list[tuple[str, bool]], peers_max: int
) -> None:
    breakers = Breakers(BreakerSettings(peers_max=peers_max))
    for number, (peer, fails) in enumerate(uses):
        now = number * 0.01
        failing = {
            status.peer: status.failures_in_window + status.opened_total
            for status in breakers.statuses(now)
        }
        breaker = breakers.of(peer, now)
        permit = breaker.ask(MessageClass.DATA, now)
        if isinstance(permit, Permit) and fails:
            breaker.failed(permit, now, REASON)
        kept = {status.peer for status in breakers.statuses(now)}
        assert peer in kept
        assert len(breakers) == len(kept) <= peers_max
        gone = failing.keys() - kept
        assert len(gone) <= 1
        if any(failing[each] for each in gone):
            assert all(failing.values())
