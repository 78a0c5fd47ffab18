"""The addresses of managers or gates that a user gave, with the names among them looked up.

A name ("dns:", "srv:") stands for several nodes, each with links of its own. It is looked up in
the background: plain addresses are dialled meanwhile, and a DNS server that is down delays nothing
else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from squall.cluster.wire.links.dispatch import TASK_GROUP
from squall.cluster.wire.links.switchboard import Switchboard
from squall.runtime.addresses import is_name, shown_address
from squall.runtime.interfaces import Address, NotResolved


class NamedAddresses:
    """The given addresses, and what is known behind their names."""

    def __init__(
        self, board: Switchboard, given: Sequence[Address], on_found: Callable[[], None]
    ) -> None:
        """`on_found` is called when a lookup has ended that found something."""
        self._board = board
        self._on_found = on_found
        self.plain = tuple(each for each in dict.fromkeys(given) if not is_name(each))
        self.names = tuple(each for each in dict.fromkeys(given) if is_name(each))
        # What the names stood for when they were looked up last.
        self.found: tuple[Address, ...] = ()
        # Names without an address, and why.
        self.errors: dict[str, Exception] = {}
        # Whether lookups are under way.
        self.is_busy = False

    def look_up(self) -> None:
        """Looks the names up again, unless what is known of them still holds. Returns at once."""
        if self.names and not self.is_busy:
            self.is_busy = True
            self._board.tasks.start("lookup of managers", self._look_up(), group=TASK_GROUP)

    def failed(self) -> None:
        """No address of the names answers: looks them up before their TTL ends."""
        for name in self.names:
            self._board.names.failed(name)
        self.look_up()

    def forget(self) -> None:
        """Nothing of it is wanted any more."""
        self.plain = self.names = self.found = ()
        self.errors.clear()

    async def _look_up(self) -> None:
        try:
            found = await asyncio.gather(*map(self._addresses, self.names))
        finally:
            self.is_busy = False
        merged = tuple(dict.fromkeys(address for each in found for address in each))
        if merged and self.names:
            self.found = merged
            self._on_found()

    async def _addresses(self, name: Address) -> list[Address]:
        try:
            found = await self._board.names.addresses(name)
        except NotResolved as error:
            self.errors[shown_address(name)] = error
            return []
        self.errors.pop(shown_address(name), None)
        return found
