"""The invariants of a log in a store.

The checks compare what the leaders report with each other and with the slots in the store. They
keep their facts per log, because a new log begins when the store loses its data; for a lost log
they only check that it is not written to any more. They see all leaders and the store at once and
must never change anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lab.sim.checks import Event, check
from lab.sim.world import World
from squall.cluster.ledger.replica.types import Kind
from squall.coordination.stores.interface import Fence, Put, Write, kind_of
from squall.store_mode.ledger.layout import slot_of

CLOCK_RATE = 1.06
"""Bound for the rates of a leader's clock and the store's, which each differ from real time by
less than 5 %."""
CLOCK_SLACK_MS = 1500


@dataclass
class _LogFacts:
    """What is known about one log; `lost_at` is set when the store lost it."""

    history: dict[int, str] = field(default_factory=dict[int, str])
    places: dict[str, int] = field(default_factory=dict[str, int])
    clock: dict[int, int] = field(default_factory=dict[int, int])
    acked_at: dict[int, float] = field(default_factory=dict[int, float])
    refused: set[str] = field(default_factory=set[str])
    fences: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    views: dict[int, float] = field(default_factory=dict[int, float])
    """When the first slot of each lead took effect, by slot number."""
    lost_at: float | None = None


class StoreLogPromises:
    """Compares the reports of all leaders with one history per log."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._logs: dict[str, _LogFacts] = {}
        self._asked: dict[str, tuple[float, int]] = {}
        self._highest_acked: dict[str, int] = {}
        self.serves = 0
        self.acked = 0
        self.last_leader = ""

    def log(self, log_id: str) -> _LogFacts:
        return self._logs.setdefault(log_id, _LogFacts())

    def lost(self) -> None:
        for facts in self._logs.values():
            if facts.lost_at is None:
                facts.lost_at = self._world.now

    def observe(self, event: Event) -> None:
        fields = event.fields
        match event.name:
            case "serves":
                self._serve(event)
            case "applied":
                check(not fields["over"], "committed by a leader that is over")
                self._place(event)
            case "acked":
                self._place(event)
                self.acked += 1
                self._world.count("acked")
                facts = self.log(fields["log"])
                facts.acked_at.setdefault(fields["op"], event.time)
                highest = self._highest_acked.get(fields["log"], 0)
                self._highest_acked[fields["log"]] = max(highest, fields["op"])
            case "refused":
                facts = self.log(fields["log"])
                facts.refused.add(fields["name"])
                place = facts.places.get(fields["name"])
                check(place is None, f"{fields['name']} was refused and is op {place}")
            case "asks":
                highest = self._highest_acked.get(fields["log"], 0)
                self._asked[fields["key"]] = (event.time, highest)
            case "confirmed":
                self._confirm(event)
            case "reads":
                highest = self._asked[fields["key"]][1]
                sees = fields["op"] >= highest or self.log(fields["log"]).lost_at is not None
                check(sees, f"a strong read misses op {highest}")
            case "blob_missing":
                lost = self.log(fields["log"]).lost_at is not None
                check(lost, f"blob {fields['digest'][:8]} is named and gone")
            case "lost":
                lost = self.log(fields["log"]).lost_at is not None
                check(lost, "a log was given up that is there")
            case "superseded" | "unknown":
                self._world.count(event.name)
            case _:
                pass

    def _place(self, event: Event) -> None:
        """There must be one history, with each name in it once."""
        fields = event.fields
        facts, op, name = self.log(fields["log"]), fields["op"], fields["name"]
        if facts.lost_at is not None:
            return
        first = facts.history.setdefault(op, name)
        check(first == name, f"op {op} is {first} and {name}")
        place = facts.places.setdefault(name, op)
        check(place == op, f"{name} is op {place} and op {op}")
        check(name not in facts.refused, f"{name} was refused and is op {op}")
        known = facts.clock.setdefault(op, fields["group_ms"])
        check(known == fields["group_ms"], f"op {op} has two times")
        for other, there in ((op - 1, -1), (op + 1, 1)):
            value = facts.clock.get(other)
            if value is not None:
                check((value - known) * there >= 0, f"the group clock falls at op {op}")

    def _serve(self, event: Event) -> None:
        fields = event.fields
        facts = self.log(fields["log"])
        self.serves += 1
        self.last_leader = event.node
        self._world.count("leads")
        if facts.lost_at is not None:
            return
        rows: dict[int, str] = dict(fields["state"])
        for op, name in rows.items():
            first = facts.history.setdefault(op, name)
            check(first == name, f"op {op} is {first} and {name} is served")
            place = facts.places.setdefault(name, op)
            check(place == op, f"{name} is op {place} and op {op}")
            check(name not in facts.refused, f"{name} was refused and is served")
        for op, name in facts.history.items():
            if op <= fields["applied"]:
                check(rows.get(op) == name, f"op {op} is {name}, served as {rows.get(op)}")
        known = [ms for op, ms in facts.clock.items() if op <= fields["applied"]]
        check(fields["group_ms"] >= max(known, default=0), "the group clock fell in a new lead")
        passed_ms = event.time * 1000.0 * CLOCK_RATE + CLOCK_SLACK_MS
        check(fields["group_ms"] <= passed_ms, "the group clock ran ahead")
        self._fence(facts, fields["slot"], fields["fence"])
        # Commands acknowledged before this lead's first slot must be in its state.
        begun = facts.views.get(fields["slot"], event.time)
        for op, at in facts.acked_at.items():
            missing = at < begun and op > fields["applied"]
            check(not missing, f"op {op} was acknowledged and is not in a later lead")

    def _fence(self, facts: _LogFacts, slot: int, fence: tuple[int, int]) -> None:
        facts.fences[slot] = fence
        below = [each for number, each in facts.fences.items() if number < slot]
        above = [each for number, each in facts.fences.items() if number > slot]
        check(all(each < fence for each in below), f"{fence} leads after a higher fence")
        check(all(each > fence for each in above), f"{fence} leads before a lower fence")

    def _confirm(self, event: Event) -> None:
        fields = event.fields
        asked, _ = self._asked[fields["key"]]
        facts = self.log(fields["log"])
        self._world.count("confirmed")
        for number, at in facts.views.items():
            newer = number > fields["slot"] and at <= asked and facts.lost_at is None
            check(not newer, f"confirmed though slot {number} began another lead before")


class SlotChecks:
    """Observes every write that took effect in the store."""

    def __init__(self, world: World, promises: StoreLogPromises) -> None:
        self._world = world
        self._promises = promises
        self._lost_logs: set[str] = set()
        self._seen: set[str] = set()
        self.transactions = True

    def lost(self) -> None:
        self._lost_logs |= self._seen
        self._promises.lost()

    def wrote(self, writes: Sequence[Write], fence: Fence | None) -> None:
        for write in writes:
            if not isinstance(write, Put):
                continue
            if kind_of(write.key) == "checkpoint":
                self._world.count("parts of checkpoints")
            if kind_of(write.key) == "log":
                self._slot(write)

    def _slot(self, write: Put) -> None:
        _, _, log_id, number = write.key.split("/")
        self._seen.add(log_id)
        bound = self.transactions and log_id in self._lost_logs and int(number) > 1
        check(not bound, f"slot {number} was written to a log that is lost")
        entry = slot_of(write.key, write.value).entries[0]
        self._world.count("slots")
        if entry.kind in (Kind.FORM, Kind.VIEW):
            self._promises.log(log_id).views.setdefault(int(number), self._world.now)
