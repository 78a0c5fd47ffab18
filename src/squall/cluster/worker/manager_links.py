"""The links of a worker to its managers: several addresses of one group, one asked at a time.

The worker leaves a manager that does not answer, or does not lead, for the next one that is not
known to be away. A manager that does not lead may name the primary, which is asked next. As long
as there is no link to the primary, or it did not answer a moment ago, the manager that names it is
asked to relay. At the start the worker dials all managers and takes the first that answers: a
machine that is gone does not answer, and waiting for each would take seconds.

Names ("dns:", "srv:") are looked up at the start, and again when no known manager answers. Between
these the worker uses the group's own list of its managers, which its answers bring.

A lease is as short as a change of the primary allows. A worker that waits long between two
tries, or asks dead managers again and again, loses its leases although there is a primary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from squall.cluster.wire.errors import NotSent, RemoteError, WireError
from squall.cluster.wire.header import MessageClass
from squall.cluster.wire.links.handshake import Session
from squall.cluster.wire.links.named_addresses import NamedAddresses
from squall.cluster.wire.links.peer import Peer
from squall.cluster.wire.links.switchboard import Switchboard
from squall.cluster.wire.messages import ErrorCode
from squall.runtime.addresses import address_in, shown_address
from squall.runtime.backoff import Backoff
from squall.runtime.interfaces import Address, NodeId

RETRY = Backoff(first_s=0.05, cap_s=1.0, jitter=0.5)
"""Tries of a session request. They begin fast, because a lease runs, and never wait longer than
a session interval. Jitter, because all workers lose the same primary at the same moment."""
DIAL_POLL_S = 0.01
AWAY_S = 10.0
"""How long a manager that did not answer is not asked again over the same link. Without a link it
is away until there is one: it is dialled again and again."""


class OpenSlot:
    """Admits every message: few arrive at a worker, and all are wanted."""

    waits = False

    async def turn(self) -> None: ...
    def release(self) -> None: ...


def admit_all(message_class: MessageClass, source: str) -> OpenSlot:
    return OpenSlot()


class ManagerLinks:
    """Chooses the manager to ask, and the pause before the next try."""

    def __init__(
        self,
        board: Switchboard,
        addresses: Sequence[Address],
        *,
        longest_s: Callable[[], float] = lambda: RETRY.cap_s,
    ) -> None:
        """`longest_s` returns the longest wait between two tries: the session interval."""
        self._board = board
        self._longest_s = longest_s
        # Given at the start, and asked again for ever: the list of managers may be outdated.
        self._given = NamedAddresses(board, addresses, self._names_changed)
        # What the names stand for, from their lookup until the group sends its list.
        self._found: tuple[Address, ...] = ()
        # The group's own list.
        self._managers: tuple[Address, ...] = ()
        # A name itself is dialled only while nothing else is known.
        self._addresses = list(self._given.plain or self._given.names)
        # All but those that were named as a primary; one of these that does not answer is
        # forgotten.
        self._known = frozenset(self._addresses)
        self._peers: dict[Address, Peer] = {}
        self._at = 0
        self._failures = 0
        # Managers that did not answer: since when, and over which link.
        self._away: dict[Address, tuple[float, Session | None]] = {}
        # The primary that the current manager relays to, because it is away.
        self._relayed_to: Address | None = None

    @property
    def current(self) -> Peer:
        return self.at(self._addresses[self._at])

    @property
    def relays(self) -> bool:
        """The current manager does not lead and is asked to relay to the primary."""
        return self._relayed_to is not None

    def at(self, address: Address) -> Peer:
        peer = self._peers.get(address)
        if peer is None:
            peer = self._peers[address] = Peer(self._board, address)
            peer.start()
        return peer

    def send_to(self, node: NodeId, message: msgspec.Struct) -> None:
        """Sends over the control link to that manager, if there is one. Raises WireError."""
        for peer in self._peers.values():
            session = peer.control.session
            if session is not None and session.peer.node == node:
                peer.send(message)
                return
        raise NotSent(f"there is no link to {node}")

    async def reach_any(self) -> dict[str, Exception]:
        """Dials all managers without a link and turns to the first that answers, the current one
        if it can; the other dials are closed. If none answers in time it turns back to one that has
        a link, or nothing changes. Returns the errors of the others by address."""
        clock = self._board.runtime.clock
        await self._first_lookup()
        if len(self._addresses) == 1 or self.current.control.session is not None:
            return dict(self._given.errors)
        until = clock.now() + self._board.limits.dial_timeout_s
        # A manager with a link was asked before and does not lead. To turn back to it would end
        # the dial of the primary that it names, and so for ever if a dial takes longer than a poll.
        order = [
            each
            for each in self._addresses[self._at :] + self._addresses[: self._at]
            if self.at(each).control.session is None
        ]
        reached: list[Address] = []
        while not reached and clock.now() < until:
            await clock.sleep(DIAL_POLL_S)
            reached = [each for each in order if self.at(each).control.session is not None]
        errors = {each: self.at(each).last_error for each in order if each not in reached}
        linked = [each for each in self._addresses if each not in order]
        if order[0] not in reached and (reached or linked):
            # It may be the primary that the other one names: then that one relays.
            self._away[order[0]] = (clock.now(), None)
            self._go_to((reached or linked)[0])
        if reached:
            self._go_to(reached[0])
            for each in order:
                if each != reached[0]:
                    await self._peers.pop(each).close()
        named = {shown_address(each): error for each, error in errors.items() if error}
        return {**self._given.errors, **named}

    async def _first_lookup(self) -> None:
        """Returns when the names are looked up, or a manager answers that needed no lookup."""
        self._given.look_up()
        clock = self._board.runtime.clock
        while self._given.is_busy and not self._found:
            await clock.sleep(DIAL_POLL_S)
            dialled = [self.at(each) for each in self._addresses if each not in self._given.names]
            if any(each.control.session is not None for each in dialled):
                return

    def _names_changed(self) -> None:
        self._found = self._given.found
        self._rebuild()
        for name in [each for each in self._peers if each in self._given.names]:
            # It leads to one of the managers that are dialled directly from now on.
            self._board.tasks.start("close", self._peers.pop(name).close())

    @property
    def shown(self) -> str:
        return shown_address(self._addresses[self._at])

    def worked(self) -> None:
        self._failures = 0
        primary = self._relayed_to
        if primary is None:
            self._away.pop(self._addresses[self._at], None)
        elif self._is_linked(primary) and not self._is_away(primary):
            self._go_to(primary)

    def failed(self, error: WireError) -> float:
        """Returns the wait before the next try, which may go to another manager."""
        self._failures += 1
        cap_s = max(min(self._longest_s(), RETRY.cap_s), RETRY.first_s)
        uniform = self._board.runtime.random.uniform
        wait_s = replace(RETRY, cap_s=cap_s).delay_s(self._failures, uniform)
        if isinstance(error, RemoteError):
            if error.code == ErrorCode.NOT_PRIMARY:
                before = self._at
                self._turn_to(error.primary)
                named = bool(error.primary) and self._at != before
                # The primary is known: no reason to wait.
                return RETRY.delay_s(1, uniform) if named else wait_s
            return max(wait_s, error.retry_after_s)
        since = self._board.runtime.clock.now()
        failed = self._addresses[self._at]
        self._away[failed] = (since, self.current.control.session)
        if all(self._is_away(each) for each in self._addresses):
            self._given.failed()
        self._turn_to("")
        if failed not in self._known:
            now = self._addresses[self._at]
            self._addresses.remove(failed)
            self._at = self._addresses.index(now) if now in self._addresses else 0
        return wait_s

    async def learn(self, managers: Sequence[Address]) -> None:
        """Takes over the list of the group's managers; links to former ones are closed."""
        self._managers = tuple(managers)
        self._found = ()
        self._rebuild()
        for former in [each for each in self._peers if each not in self._addresses]:
            self._away.pop(former, None)
            await self._peers.pop(former).close()

    def _rebuild(self) -> None:
        """The current manager stays the current one."""
        now = self._addresses[self._at]
        known = dict.fromkeys((*self._given.plain, *self._found, *self._managers))
        kept = list(known or self._given.names)
        self._known = frozenset(kept)
        if now not in kept and now not in self._given.names:
            kept.append(now)
        self._addresses = kept
        self._at = kept.index(now) if now in kept else 0

    async def close(self) -> None:
        for peer in self._peers.values():
            await peer.close(drain_s=0.2)

    def _turn_to(self, primary: str) -> None:
        """Turns to the primary if it is named, else to the next manager that may answer."""
        named = address_in(primary)
        if named is None:
            self._go_to(self._next())
        elif named != self._addresses[self._at] and self._relays_to(named):
            self._relayed_to = named
        else:
            self._go_to(named)

    def _next(self) -> Address:
        """A manager with a link answers at once; the others are dialled meanwhile."""
        after = self._addresses[self._at + 1 :] + self._addresses[: self._at + 1]
        usable = [each for each in after if not self._is_away(each)]
        linked = [each for each in usable if self._is_linked(each)]
        return (linked or usable or after)[0]

    def _relays_to(self, primary: Address) -> bool:
        """Whether the current manager, which named the primary, is asked to relay: the primary is
        away, or there is no link to it yet. A lease may end before there is one."""
        is_slower = self.current.control.session is not None and not self._is_linked(primary)
        return is_slower or self._is_away(primary)

    def _is_linked(self, address: Address) -> bool:
        """Also dials it."""
        return self.at(address).control.session is not None

    def _go_to(self, address: Address) -> None:
        if address not in self._addresses:
            self._addresses.append(address)
        self._at = self._addresses.index(address)
        self._relayed_to = None

    def _is_away(self, address: Address) -> bool:
        if address not in self._away:
            return False
        since, link = self._away[address]
        now = self.at(address).control.session
        if now is None:
            return True
        return now is link and self._board.runtime.clock.now() - since < AWAY_S


def addresses_in(texts: Sequence[str]) -> list[Address]:
    return [found for text in texts if (found := address_in(text)) is not None]
