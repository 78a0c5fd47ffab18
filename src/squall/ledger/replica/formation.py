"""Formation: how the group comes to exist, once.

The first of the named nodes asks all; when every one of them answered from an empty disk,
to this boot of the asker, it writes op 1 with all storage ids. It is shown to the others
only when it is durable here, so there is never a second one. Nothing follows op 1 until
all members stored it. A node whose disk is empty later finds a group that exists, takes
its state and waits for a committed Replace.

The group's id names its first disks too, so that a group that was formed anew under an old
name never listens to what is left of the former one.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from squall.ledger.interface import Fence
from squall.ledger.replica.messages import Entries, Fetch, FormAnswer, FormAsk, Packet
from squall.ledger.replica.normal import Normal
from squall.ledger.replica.reads import Rounds
from squall.ledger.replica.state import Core, formation_of
from squall.ledger.replica.transfer import Transfer
from squall.ledger.replica.types import (
    Config,
    Formation,
    GroupId,
    Kind,
    LogEntry,
    Member,
    Status,
    formed_config,
    is_whole,
    make_entry,
)
from squall.runtime.interfaces import NodeId

ID_BYTES = 4


class Forming:
    def __init__(self, core: Core, normal: Normal, rounds: Rounds, transfer: Transfer) -> None:
        self._core = core
        self._normal = normal
        self._rounds = rounds
        self._transfer = transfer
        self._answers: dict[NodeId, Member] = {}
        self._asked_at = float("-inf")
        self.group: GroupId = GroupId("")
        """The name of a group that this node may form; empty: it only joins."""
        self.facts = b""

    def tick(self) -> None:
        """Of a node that knows no group."""
        core = self._core
        if core.now - self._asked_at < core.timers.heartbeat_s:
            return
        self._asked_at = core.now
        if not self._may_form():
            # Somebody who belongs to the group answers.
            core.send(tuple(n for n in core.peers if n != core.me.node), FormAsk())
            return
        missing = tuple(n for n in core.peers if n != core.me.node and n not in self._answers)
        if missing:
            core.send(missing, FormAsk())
        else:
            self._form()

    def asked(self, packet: Packet) -> None:
        core = self._core
        if core.status is Status.FORMING:
            core.send(packet.sender.node, FormAnswer(packet.boot))

    def answered(self, packet: Packet, answer: FormAnswer) -> None:
        core = self._core
        if answer.asker != core.boot or not self._may_form():
            return
        if packet.sender.node in core.peers:
            self._answers[packet.sender.node] = packet.sender
            if len(self._answers) == len(core.peers) - 1:
                self._form()

    def group_heard(self, packet: Packet) -> None:
        """Somebody belongs to a group already: its op 1 says whether this node does."""
        core = self._core
        if isinstance(packet.body, Entries):
            self._learn(packet, packet.body)
        else:
            core.send(packet.sender.node, Fetch(1, packet.fence))
            core.send(packet.sender.node, Fetch(1, None))

    def _may_form(self) -> bool:
        core = self._core
        return bool(self.group) and bool(core.peers) and core.me.node == min(core.peers)

    def _form(self) -> None:
        core = self._core
        members = (core.me, *self._answers.values())
        config = formed_config(members)
        formation = Formation(unique_id(self.group, config), config, self.facts)
        entry = make_entry(
            1,
            Fence(0, 0),
            0,
            Kind.FORM,
            msgspec.msgpack.encode(formation),
            previous=core.log.end(),
        )
        self._store(entry, Status.NORMAL)
        core.clock.hear(0, core.now)
        self._normal.lead()
        self._rounds.lead()

    def _learn(self, packet: Packet, answer: Entries) -> None:
        core = self._core
        if answer.snapshot:
            self._become_learner(packet)
            self._transfer.entries(packet, answer)
            return
        first = answer.entries[0] if answer.entries else None
        if first is None or first.op != 1 or not is_whole(first):
            return
        if core.admits(formation_of(first).config, core.me):
            # It never acknowledged anything, so it may vote with this log.
            self._store(first, Status.VIEW_CHANGE)
            core.wait_anew()
        elif answer.fence is None:
            self._become_learner(packet)
            self._transfer.entries(packet, answer)

    def _become_learner(self, packet: Packet) -> None:
        self._core.status = Status.LEARNER
        self._core.group = packet.group

    def _store(self, entry: LogEntry, status: Status) -> None:
        core = self._core
        formation = formation_of(entry)
        core.group, core.config = formation.group, formation.config
        core.fence = Fence(0, 0)
        core.status = status
        if status is Status.NORMAL:
            core.last_normal = core.fence
        core.log.append(entry)
        core.persist(entries=(entry,))
        core.promised = core.issued


def unique_id(name: GroupId, config: Config) -> GroupId:
    disks = blake2b(msgspec.msgpack.encode(config), digest_size=ID_BYTES)
    return GroupId(f"{name}#{disks.hexdigest()}")
