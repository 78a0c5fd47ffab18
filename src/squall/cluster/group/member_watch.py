"""Tracks the other managers of a group: their last note, their addresses, and alarms.

Managers send each other a note twice a second. The notes spread the addresses of members that
joined later, and supply `squall group status`, `squall nodes`, and the log lines and metrics
about views and epochs. They decide nothing: the ledger has its own messages for that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from squall.cluster.group.wall_clocks import WallClocks
from squall.cluster.ledger.group_member.wire_transport import WireTransport
from squall.cluster.ledger.interface import Fence
from squall.cluster.ledger.replica.effects import Effect, EnteredEpoch, SteppedDown
from squall.cluster.protocol.group_messages import MemberNote, NameInUse
from squall.cluster.wire.errors import WireError
from squall.cluster.wire.links.dispatch import Incoming
from squall.runtime.addresses import address_in, shown_address
from squall.runtime.interfaces import Address, Clock, NodeId
from squall.runtime.log import Log

ALARMS_KEPT = 10
TAKES_OVER_S = 1.5
"""A process that sent no note for so long, of which there are two a second, gives its name to
another one: a restart."""
SAME_NAME_S = 2.0
"""Two processes that send notes under one name beside each other for so long both live. The last
notes of a dead one arrive sooner."""
RARE = (EnteredEpoch, SteppedDown)


@dataclass(frozen=True, slots=True)
class ReceivedNote:
    """The last note of a manager, the boot that sent it, when it arrived and from where."""

    note: MemberNote
    boot: str
    at: float
    place: str = ""
    host: str = ""
    """The numeric address that it came from; "" once its link is closed."""


@dataclass(slots=True)
class OtherProcess:
    """A process with the name of a member that is not the one in `heard`."""

    place: str
    boot: str
    since: float
    at: float
    # Empty until it is sure that both live.
    alarm: str = ""


class GroupWatch:
    """Collects one manager's notes, alarms and view changes, from before its log is open."""

    def __init__(self, node: str, members: Mapping[str, Address], clock: Clock, log: Log) -> None:
        self.node = node
        self.addresses: dict[str, Address] = dict(members)
        # None until the log is opened, and always None if the log is in a store.
        self.transport: WireTransport | None = None
        self.heard: dict[str, ReceivedNote] = {}
        # By name: two members were given one name by mistake. Only the notes of the first count, or
        # the address of the member would change with every note.
        self._others: dict[str, OtherProcess] = {}
        self.alarms: deque[str] = deque(maxlen=ALARMS_KEPT)
        self.alarm_count = 0
        self._alarmed: set[str] = set()
        self.view_changes = 0
        self.epochs = 0
        self.stepped_down = 0
        self._clock = clock
        self.log = log
        self.clocks = WallClocks(node, log)
        self._fence: Fence | None = None
        # The numeric address of this node on its links to others; "" while there was none.
        self.own_host = ""

    # Called by the ledger.

    def alarm_once(self, text: str) -> None:
        """For what is found again and again."""
        if text not in self._alarmed:
            self._alarmed.add(text)
            self.alarm(text)

    def alarm(self, text: str) -> None:
        self.alarm_count += 1
        self.alarms.append(text)
        self.log.error("alarm", text=text)

    def observe(self, effect: Effect) -> None:
        if not isinstance(effect, RARE):
            return
        if isinstance(effect, SteppedDown):
            self.stepped_down += 1
            fence = effect.fence
            self.log.warning("lead_ended", epoch=fence.epoch, view=fence.view, reason=effect.reason)
            return
        self.epochs += 1
        self.log.info(
            "epoch_entered",
            epoch=effect.config.epoch,
            members=", ".join(effect.config.nodes),
            is_member=effect.is_member,
        )

    def log_view_change(self, fence: Fence, leader: str | None) -> None:
        """Logs a new view, including one that another manager leads. The manager calls it
        regularly."""
        if fence == self._fence or leader is None:
            return
        if self._fence is not None:
            self.view_changes += 1
            self.log.info("view_changed", epoch=fence.epoch, view=fence.view, leader=leader)
        self._fence = fence

    # Addresses and notes.

    def receive(self, note: MemberNote, incoming: Incoming) -> None:
        node = str(incoming.peer.node)
        if node == self.node:
            return
        now = self._clock.now()
        if not self._is_first(node, note, incoming, now):
            return
        boot, place = str(incoming.peer.boot), _place(note, incoming)
        self.heard[node] = ReceivedNote(note, boot, now, place, _peer_host(incoming))
        self.linked(incoming)
        if note.wall_s:
            self.clocks.heard(node, note.wall_s - self._clock.wall(), now)
        own = address_in(note.address)
        if own is not None:
            self.reach(node, own)
        # A third party's note only adds unknown managers; a manager's own note decides its address.
        for name, shown in note.known.items():
            address = address_in(shown)
            if name != self.node and name not in self.addresses and address is not None:
                self.reach(name, address)

    def _is_first(self, node: str, note: MemberNote, incoming: Incoming, now: float) -> bool:
        """Whether the note is from the process that owns the name: the first one that was heard, as
        long as it is heard. Both processes learn that there are two."""
        boot, before = str(incoming.peer.boot), self.heard.get(node)
        other = self._others.get(node)
        is_first = before is None or before.boot == boot or now - before.at > TAKES_OVER_S
        if other is not None and (
            now - other.at > TAKES_OVER_S or (is_first and other.boot == boot)
        ):
            # It is gone, or the one that had the name is.
            del self._others[node]
            other = None
        if not is_first:
            if other is None or other.boot != boot:
                place = _place(note, incoming)
                other = self._others[node] = OtherProcess(place, boot, now, now)
            other.at = now
        elif other is not None and now - other.since >= SAME_NAME_S:
            places = " and ".join(sorted((_place(note, incoming), other.place)))
            other.alarm = (
                f"two processes run as {node}, on {places}: stop one, or give it another name"
            )
        if other is not None and other.alarm:
            self.alarm_once(other.alarm)
            # If its queue is full, its next note is answered.
            with suppress(WireError):
                incoming.channel.send(NameInUse(other.alarm))
        return is_first

    def linked(self, incoming: Incoming) -> None:
        """Learns this node's own address from the link of a message."""
        if self.own_host:
            return
        link = incoming.channel.link
        self.own_host = link.local_host if link is not None else ""

    def name_in_use(self, message: NameInUse, incoming: Incoming) -> None:
        self.alarm_once(message.text)

    def same_name(self, node: str) -> str:
        """That two running processes have this name; "" if not."""
        other = self._others.get(node)
        is_heard = other is not None and self._clock.now() - other.at <= TAKES_OVER_S
        return other.alarm if other is not None and is_heard else ""

    def reach(self, node: str, address: Address) -> None:
        """Uses `address` for `node` from now on."""
        if self.addresses.get(node) == address or self.transport is None:
            return
        self.log.info("manager_found", manager=node, address=shown_address(address))
        self.addresses[node] = address
        self.transport.add(NodeId(node), address)

    def broadcast(self, note: MemberNote) -> None:
        self.clocks.report(self._clock.now())
        if self.transport is not None:
            self.transport.broadcast(note)

    def wall_s(self) -> float:
        """The wall time to show to people (R10)."""
        return self.clocks.corrected(self._clock.wall(), self._clock.now())

    def clock_offsets(self) -> dict[str, float]:
        """By manager: how many seconds its wall clock is ahead of the median of them all."""
        return self.clocks.offsets(self._clock.now())

    def address_of(self, node: str | None) -> str:
        address = self.addresses.get(node) if node is not None else None
        return shown_address(address) if address is not None else ""

    def silent_s(self, node: str) -> float:
        """Seconds since the last note of `node`; negative if there was none."""
        heard = self.heard.get(node)
        return -1.0 if heard is None else max(self._clock.now() - heard.at, 0.0)

    def heard_since(self, at: float) -> set[str]:
        """The managers that have reported their storage id since `at`."""
        return {node for node, each in self.heard.items() if each.at >= at and each.note.storage}

    def storages(self, within_s: float) -> dict[str, str]:
        """The storage ids of the managers that sent a note within `within_s`."""
        now = self._clock.now()
        return {
            node: heard.note.storage
            for node, heard in self.heard.items()
            if heard.note.storage and now - heard.at <= within_s
        }


def _place(note: MemberNote, incoming: Incoming) -> str:
    """The machine and the process that sent a note. The address in it is that of the flags."""
    return f"{_peer_host(incoming) or note.address} (pid {note.pid})"


def _peer_host(incoming: Incoming) -> str:
    link = incoming.channel.link
    return link.peer_host if link is not None else ""
