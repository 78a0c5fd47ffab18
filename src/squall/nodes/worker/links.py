"""The managers of a worker: several addresses of one group, one of them asked at a time.

Who does not answer, or does not lead, is left for the next that is not known to be away;
who leads may be named by the one that does not, and is asked at once. If that one did not
answer a moment ago, the one that names it is asked to relay, until there is a link again.
Who begins dials all that were given and takes the first that answers: a machine that is gone
answers nothing, and to wait for each such one would take seconds.

A lease is as short as a change of the primary allows: a worker that waits long between two
tries, or asks the dead again and again, loses it although somebody leads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from squall.runtime.interfaces import Address
from squall.wire.errors import RemoteError, WireError
from squall.wire.handshake import Session
from squall.wire.header import MessageClass
from squall.wire.messages import ErrorCode
from squall.wire.peer import Peer
from squall.wire.switchboard import Switchboard

BACKOFF_S = 0.05
BACKOFF_MAX_S = 1.0
LOOK_S = 0.01
AWAY_S = 10.0
"""How long a manager that did not answer is not asked again, unless a new link to it was
made."""


class Slot:
    """What arrives here is little, and all of it is wanted."""

    waits = False

    async def turn(self) -> None: ...
    def release(self) -> None: ...


def admit(message_class: MessageClass, source: str) -> Slot:
    return Slot()


class ManagerLinks:
    def __init__(
        self,
        board: Switchboard,
        addresses: Sequence[Address],
        *,
        longest_s: Callable[[], float] = lambda: BACKOFF_MAX_S,
    ) -> None:
        """`longest_s` is the longest wait between two tries: that between two sessions."""
        self._board = board
        self._longest_s = longest_s
        self._addresses = list(dict.fromkeys(addresses))
        self._given = len(self._addresses)
        """Those after them were named by managers; one that does not answer is forgotten."""
        self._peers: dict[Address, Peer] = {}
        self._at = 0
        self._failures = 0
        self._away: dict[Address, tuple[float, Session | None]] = {}
        """Who did not answer: since when, and over which link."""
        self._relayed_to: Address | None = None

    @property
    def current(self) -> Peer:
        return self.at(self._addresses[self._at])

    @property
    def relays(self) -> bool:
        """The one that is asked now does not lead, and shall ask who does."""
        return self._relayed_to is not None

    def at(self, address: Address) -> Peer:
        peer = self._peers.get(address)
        if peer is None:
            peer = self._peers[address] = Peer(self._board, address)
            peer.start()
        return peer

    async def reach_any(self) -> dict[str, Exception]:
        """Turns to the manager that can be reached first, the present one if it can; nothing
        is left of the other dials. Without one in time all stays as it is. What is known to be
        wrong with the others, by address."""
        clock = self._board.runtime.clock
        if len(self._addresses) == 1 or self.current.control.session is not None:
            return {}
        until = clock.now() + self._board.limits.dial_timeout_s
        order = self._addresses[self._at :] + self._addresses[: self._at]
        reached: list[Address] = []
        while not reached and clock.now() < until:
            await clock.sleep(LOOK_S)
            reached = [each for each in order if self.at(each).control.session is not None]
        errors = {each: self.at(each).last_error for each in order if each not in reached}
        if reached:
            self._go_to(reached[0])
            for each in order:
                if each != reached[0]:
                    await self._peers.pop(each).close()
        return {f"{host}:{port}": error for (host, port), error in errors.items() if error}

    @property
    def shown(self) -> str:
        host, port = self._addresses[self._at]
        return f"{host}:{port}"

    def worked(self) -> None:
        self._failures = 0
        primary = self._relayed_to
        if primary is None:
            self._away.pop(self._addresses[self._at], None)
        elif not self._is_away(primary):
            self._go_to(primary)

    def failed(self, error: WireError) -> float:
        """How long to wait before the next try, which may go to another manager."""
        self._failures += 1
        most_s = max(min(self._longest_s(), BACKOFF_MAX_S), BACKOFF_S)
        wait_s = min(BACKOFF_S * 2.0 ** min(self._failures - 1, 10), most_s)
        spread = self._board.runtime.random.uniform(0.5, 1.0)
        if isinstance(error, RemoteError):
            if error.code == ErrorCode.NOT_PRIMARY:
                before = self._at
                self._turn_to(error.primary)
                named = bool(error.primary) and self._at != before
                return spread * (BACKOFF_S if named else wait_s)
            return max(spread * wait_s, error.retry_after_s)
        since = self._board.runtime.clock.now()
        failed = self._addresses[self._at]
        self._away[failed] = (since, self.current.control.session)
        self._turn_to("")
        if failed not in self._addresses[: self._given]:
            now = self._addresses[self._at]
            self._addresses.remove(failed)
            self._at = self._addresses.index(now) if now in self._addresses else 0
        return spread * wait_s

    async def close(self) -> None:
        for peer in self._peers.values():
            await peer.close(drain_s=0.2)

    def _turn_to(self, primary: str) -> None:
        """To who leads, if it is named; else to the next that may answer."""
        named = address_in(primary)
        if named is None:
            self._go_to(self._next())
        elif self._is_away(named):
            self._relayed_to = named
        else:
            self._go_to(named)

    def _next(self) -> Address:
        after = self._addresses[self._at + 1 :] + self._addresses[: self._at + 1]
        return next((each for each in after if not self._is_away(each)), after[0])

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
        if now is not None and now is not link:
            return False
        return self._board.runtime.clock.now() - since < AWAY_S


def address_in(text: str) -> Address | None:
    host, _, port = text.rpartition(":")
    return (host, int(port)) if host and port.isdecimal() else None
