"""The invariants of the coordination scenario.

Members report what they do through probes; the store reports every write that took effect. The
checks see both, which no member can.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec

from lab.sim.checks import Event, check
from lab.sim.world import World
from squall.coordination.records import keys
from squall.coordination.stores.interface import Append, Delete, Fence, Put, Write
from squall.coordination.timing import Timing


class Acting:
    """Two members never act in one epoch, and none acts after a higher epoch acted."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._epoch = 0
        self._holders: dict[int, tuple[str, int]] = {}
        # The store lost its data: for the rest of its lease the former leader may act beside the
        # next one, in its own epoch.
        self.may_overlap = False
        self.last_at = 0.0
        self.last_node = ""

    def observe(self, event: Event) -> None:
        if event.name != "acts":
            return
        epoch, holder = event.fields["epoch"], (event.node, event.fields["boot"])
        check(
            epoch >= self._epoch or self.may_overlap,
            f"{event.node} acts in epoch {epoch} after epoch {self._epoch} acted",
        )
        if epoch > self._epoch:
            if self._epoch:
                self._world.count("changes of the coordinator")
            self._epoch = epoch
        known = self._holders.setdefault(epoch, holder)
        check(holder == known, f"{known} and {holder} both act in epoch {epoch}")
        self.last_at, self.last_node = event.time, event.node


class SignalChecks:
    """An acknowledged signal was handled, one process handles a signal once, only signals that were
    sent are handled, and orders are obeyed in the order of their epochs."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._sent: set[str] = set()
        self._handled: dict[tuple[str, str], int] = {}
        self._ever: set[str] = set()
        # The highest epoch of the orders that each process obeyed.
        self._obeyed: dict[str, int] = {}
        self.acked: set[str] = set()

    def observe(self, event: Event) -> None:
        fields = event.fields
        match event.name:
            case "sends":
                self._sent.add(fields["text"])
            case "handles":
                text, boot = fields["text"], fields["boot"]
                check(text in self._sent, f"{event.node} handles {text!r}, which was never sent")
                self._ever.add(text)
                count = self._handled.get((boot, text), 0) + 1
                self._handled[boot, text] = count
                check(count == 1, f"{event.node} handles {text!r} twice in one boot")
            case "acked":
                check(fields["text"] in self._ever, f"{fields['text']!r} is acked, not handled")
                self.acked.add(fields["text"])
                self._world.count("acknowledged signals")
            case "obeys":
                check(
                    fields["epoch"] >= fields["known"],
                    f"{event.node} obeys epoch {fields['epoch']} and knows {fields['known']}",
                )
                before = self._obeyed.get(fields["boot"], 0)
                check(
                    fields["epoch"] >= before,
                    f"{event.node} obeys epoch {fields['epoch']} after epoch {before}",
                )
                self._obeyed[fields["boot"]] = fields["epoch"]
                self._world.count("orders obeyed")
            case _:
                pass


class TicketChecks:
    """Each attempt of a ticket is taken once, and its end is reported once."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._taken: set[tuple[str, int]] = set()
        self.enqueued: set[str] = set()
        self.done: set[str] = set()

    def observe(self, event: Event) -> None:
        fields = event.fields
        match event.name:
            case "enqueued":
                self.enqueued.add(fields["ticket"])
            case "takes":
                attempt = (fields["ticket"], fields["attempt"])
                check(attempt not in self._taken, f"{event.node} takes {attempt}, as another did")
                self._taken.add(attempt)
            case "done":
                ticket = fields["ticket"]
                check(ticket not in self.done, f"{event.node} ends {ticket}, which was done")
                self.done.add(ticket)
                self._world.count("tickets done")
            case _:
                pass


class Busy:
    """Knows which node is in the middle of something that must end exactly once: it took a ticket,
    runs a job, or created the record of a run and has no answer yet."""

    def __init__(self) -> None:
        self._noticed = asyncio.Event()
        self._node = ""

    def observe(self, event: Event) -> None:
        if event.name in ("takes", "runs"):
            self.notice(event.node)

    def notice(self, node: str) -> None:
        self._node = node
        self._noticed.set()

    async def next(self) -> str:
        """Waits for the next such moment; returns the node."""
        self._noticed.clear()
        await self._noticed.wait()
        return self._node


