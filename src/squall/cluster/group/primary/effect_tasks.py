"""Runs each effect of a policy as a task, and submits the commands among them.

An effect may fail; the policy asks for it again. The outcome goes to the policy that asked: one
that is made when this member leads again must not take it for the outcome of its own effect.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any, Protocol

from squall.api.errors import SquallError
from squall.cluster.group.committer import CommandCodec
from squall.cluster.ledger.interface import Ledger
from squall.cluster.protocol.command_outcomes import CommandOutcome, decode_outcome
from squall.cluster.protocol.job_keys import JobId
from squall.runtime.interfaces import Clock
from squall.runtime.log import Log
from squall.runtime.tasks import TaskRunner

LOG_AGAIN_S = 10.0
"""Effects are tried again every second; the same error is logged once per this interval."""
ACTIVATES_WITHIN_S = 1.0
ACTIVATION_POLL_S = 0.02

CarryOut = Callable[[], Awaitable[None]]


class Policy(Protocol):
    """Asks for effects: a director, a steward."""

    def submitted(self, tag: str, outcome: CommandOutcome | None, now: float) -> None: ...
    def failed(self, tag: str, now: float) -> None: ...
    def fail_job(self, job: JobId, error: Exception) -> None: ...


class Effect(Protocol):
    @property
    def tag(self) -> str: ...


@dataclass(frozen=True)
class EffectTasks:
    """Runs the effects of one member's policies."""

    ledger: Ledger
    codec: CommandCodec[Any]
    tasks: TaskRunner
    clock: Clock
    log: Log
    on_done: Callable[[], None]
    # Errors that were logged lately, and when.
    logged: dict[str, float] = field(default_factory=dict[str, float])

    def start(self, policy: Policy, effect: Effect, job: JobId | None, carry_out: CarryOut) -> None:
        """`job` is the one that the effect belongs to, if it is one."""
        name = f"{type(effect).__name__} {effect.tag}"
        self.tasks.start(name, self._run(policy, effect.tag, job, carry_out), group="effects")

    async def _run(self, policy: Policy, tag: str, job: JobId | None, carry_out: CarryOut) -> None:
        try:
            await carry_out()
        except (SquallError, OSError, KeyError) as error:
            self._log_failed(tag, str(error))
            policy.failed(tag, self.clock.now())
        except Exception as error:
            # No fault of the disk, a worker or another member: it would fail the same way again.
            # Without an end the effect would stay under way, and what waits for it with it.
            self._log_failed(tag, f"{type(error).__name__}: {error}")
            policy.failed(tag, self.clock.now())
            if job is not None:
                policy.fail_job(job, error)
        self.on_done()

    def _log_failed(self, tag: str, error: str) -> None:
        now = self.clock.now()
        if now - self.logged.get(error, -inf) >= LOG_AGAIN_S:
            for text in [text for text, at in self.logged.items() if now - at >= LOG_AGAIN_S]:
                del self.logged[text]
            self.logged[error] = now
            self.log.warning("effect_failed", effect=tag, error=error)

    async def submit(self, policy: Policy, tag: str, command: Any) -> None:
        """Carries out the effect that submits a command."""
        try:
            body = self.codec.encode(command)
        except SquallError as error:
            # The same command will be too large again, and while a placement is asked for, no
            # other job gets cores.
            raise ValueError(str(error)) from error
        await self._version_active()
        committed = await self.ledger.submit(body, version=self.codec.version)
        policy.submitted(tag, decode_outcome(committed.result), self.clock.now())

    async def _version_active(self) -> None:
        """Waits for the entry that activates this version: the first primary of a new group
        proposes it when it begins to lead. During an upgrade it comes later, and the command is
        refused meanwhile."""
        until = self.clock.now() + ACTIVATES_WITHIN_S
        while self.ledger.active_version < self.codec.version and self.clock.now() < until:
            await self.clock.sleep(ACTIVATION_POLL_S)
