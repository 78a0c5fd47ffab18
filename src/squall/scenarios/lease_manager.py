"""A manager of the lease model: grants, declares lost, dispatches anew.

Only the leader acts. It grants after a round that it began after the request arrived,
and remembers the arrival of what it granted. It proposes a loss only when every lease
that anyone may have granted is over by its own clock, and grants nothing from then on.
Only a committed loss permits the next attempt.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import msgspec

from squall.runtime.interfaces import Address, Runtime
from squall.scenarios.lease_facts import HEARD_S, LEASES_S, Grant, Renew, Share, ToManager
from squall.scenarios.replica import Confirmed, Led
from squall.scenarios.replica_node import ReplicaNode
from squall.sim.checks import Probe

TICK_S = 0.05
SET_LEASE = 0.03
"""Probability per tick that the leader puts another lease length in force."""
BACKED_S = 1.0


class Asked(NamedTuple):
    """A request that waits for its round."""

    renew: Renew
    sender: Address
    arrival: float


class Manager:
    def __init__(
        self, runtime: Runtime, managers: list[str], probe: Probe, mutant: str | None
    ) -> None:
        self._runtime = runtime
        self._probe = probe
        self._mutant = mutant
        self._flag_s = runtime.random.uniform(*LEASES_S)
        """Of the mutant that takes the lease length from here."""
        self._share: Share | None = None
        """Committed, as this leader knows it; None before the first commit of its term."""
        self._proposed: Share | None = None
        self._since = 0.0
        """Latest of: leading, dispatch, arrival of the last granted request."""
        self._waiting: dict[int, list[Asked]] = {}
        self._heard: dict[str, tuple[float, str]] = {}
        self.node = ReplicaNode(
            runtime,
            managers,
            probe,
            messages=ToManager,
            on_led=self._led,
            on_confirmed=self._confirmed,
            on_other=self._asked,
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.node.run(), name="replica")
            group.create_task(self._tick(), name="decider")

    # Grants.

    def _asked(self, renew: Renew, sender: Address) -> None:
        now = self._runtime.clock.now()
        self._heard[renew.worker] = (now, renew.boot)
        asked = Asked(renew, sender, now)
        if self._mutant == "any_manager_renews":
            self._renew_unasked(asked)
        elif self.node.replica.leads:
            if self._mutant == "no_round":
                self._grant(asked)
                return
            self.node.apply(self.node.replica.open_round())
            self._waiting.setdefault(self.node.replica.round, []).append(asked)

    def _confirmed(self, confirmed: Confirmed) -> None:
        if confirmed.value:
            self._committed(msgspec.msgpack.decode(confirmed.value, type=Share))
        elif self._proposed is None:
            self._dispatch(attempt=1, lease_s=LEASES_S[0])
        rounds = [number for number in self._waiting if number <= confirmed.round]
        for number in rounds:
            for asked in self._waiting.pop(number):
                self._grant(asked)

    def _grant(self, asked: Asked) -> None:
        share = self._share
        losing = self._proposed is not None and self._proposed.lost
        if share is None or share.boot != asked.renew.boot:
            return
        if (share.lost or losing) and self._mutant != "grant_after_lost":
            return
        self._since = max(self._since, asked.arrival)
        self._send_grant(share, asked)

    def _send_grant(self, share: Share, asked: Asked) -> None:
        lease_s = self._flag_s if self._mutant == "lease_flag" else share.lease_s
        term = self.node.replica.term
        renew = asked.renew
        self.node.send(Grant(term, renew.boot, renew.request, share.attempt, lease_s), asked.sender)

    def _renew_unasked(self, asked: Asked) -> None:
        """Of the mutant: grants from what this manager last stored."""
        value = self.node.replica.accepted.value
        if value and asked.arrival - self.node.contact < BACKED_S:
            share = msgspec.msgpack.decode(value, type=Share)
            if share.boot == asked.renew.boot and not share.lost:
                if self.node.replica.leads:
                    self._since = max(self._since, asked.arrival)
                self._send_grant(share, asked)

    # Decisions.

    def _led(self, led: Led) -> None:
        self._share = None
        self._proposed = None
        self._waiting.clear()
        self._since = float("-inf") if self._mutant == "no_wait" else self._runtime.clock.now()

    def _committed(self, share: Share) -> None:
        before, self._share = self._share, share
        if self._proposed == share:
            self._proposed = None
            if before is None or share.attempt > before.attempt:
                self._since = self._runtime.clock.now()
        if before is None or before.attempt != share.attempt or before.lost != share.lost:
            self._probe(
                "knows", attempt=share.attempt, lost=share.lost, lease_s=round(share.lease_s, 3)
            )

    async def _tick(self) -> None:
        while True:
            await self._runtime.clock.sleep(TICK_S)
            share = self._share
            if share is None or self._proposed is not None or not self.node.replica.leads:
                continue
            if share.lost:
                self._dispatch(share.attempt + 1, share.lease_s)
            elif self._runtime.clock.now() - self._since >= self._lost_after_s(share):
                self._propose(msgspec.structs.replace(share, lost=True))
            elif self._runtime.random.random() < SET_LEASE:
                lease_s = self._runtime.random.uniform(*LEASES_S)
                self._flag_s = lease_s
                longest_s = max(share.longest_s, lease_s)
                self._propose(msgspec.structs.replace(share, lease_s=lease_s, longest_s=longest_s))

    def _lost_after_s(self, share: Share) -> float:
        if self._mutant == "lease_flag":
            share = msgspec.structs.replace(share, longest_s=self._flag_s)
        return share.lost_after_s

    def _dispatch(self, attempt: int, lease_s: float) -> None:
        now = self._runtime.clock.now()
        near = [
            (worker, boot)
            for worker, (when, boot) in sorted(self._heard.items())
            if now - when < HEARD_S
        ]
        if near:
            worker, boot = self._runtime.random.choice(near)
            self._probe("dispatches", attempt=attempt, worker=worker)
            self._propose(Share(attempt, worker, boot, False, lease_s, lease_s))

    def _propose(self, share: Share) -> None:
        self._proposed = share
        self.node.apply(self.node.replica.propose(msgspec.msgpack.encode(share)))
