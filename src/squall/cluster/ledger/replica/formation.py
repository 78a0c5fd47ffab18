"""Formation: the named nodes create the group, once.

The node with the lowest id asks all the others. When each has answered this boot from an empty
disk, the asker writes op 1 with all storage ids. It sends op 1 only after its own disk has
stored it, so there is never a second one, and proposes nothing more until all members have
stored it. A node that loses its disk later finds the existing group, takes its state, and waits
until a committed membership change admits the new disk.

The group's id includes its first disks: a second group formed under the same name ignores
messages from leftover members of the first.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from squall.cluster.ledger.interface import Fence
from squall.cluster.ledger.replica.catch_up import Transfer
from squall.cluster.ledger.replica.heartbeat_rounds import Rounds
from squall.cluster.ledger.replica.messages import Entries, Fetch, FormAnswer, FormAsk, Packet
from squall.cluster.ledger.replica.normal_operation import Normal
from squall.cluster.ledger.replica.state import Core, formation_of
from squall.cluster.ledger.replica.types import (
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
ASK_S = 0.25
"""How often the other nodes are asked at most: an operator waits for the group, and an hour of
questions costs nothing. A wide area has rounds of a second, which would be lost for each node that
starts a moment later."""


class Forming:
    """Forms a group from nodes with empty disks, or finds the group this node belongs to."""

    def __init__(self, core: Core, normal: Normal, rounds: Rounds, transfer: Transfer) -> None:
        self._core = core
        self._normal = normal
        self._rounds = rounds
        self._transfer = transfer
        self._answers: dict[NodeId, Member] = {}
        self._asked_at = float("-inf")
        # The name of the group that this node may form; if empty, it only joins one.
        self.group: GroupId = GroupId("")
        self.facts = b""

    def tick(self) -> None:
        """Called only while this node knows no group."""
        core = self._core
        if core.now < self.deadline():
            return
        self._asked_at = core.now
        if not self._may_form():
            # A member of an existing group answers with `Newer`: see `group_heard`.
            core.send(tuple(n for n in core.peers if n != core.me.node), FormAsk())
            return
        missing = tuple(n for n in core.peers if n != core.me.node and n not in self._answers)
        if missing:
            core.send(missing, FormAsk())
        else:
            self._form()

    def deadline(self) -> float:
        """When the other nodes are asked next."""
        return self._asked_at + min(self._core.timers.heartbeat_s, ASK_S)

    def asked(self, packet: Packet) -> None:
        core = self._core
        if core.status is Status.FORMING:
            core.send(packet.sender.node, FormAnswer(packet.boot))

    def answered(self, packet: Packet, answer: FormAnswer) -> None:
        core = self._core
        # An answer to an earlier boot may come from a disk that is no longer empty.
        if answer.asker != core.boot or not self._may_form():
            return
        if packet.sender.node in core.peers:
            self._answers[packet.sender.node] = packet.sender
            if len(self._answers) == len(core.peers) - 1:
                self._form()

    def group_heard(self, packet: Packet) -> None:
        """The sender belongs to a group. Fetches its op 1, which lists the first members."""
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
        core.clock.observe(0, core.now)
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
            # This disk has acknowledged nothing yet, so it may vote with op 1 as its log.
            self._store(first, Status.VIEW_CHANGE)
            core.restart_election_timer()
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