class RunChecks:
    """Each due time is run at most once, and its record goes from `running` to one outcome. After
    the faults every due time has its record, and all but the last have ended."""

    def __init__(self, world: World, every_s: float, busy: Busy) -> None:
        self._world = world
        self._busy = busy
        self._every_ms = round(every_s * 1000.0)
        self._run: set[str] = set()
        self._outcomes: dict[str, str] = {}

    def observe(self, event: Event) -> None:
        if event.name == "runs":
            slot = event.fields["slot"]
            check(slot not in self._run, f"{event.node} runs {slot}, which was run before")
            self._run.add(slot)
            self._world.count("due times run")

    def wrote(self, fields: dict[str, Any]) -> None:
        slot, outcome = fields["slot"], fields.get("outcome", "running")
        before = self._outcomes.get(slot, "")
        check(
            before == ("" if outcome == "running" else "running"),
            f"the record of {slot} goes from {before or 'nothing'!r} to {outcome!r}",
        )
        self._outcomes[slot] = outcome
        if outcome == "running":
            self._busy.notice(fields["member"])

    @property
    def have_ended(self) -> bool:
        """Whether all runs except the last one have ended."""
        return "running" not in [self._outcomes[slot] for slot in sorted(self._outcomes)[:-1]]

    @property
    def left_out(self) -> list[int]:
        found = sorted(map(int, self._outcomes))
        return sorted(set(range(found[0], found[-1], self._every_ms)) - set(found)) if found else []


class StoreChecks:
    """Watches the records: the epoch of the lease never falls, and a death replaces a stale
    heartbeat of that boot, once, and ends the boot for good."""

    def __init__(self, world: World, timing: Timing, runs: RunChecks) -> None:
        self.world = world
        self._runs = runs
        self._timing = timing
        self._epoch = 0
        self._journal = 0
        # The store lost its data, so that nothing but the epochs goes on.
        self.only_epochs = False
        self._dead: dict[str, int] = {}
        self._beats: dict[str, tuple[int, str, float]] = {}
        self.effects: dict[str, int] = {}
        # Tickets whose end is in the store.
        self.finals: set[str] = set()
        self._tokens: set[str] = set()
        self._last_warnings: dict[str, asyncio.Event] = {}

    async def last_warning(self, member_id: str, *, within_s: float) -> None:
        """Waits for the last warning about a member: its death comes next."""
        warned = self._last_warnings[member_id] = asyncio.Event()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await warned.wait()

    def wrote(self, writes: Sequence[Write], fence: Fence | None) -> None:
        try:
            for write in writes:
                self._check_write(write, fence)
        except Exception as error:
            self.world.loop.fail(error, "", None)

    def _check_write(self, write: Write, fence: Fence | None) -> None:
        match write:
            case Put():
                if write.token in self._tokens:
                    return
                self._tokens.add(write.token)
                self._put(write)
            case Delete(key=key) if key.startswith("heartbeat/"):
                self._beats.pop(keys.member_id_of(key), None)
            case Append(stream="journal"):
                assert fence is not None
                check(
                    fence.epoch >= self._journal,
                    f"epoch {fence.epoch} writes after epoch {self._journal} wrote",
                )
                self._journal = fence.epoch
            case _:
                pass

    def _put(self, write: Put) -> None:
        if write.key == keys.LEADER:
            epoch = _fields(write.value)["epoch"]
            check(epoch >= self._epoch, f"the lease falls from epoch {self._epoch} to {epoch}")
            self._epoch = epoch
        elif self.only_epochs:
            return
        elif write.key.startswith("heartbeat/"):
            self._beat(keys.member_id_of(write.key), _fields(write.value))
        elif write.key.startswith("warning/"):
            warned = self._last_warnings.get(keys.member_id_of(write.key))
            if _fields(write.value)["consecutive_warnings"] >= self._timing.max_warnings and warned:
                warned.set()
        elif write.key.startswith("effect/"):
            text = write.value.decode()
            self.effects[text] = self.effects.get(text, 0) + 1
            check(self.effects[text] == 1, f"{text!r} takes effect twice")
        elif write.key.startswith("final/"):
            ticket = _fields(write.value)["ticket_id"]
            check(ticket not in self.finals, f"the end of {ticket} is written twice")
            self.finals.add(ticket)
        elif write.key.startswith("run/"):
            self._runs.wrote(_fields(write.value))

    def _beat(self, member_id: str, fields: dict[str, Any]) -> None:
        boot, status = fields["incarnation"], fields.get("status", "alive")
        dead = self._dead.get(member_id, -1)
        if status == "alive":
            check(boot > dead, f"{member_id} beats as {boot}, which is dead")
            self._beats[member_id] = (boot, status, self.world.now)
            return
        check(boot != dead, f"{member_id} {boot} is declared dead twice")
        before = self._beats.get(member_id)
        if before is not None:
            check(
                before[0] <= boot,
                f"{member_id} {boot} is declared dead, {before[0]} lives",
            )
            age_s = self.world.now - before[2]
            check(
                before[0] != boot or age_s > self._timing.heartbeat_ttl * 0.95,
                f"{member_id} is declared dead {age_s:.2f} s after a beat",
            )
        self._dead[member_id] = boot
        self.world.count("deaths")


def _fields(value: bytes) -> dict[str, Any]:
    return msgspec.json.decode(value, type=dict[str, Any])
