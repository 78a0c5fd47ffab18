"""Whether a request to one peer is sent at all, or fails at once because the last ones did.

Closed: all pass. `failures_to_open` failures within `window_s` open the circuit; for
`open_s` nothing passes; then it is half-open: `probes_max` requests at a time try the peer.
`successes_to_close` of them close it, one failure opens it again.

CONTROL passes always and counts for nothing. A breaker must never silence heartbeats,
renewals, cancels or registration; and a heartbeat that gets through says nothing about
requests that time out.

Only the lack of an answer is a failure. A peer that refuses, sheds or rejects is alive.
"""

from __future__ import annotations

import enum
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from squall.control.classes import MessageClass
from squall.control.settings import BreakerSettings


class CircuitState(enum.Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(frozen=True, slots=True)
class Permit:
    """Leave to send one request. Its end is told once: succeeded, failed or abandoned."""

    period: int
    """Which stretch of one state it was given in. An end from an older stretch says
    nothing about the present one."""
    probe: int | None = None
    exempt: bool = False


@dataclass(frozen=True, slots=True)
class Blocked:
    """Not sent. `reason` is what the last failure said."""

    retry_after_s: float
    reason: str


class CircuitStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What metrics and people see of one circuit."""

    peer: str
    state: CircuitState
    failures_in_window: int
    retry_after_s: float
    last_reason: str
    passed_total: int
    blocked_total: int
    failed_total: int
    opened_total: int


class Breaker:
    """The circuit to one peer."""

    def __init__(self, settings: BreakerSettings, peer: str = "") -> None:
        self.peer = peer
        self._settings = settings
        self._state = CircuitState.CLOSED
        self._period = 0
        self._failures: deque[float] = deque()
        self._opened_at = 0.0
        self._probes: dict[int, float] = {}
        self._next_probe = 0
        self._successes = 0
        self._last_reason = ""
        self._passed = 0
        self._blocked = 0
        self._failed = 0
        self._opened = 0

    def ask(self, message_class: MessageClass, now: float) -> Permit | Blocked:
        if message_class is MessageClass.CONTROL:
            return Permit(self._period, exempt=True)
        self._advance(now)
        if self._state is CircuitState.CLOSED:
            self._passed += 1
            return Permit(self._period)
        if not self._has_room_for_probe():
            self._blocked += 1
            return Blocked(self._retry_after_s(now), self._last_reason)
        self._passed += 1
        number = self._next_probe
        self._next_probe += 1
        self._probes[number] = now
        return Permit(self._period, number)

    def would_pass(self, now: float) -> bool:
        """For choosing among peers: takes no probe."""
        self._advance(now)
        return self._state is CircuitState.CLOSED or self._has_room_for_probe()

    def succeeded(self, permit: Permit, now: float) -> None:
        """The peer answered, whatever it said."""
        if not self._counts(permit, now) or permit.probe is None:
            return
        self._successes += 1
        if self._successes >= self._settings.successes_to_close:
            self._enter(CircuitState.CLOSED)

    def failed(self, permit: Permit, now: float, reason: str) -> None:
        """No answer: not reached, timed out, broken off."""
        if not self._counts(permit, now):
            return
        self._failed += 1
        self._last_reason = reason
        if permit.probe is not None:
            self._open(now)
            return
        self._failures.append(now)
        if len(self._failures) >= self._settings.failures_to_open:
            self._open(now)

    def abandoned(self, permit: Permit, now: float) -> None:
        """The caller gave up before there was an outcome; says nothing about the peer."""
        self._counts(permit, now)

    def state(self, now: float) -> CircuitState:
        self._advance(now)
        return self._state

    def idle(self, now: float) -> bool:
        """Nothing is remembered here that a new breaker would not know."""
        self._advance(now)
        return self._state is CircuitState.CLOSED and not self._failures

    def status(self, now: float) -> CircuitStatus:
        self._advance(now)
        return CircuitStatus(
            peer=self.peer,
            state=self._state,
            failures_in_window=len(self._failures),
            retry_after_s=self._retry_after_s(now),
            last_reason=self._last_reason,
            passed_total=self._passed,
            blocked_total=self._blocked,
            failed_total=self._failed,
            opened_total=self._opened,
        )

    def _advance(self, now: float) -> None:
        """What time alone changes."""
        settings = self._settings
        while self._failures and now - self._failures[0] > settings.window_s:
            self._failures.popleft()
        if self._state is CircuitState.OPEN and now - self._opened_at >= settings.open_s:
            self._enter(CircuitState.HALF_OPEN)
        lost = [
            number
            for number, sent_at in self._probes.items()
            if now - sent_at >= settings.probe_timeout_s
        ]
        for number in lost:
            del self._probes[number]

    def _counts(self, permit: Permit, now: float) -> bool:
        """Whether the end of this permit says something about the present state."""
        self._advance(now)
        if permit.exempt or permit.period != self._period:
            return False
        return permit.probe is None or self._probes.pop(permit.probe, None) is not None

    def _has_room_for_probe(self) -> bool:
        return (
            self._state is CircuitState.HALF_OPEN and len(self._probes) < self._settings.probes_max
        )

    def _retry_after_s(self, now: float) -> float:
        if self._state is CircuitState.OPEN:
            return max(0.0, self._opened_at + self._settings.open_s - now)
        if self._state is CircuitState.HALF_OPEN and not self._has_room_for_probe():
            oldest = min(self._probes.values())
            return max(0.0, oldest + self._settings.probe_timeout_s - now)
        return 0.0

    def _open(self, now: float) -> None:
        self._opened_at = now
        self._opened += 1
        self._enter(CircuitState.OPEN)

    def _enter(self, state: CircuitState) -> None:
        self._state = state
        self._period += 1
        self._successes = 0
        self._probes.clear()
        self._failures.clear()


class Breakers:
    """One breaker per destination, at most `peers_max`.

    The least recently used idle one makes room. If none is idle the least recently used
    one does: a forgotten circuit is a closed one, which costs some failures, not memory.
    A caller keeps the breaker it asked until it has told the end.
    """

    def __init__(self, settings: BreakerSettings) -> None:
        self._settings = settings
        self._by_peer: OrderedDict[str, Breaker] = OrderedDict()
        self.evicted_total = 0

    def of(self, peer: str, now: float) -> Breaker:
        breaker = self._by_peer.get(peer)
        if breaker is not None:
            self._by_peer.move_to_end(peer)
            return breaker
        if len(self._by_peer) >= self._settings.peers_max:
            self._evict(now)
        breaker = self._by_peer[peer] = Breaker(self._settings, peer)
        return breaker

    def forget(self, peer: str) -> None:
        """The peer left, or came back with a new boot: old failures were another's."""
        self._by_peer.pop(peer, None)

    def statuses(self, now: float) -> Iterator[CircuitStatus]:
        return (breaker.status(now) for breaker in self._by_peer.values())

    def __len__(self) -> int:
        return len(self._by_peer)

    def _evict(self, now: float) -> None:
        oldest = next(iter(self._by_peer))
        victim = next((peer for peer, each in self._by_peer.items() if each.idle(now)), oldest)
        del self._by_peer[victim]
        self.evicted_total += 1
