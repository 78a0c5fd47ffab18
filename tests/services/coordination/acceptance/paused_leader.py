"""A coordinator is stopped between a decision and its write, and resumed after another one has
written: its write must be refused, and each effect is stored once. Used by tests and, at full
size, by the acceptance.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

from squall.coordination.stores.open import make_store
from squall.runtime.real.runtime import RealClock
from tests.services.coordination.lab.held_write import Effects, order_of
from tests.services.coordination.lab.processes import Lab

MEMBERS = ["a", "b", "c"]


class PausedLab(Lab):
    def __init__(self, url: str, prefix: str, folder: Path, scale: float, holds: str) -> None:
        super().__init__(url, prefix, folder, MEMBERS, scale)
        self.holds = holds

    def begin(self) -> None:
        self.start_all()
        self.until_written(0.0, self.members)

    def pause_the_leader(self) -> dict[str, str]:
        """What the store answered to its late write, and why it stopped leading."""
        leader = self.leader()
        asked = time.monotonic()
        order_of(self.folder / f"{leader}.jsonl").touch()
        self.until(lambda: self._since(asked, leader, "held"), self.failover_s, "it is held")
        (held,) = self._since(asked, leader, "held")
        others = [each for each in self.members if each != leader]
        self.until_written(held["at"], others)
        woken = time.monotonic()
        self.resume(leader)
        for what in ("late", "demoted"):
            self.until(
                lambda what=what: self._since(woken, leader, what), self.failover_s, f"{what} of it"
            )
        (late,) = self._since(woken, leader, "late")
        demoted = self._since(woken, leader, "demoted")[0]
        assert late["epoch"] == demoted["epoch"] == held["epoch"]
        self.until_written(time.monotonic(), self.members)
        return {"answer": late["answer"], "reason": demoted["reason"]}

    def _since(self, at: float, member: str, what: str) -> list[dict[str, str]]:
        return [each for each in self.lines(what) if each["member"] == member and each["at"] > at]

    def check_pause(self, found: dict[str, str]) -> None:
        """One that knows how long it slept stops by its own clock, maybe before the answer."""
        assert found["answer"] == "StaleEpochError", found
        reasons = ("fenced",) if self.holds == "unaware" else ("fenced", "lease_lost")
        assert found["reason"] in reasons, found

    async def check_effects(self) -> int:
        """Each of them once, in their order."""
        store = make_store(self.url, RealClock(), random.Random(), prefix=self.prefix)
        effects = Effects(store)
        try:
            await effects.read()
        finally:
            await store.close()
        assert effects.numbers == list(range(1, len(effects.numbers) + 1)), effects.numbers
        return len(effects.numbers)
