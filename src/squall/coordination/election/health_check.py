"""Asks the application whether this member is fit to lead: the option `health_check`.

A member that is not fit does not stand for election; a leader that is not fit resigns at the end
of its term at the latest. A check that raises, or takes longer than a heartbeat interval, counts as
unfit. The checker ends no term: the election reads `fit` and decides.
"""

from __future__ import annotations

import asyncio
import inspect

from squall.coordination.member_parts import MemberParts
from squall.coordination.options import HealthCheck


class HealthChecker:
    """Calls the check once per heartbeat interval; without a check a member is always fit."""

    def __init__(self, parts: MemberParts, check: HealthCheck | None) -> None:
        self.fit = True
        self._parts = parts
        self._check = check

    def start(self) -> None:
        if self._check is not None:
            self._parts.tasks.start("health check", self._run(self._check))

    async def _run(self, check: HealthCheck) -> None:
        while True:
            before, self.fit = self.fit, await self._ask(check)
            if before != self.fit:
                self._parts.log.warning("health_check", fit=self.fit)
            await self._parts.clock.sleep(self._parts.timing.heartbeat_interval)

    async def _ask(self, check: HealthCheck) -> bool:
        try:
            async with asyncio.timeout(self._parts.timing.heartbeat_interval):
                answer = check()
                return bool(await answer if inspect.isawaitable(answer) else answer)
        except Exception as error:
            self._parts.on_failure("health_check_failed", error)
            return False
