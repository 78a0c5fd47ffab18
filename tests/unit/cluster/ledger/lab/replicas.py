"""Members of a group on a perfect network and perfect disks, moved by hand.

The network can be cut, disks can stall, members can restart from what they synced.
"""

from __future__ import annotations

from collections import deque

from squall.cluster.ledger.replica.effects import Apply, Effect, Persist, Send
from squall.cluster.ledger.replica.replica import Replica
from squall.cluster.ledger.replica.types import (
    FAST,
    Base,
    GroupId,
    Kind,
    LogEntry,
    Recovered,
    StepRecord,
    StorageId,
)
from squall.runtime.interfaces import BootId, NodeId


class Disk:
    """What a member wrote and synced."""

    def __init__(self, storage: str) -> None:
        self.storage = storage
        self.records: list[StepRecord] = []
        self.mending = ""

    def recovered(self) -> Recovered:
        found = Recovered(StorageId(self.storage), Base(), mending=self.mending)
        for record in self.records:
            if record.keep >= 0:
                del found.entries[record.keep :]
            found.entries.extend(record.entries)
            found.fence, found.last_normal = record.fence, record.last_normal
            found.commit = max(found.commit, int(record.commit))
        return found


class Lab:
    """Members on a perfect network, unless they are cut off."""

    def __init__(self, *names: str, peers: tuple[str, ...] = ()) -> None:
        self.now = 100.0
        self.peers = tuple(NodeId(name) for name in (peers or names))
        self.disks = {name: Disk(f"disk of {name}") for name in names}
        self.boots = dict.fromkeys(names, 0)
        self.members: dict[str, Replica] = {}
        self.all_effects: dict[str, list[Effect]] = {name: [] for name in names}
        self.queue: deque[tuple[str, Send]] = deque()
        self.cut: set[str] = set()
        self.stalled: set[str] = set()
        """Members whose disks do not answer."""
        self.unsynced: dict[str, list[Effect]] = {name: [] for name in names}
        for name in names:
            self.start(name)

    def start(self, name: str) -> None:
        self.boots[name] += 1
        self.members[name] = Replica(
            node=NodeId(name),
            boot=BootId(f"{name}.{self.boots[name]}"),
            timers=FAST,
            draw=lambda: 0.5,
            peers=self.peers,
            recovered=self.disks[name].recovered(),
            version=1,
            now=self.now,
            form_group=GroupId("g") if NodeId(name) in self.peers else GroupId(""),
        )
        self.unsynced[name] = []
        self.take(name, self.members[name].start(self.now))

    def take(self, name: str, effects: list[Effect]) -> None:
        self.all_effects[name].extend(effects)
        if name in self.stalled:
            self.unsynced[name].extend(effects)
            for effect in effects:
                if isinstance(effect, Send) and not effect.after:
                    self.queue.append((name, effect))
            return
        number = 0
        for effect in effects:
            if isinstance(effect, Persist):
                self.disks[name].records.append(effect.record)
                number = effect.number
        self.queue.extend((name, effect) for effect in effects if isinstance(effect, Send))
        if number:
            self.take(name, self.members[name].persisted(number, self.now))

    def settle(self) -> None:
        for _ in range(10_000):
            if not self.queue:
                return
            sender, send = self.queue.popleft()
            for target in send.to:
                if target in self.members and not self.cut & {sender, target}:
                    self.take(target, self.members[target].handle(send.packet, self.now))
        raise AssertionError("they never stop talking")

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.02)):
            self.now += 0.02
            for name in list(self.members):
                self.take(name, self.members[name].tick(self.now))
            self.settle()

    def primary(self) -> str:
        serving = [name for name, each in self.members.items() if each.core.serving]
        live = [name for name in serving if name not in self.cut]
        assert len(live) == 1, live
        return live[0]

    def submit(self, name: str, *bodies: bytes) -> list[int]:
        ops, effects = self.members[name].submit([(1, body) for body in bodies], self.now)
        self.take(name, effects)
        self.settle()
        return ops

    def applied(self, name: str) -> list[bytes]:
        entries: list[LogEntry] = []
        for effect in self.all_effects[name]:
            if isinstance(effect, Apply):
                entries.extend(effect.entries)
        return [entry.body for entry in entries if entry.kind is Kind.COMMAND]

    def last(self, name: str, kind: type[Effect]) -> Effect | None:
        found = [effect for effect in self.all_effects[name] if isinstance(effect, kind)]
        return found[-1] if found else None
