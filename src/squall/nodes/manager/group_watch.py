"""What one manager knows of its group: who was heard, where they are, what went wrong.

Managers tell each other how they are twice a second. From that come the addresses of
members that joined later, the lines of `squall group status` and `squall nodes`, the logs
and metrics of views and epochs. Nothing here decides anything: the log's own messages do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from squall.ledger.interface import Fence
from squall.ledger.replica.effects import Effect, EnteredEpoch, SteppedDown
from squall.ledger.replica.wire_transport import WireTransport
from squall.nodes.group_messages import MemberNote
from squall.runtime.interfaces import Address, Clock, NodeId
from squall.runtime.log import Log
from squall.wire.dispatch import Incoming

ALARMS_KEPT = 10
RARE = (EnteredEpoch, SteppedDown)


@dataclass(frozen=True, slots=True)
class Heard:
    note: MemberNote
    boot: str
    at: float


class GroupWatch:
    """Of one manager, from before its log is opened."""

    def __init__(self, node: str, members: Mapping[str, Address], clock: Clock, log: Log) -> None:
        self.node = node
        self.addresses: dict[str, Address] = dict(members)
        self.transport: WireTransport | None = None
        """None in a manager that was started alone."""
        self.heard: dict[str, Heard] = {}
        self.alarms: deque[str] = deque(maxlen=ALARMS_KEPT)
        self.alarm_count = 0
        self.view_changes = 0
        self.epochs = 0
        self.stepped_down = 0
        self._clock = clock
        self.log = log
        self._fence: Fence | None = None

    # What the log tells.

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

    def look(self, fence: Fence, leader: str | None) -> None:
        """Once in a while: a view that others changed is told too."""
        if fence == self._fence or leader is None:
            return
        if self._fence is not None:
            self.view_changes += 1
            self.log.info("view_changed", epoch=fence.epoch, view=fence.view, leader=leader)
        self._fence = fence

    # Who is where.

    def hear(self, note: MemberNote, incoming: Incoming) -> None:
        node = str(incoming.peer.node)
        if node == self.node:
            return
        self.heard[node] = Heard(note, str(incoming.peer.boot), self._clock.now())
        own = address_in(note.address)
        if own is not None:
            self.reach(node, own)
        for name, shown in note.known.items():
            address = address_in(shown)
            if name != self.node and name not in self.addresses and address is not None:
                self.reach(name, address)

    def reach(self, node: str, address: Address) -> None:
        """From now on `node` is found there."""
        if self.addresses.get(node) == address or self.transport is None:
            return
        self.log.info("manager_found", manager=node, address=shown_address(address))
        self.addresses[node] = address
        self.transport.add(NodeId(node), address)

    def tell(self, note: MemberNote) -> None:
        if self.transport is not None:
            self.transport.tell(note)

    def address_of(self, node: str | None) -> str:
        address = self.addresses.get(node) if node is not None else None
        return shown_address(address) if address is not None else ""

    def silent_s(self, node: str) -> float:
        """Since its last sign of life; negative: never heard."""
        heard = self.heard.get(node)
        return -1.0 if heard is None else max(self._clock.now() - heard.at, 0.0)

    def heard_since(self, at: float) -> set[str]:
        """Who told since then which disk it has."""
        return {node for node, each in self.heard.items() if each.at >= at and each.note.storage}

    def storages(self, within_s: float) -> dict[str, str]:
        """The disks of those that were heard lately."""
        now = self._clock.now()
        return {
            node: heard.note.storage
            for node, heard in self.heard.items()
            if heard.note.storage and now - heard.at <= within_s
        }


def shown_address(address: Address) -> str:
    return f"{address[0]}:{address[1]}"


def address_in(text: str) -> Address | None:
    host, _, port = text.rpartition(":")
    return (host, int(port)) if host and port.isdecimal() else None
