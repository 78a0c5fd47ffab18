"""Only the coordinator is cut off from the store: it must have stopped before another member can
hold the lease. Used by tests and, at full size, by the acceptance.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.services.coordination.lab.cutting_proxy import CuttingProxy
from tests.services.coordination.lab.processes import Lab

MEMBERS = ["a", "b", "c"]


class CutLab(Lab):
    """Each member has a way of its own to the store."""

    def __init__(self, url: str, prefix: str, folder: Path, scale: float) -> None:
        super().__init__(url, prefix, folder, MEMBERS, scale)
        self.proxies = {member: CuttingProxy.before(url) for member in MEMBERS}
        self.urls = {member: proxy.url(url) for member, proxy in self.proxies.items()}
        self.watched = True

    def cut_the_leader(self, *, silently: bool) -> float:
        """Waits until another member wrote and the old one is back; returns the gap."""
        leader = self.leader()
        proxy = self.proxies[leader]
        begun = time.monotonic()
        proxy.cut() if silently else proxy.refuse()
        others = [member for member in MEMBERS if member != leader]
        try:
            self.until_acts(begun, by=others, within_s=self.failover_s)
            last = max(line["at"] for line in self.lines("acts") if line["member"] == leader)
            first = min(
                line["at"]
                for line in self.lines("acts")
                if line["member"] in others and line["at"] > begun
            )
        finally:
            proxy.join()
        self.until(
            lambda: any(
                line["member"] == leader and line["until"] >= last - self.timing.lease_ttl
                for line in self.lines("led")
            ),
            self.failover_s,
            f"{leader} knows that it does not lead",
        )
        self.until_written(first, others)
        return first - last

    def check_leading(self) -> int:
        """No two at a time, by one clock; how many changes there were."""
        led = self.lines("led")
        for line in led:
            early = [
                stood
                for stood in self.lines("stands")
                if stood["epoch"] > line["epoch"] and stood["at"] <= line["until"]
            ]
            assert not early, f"{early} while {line['member']} led: {line}"
        return len(led)

    async def check_effects(self) -> int:
        """What coordinators wrote through the store stands there by epoch."""
        epochs = await self.check_written()
        assert len(set(epochs)) > 1, f"effects of epochs {epochs}"
        return len(epochs)

    def close(self) -> list[int]:
        for proxy in self.proxies.values():
            proxy.join()
        codes = super().close()
        for proxy in self.proxies.values():
            proxy.close()
        return codes


@contextmanager
def running(url: str, prefix: str, folder: Path, scale: float) -> Iterator[CutLab]:
    lab = CutLab(url, prefix, folder, scale)
    try:
        for member in MEMBERS:
            lab.start(member)
        lab.until(lambda: len(lab.lines("started")) == 3, 30.0 * lab.scale, "all have started")
        lab.until_written(0.0, MEMBERS)
        yield lab
    finally:
        lab.close()
    lab.check()
    lab.check_leading()
