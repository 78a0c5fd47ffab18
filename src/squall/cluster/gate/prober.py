"""Asks every datacenter for its state, again and again.

Each round asks the manager that leads. If it does not answer soon, the next manager is asked in the
same round, and so on: a datacenter whose primary just died is not missed. A round without any
answer is a miss. Rounds overlap, because a miss is known only after the timeout.
"""

from __future__ import annotations

import asyncio

from squall.cluster.gate.datacenter_links import DatacenterLinks
from squall.cluster.gate.routing.health import Health
from squall.cluster.gate.routing.known_datacenters import KnownDatacenters
from squall.cluster.protocol.gates.federation_messages import AskDatacenter, DatacenterState
from squall.cluster.wire.errors import WireError
from squall.cluster.wire.links.peer import Peer
from squall.runtime.interfaces import Clock
from squall.runtime.log import Log
from squall.runtime.tasks import TaskRunner

NEXT_MANAGER_SHARE = 0.1
"""Of the timeout: how long one manager is waited for before the next one is asked too. Half a
second with the default timeout, more than any round trip on earth."""
STARTING_SHARE = 0.2
"""Of the interval between two probes, while a datacenter starts."""
TASK_GROUP = "probes"


class DatacenterProber:
    """Drives `KnownDatacenters` for one gate."""

    def __init__(
        self,
        known: KnownDatacenters,
        links: DatacenterLinks,
        *,
        clock: Clock,
        tasks: TaskRunner,
        log: Log,
    ) -> None:
        self._known = known
        self._links = links
        self._clock = clock
        self._tasks = tasks
        self._log = log
        self._guarded = False
        self._began = clock.now()
        self.probes = 0
        self.misses = 0

    async def run(self) -> None:
        """Probes until it is cancelled."""
        while True:
            for name in self._known.names:
                self._tasks.start(f"probe {name}", self.probe(name), group=TASK_GROUP)
            self._report(self._clock.now())
            await self._links.close_former()
            await self._clock.sleep(self._pause_s())

    def _pause_s(self) -> float:
        """The pause before the next probe. It is short while a datacenter answers and has never
        been usable: an operator is setting it up and waits. After a while it is long again, because
        a datacenter may have no workers for days."""
        settings, now = self._known.settings, self._clock.now()
        starting = any(each.is_starting for each in self._known)
        if starting and now - self._began < settings.unreachable_s:
            return settings.probe_s * STARTING_SHARE
        return settings.probe_s

    async def probe(self, name: str) -> None:
        """One round of one datacenter."""
        settings = self._known.settings
        asked_at = self._clock.now()
        self._known.asked(name, asked_at)
        self.probes += 1
        round_ = _Round()
        for peer in await self._links.any_link(name, settings.probe_s):
            round_.moves.clear()
            self._tasks.start(f"ask {name}", self._ask(name, peer, round_), group=TASK_GROUP)
            await round_.next(settings.probe_timeout_s * NEXT_MANAGER_SHARE)
            if round_.answered:
                return
        left_s = asked_at + settings.probe_timeout_s - self._clock.now()
        while round_.asked and not round_.answered and left_s > 0:
            round_.moves.clear()
            await round_.next(left_s)
            left_s = asked_at + settings.probe_timeout_s - self._clock.now()
        if not round_.answered:
            self.misses += 1
            trouble = round_.trouble or self._links.trouble(name)
            self._known.missed(name, asked_at, self._clock.now(), trouble)

    async def _ask(self, name: str, peer: Peer, round_: _Round) -> None:
        sent_at = self._clock.now()
        round_.asked += 1
        try:
            state = await peer.request(AskDatacenter(), self._known.settings.probe_timeout_s)
            now = self._clock.now()
            round_.trouble = _foreign(name, peer, state)
            if not round_.trouble:
                round_.answered = True
                self._known[name].answered(state, (now - sent_at) * 1000.0, sent_at, now)
        except WireError as error:
            host, port = peer.address
            round_.trouble = f"{host}:{port}: {error}"
        finally:
            round_.asked -= 1
            round_.moves.set()

    def _report(self, now: float) -> None:
        """Logs what changed since the last round."""
        for change in self._known.check(now):
            worse = change.after.health > change.before.health
            log = self._log.warning if worse else self._log.info
            if change.after.health is Health.BUSY or change.before.health is Health.BUSY:
                # Normal: jobs begin and end.
                log = self._log.info
            log(
                "datacenter_health",
                datacenter=change.datacenter,
                health=change.after.health.label,
                before=change.before.health.label,
                reason=change.after.reason,
            )
        if self._known.guard_holds != self._guarded:
            self._guarded = self._known.guard_holds
            if self._guarded:
                self._log.warning(
                    "datacenters_silent_together",
                    text="most datacenters fell silent at once: check the network of this gate",
                )


class _Round:
    """The managers that were asked in one round, and whether one of them answered."""

    def __init__(self) -> None:
        self.asked = 0
        self.answered = False
        self.trouble = ""
        self.moves = asyncio.Event()

    async def next(self, timeout_s: float) -> None:
        """Returns when a manager answered or failed, or after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.moves.wait()
        except TimeoutError:
            pass


def _foreign(name: str, peer: Peer, state: DatacenterState) -> str:
    """The address of a manager that belongs to another datacenter: a mistake in the flags."""
    if state.datacenter == name:
        return ""
    host, port = peer.address
    return f"{host}:{port} is a manager of {state.datacenter}, not of {name}"
