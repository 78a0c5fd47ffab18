"""Remembers on disk where the addresses of a cluster lead: the managers that answered there.

A person, a script or a CI job names managers by `--to` for years; meanwhile each of them may be
replaced. The next command then finds the managers that the last one met. Only managers that hold
the cluster's secret are ever talked to, so an outdated address does no harm.

Nothing is written while the given addresses are all managers of the group: they lead there by
themselves. All clients of a user share the folder without a lock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from squall.runtime.addresses import address_in, shown_address
from squall.runtime.interfaces import Address, Runtime

FOLDER = "managers"
FILES_MAX = 100
"""One file for each list of addresses that was given; beyond it any one of the others goes."""


class KnownManagers:
    """The managers behind the given addresses of one cluster."""

    def __init__(self, runtime: Runtime, cluster: str, given: Sequence[Address]) -> None:
        self._runtime = runtime
        self._given = set(given)
        words = [cluster, *sorted(map(shown_address, given))]
        self._name = hashlib.sha256(" ".join(words).encode()).hexdigest()[:32] + ".json"

    async def read(self) -> list[Address]:
        try:
            data = await self._runtime.disk.read(f"{FOLDER}/{self._name}")
            texts = msgspec.json.decode(data, type=list[str])
        except (OSError, msgspec.MsgspecError):
            return []
        return [found for text in texts if (found := address_in(text)) is not None]

    async def write(self, managers: Sequence[Address]) -> None:
        """It is only a convenience for the next run, so an error does not end this one."""
        stored = await self.read()
        if list(managers) == stored or (not stored and set(managers) == self._given):
            return
        disk, path = self._runtime.disk, f"{FOLDER}/{self._name}"
        # A name of its own, then a rename: two clients may write at the same time.
        own = f"{path}.{self._runtime.boot}"
        texts = [shown_address(each) for each in managers]
        try:
            await disk.make_directory(FOLDER)
            await disk.write_atomic(own, msgspec.json.encode(texts))
            await disk.rename(own, path)
            others = [name for name in await disk.list(FOLDER) if name != self._name]
            for name in others[: max(len(others) + 1 - FILES_MAX, 0)]:
                await disk.remove(f"{FOLDER}/{name}")
        except OSError:
            return
