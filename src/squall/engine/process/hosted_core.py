"""One core process of a worker, and the attempts that run in it.

Attempts at shares of one job that are placed on the same core run in one process, each of another
workflow: an interpreter with the author's file costs half a second of CPU and 40 MB, and a job may
have hundreds of shares for a few cores. Each has its own lease, counter file and end. They share
the event loop, so what ends the process ends all of them: its death, and a step that blocks the
loop beyond a stop. Their owner then knows each by its own counters, and continues each elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Protocol

from squall.engine.core_protocol import (
    Abandon,
    CoreRefused,
    Ended,
    Load,
    Loaded,
    Ready,
    ShareName,
    ShareSpec,
    ToParent,
)
from squall.engine.process.core_pool import CoreHandle, WorkerHosting
from squall.engine.process.lease import SLOTS, LeaseMemory
from squall.engine.process.stack_signal import authors_place
from squall.stats.reports import ErrorSample, WindowReport

NICENESS = 2
"""Below the worker's main process, which has to renew leases while its cores are busy."""
HELD_S = 5.0
"""A loop that has not run for this long is blocked by some code. The host reports it; it does not
end the attempt for it."""
ROUND_S = 1.0
"""Longer than one round of a loop, in which every task that is ready has a turn."""
ABANDON_S = 2.0
"""How long a process with other attempts may take to give one up; then it is killed."""


class Hosted(Protocol):
    """An attempt, as its process sees it."""

    @property
    def name(self) -> ShareName: ...
    @property
    def over(self) -> bool: ...
    @property
    def has_begun(self) -> bool: ...
    def on_loaded(self) -> None: ...
    def on_message(self, message: ToParent) -> None: ...
    def on_killed(self, why: str, silent_from: float) -> None:
        """Its process is being killed; since `silent_from` it has sent nothing."""
        ...

    def on_death(self, died: str, crash: str) -> None: ...
    def on_held(self, why: str, silent_s: float) -> None: ...


class HostedCore:
    """Owns a core process from its start, as a spare, to its end."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.memory = LeaseMemory()
        self.core = CoreHandle(0, WorkerHosting(self.memory, NICENESS, environment))
        # What its attempts have in common; None for a spare.
        self.group: Hashable = None
        self.loaded = False
        # It takes no more attempts: it is being closed or killed, or is dead.
        self.leaving = False
        # The attempts that are not over, by share.
        self._attempts: dict[ShareName, Hosted] = {}
        # The workflows of all that it ever had. An author's metrics and other state are attributes
        # of the class: two shares of one workflow would count into one metric, and users of a
        # share that was given up into that of the next.
        self._workflows: set[str] = set()
        # The last of them, which gets what the process reports about itself until it is closed.
        self._last: Hosted | None = None
        self._slots = 0
        self._folder = ""
        # The stream to the process is open: it cannot be closed before.
        self._attached = asyncio.Event()
        # The last beat of a standstill that was reported, or that a stack was asked for: each
        # standstill is reported once.
        self._reported_beat = 0.0
        self._stack_beat = 0.0

    def takes(self, group: Hashable, spec: ShareSpec) -> bool:
        """Whether this attempt may run here beside the others."""
        fits = self._slots < SLOTS and spec.workflow not in self._workflows
        return self.group == group and fits and not self.leaving

    def add(self, attempt: Hosted) -> int:
        """Takes an attempt; returns the slot of its lease."""
        self._attempts[attempt.name] = attempt
        self._workflows.add(attempt.name[0])
        self._slots += 1
        return self._slots - 1

    def remove(self, attempt: Hosted) -> bool:
        """The attempt is over. True if it was the last one: the process has to be closed."""
        self._attempts.pop(attempt.name, None)
        self._last = attempt
        self.leaving = self.leaving or not self._attempts
        return not self._attempts

    async def begin(self, load: Load) -> None:
        self._folder = str(Path(load.path).parent)
        self.core.on_message, self.core.on_death = self._on_message, self._on_death
        await self.core.attach()
        self._attached.set()
        self.core.send(load)

    async def close(self) -> None:
        """Asks the process to exit, kills it if it does not, and reaps it."""
        self.leaving = True
        await self._attached.wait()
        await self.core.close()
        self.memory.close()

    def kill(self, cause: Hosted, why: str) -> None:
        """Ends an attempt that did not end after a stop. Beside others the process is asked to give
        it up, and killed with all of them if it does not: some code blocks its loop."""
        held = self.why_held()
        if len(self._attempts) > 1 and not held:
            self.core.send(Abandon(cause.name, why))
            asyncio.get_running_loop().call_later(ABANDON_S, self._kill_unless_over, cause, why)
            return
        self._kill(cause, held or why, held)

    def _kill_unless_over(self, cause: Hosted, why: str) -> None:
        if not cause.over and not self.leaving:
            self._kill(cause, why, self.why_held())

    def _kill(self, cause: Hosted, why: str, held: str) -> None:
        self.leaving = True
        silent_from = self.memory.held_since
        if held and silent_from == inf:
            # Without a beat no user is woken again, but each that was ready in the last
            # round may still have sent a request.
            silent_from = self.memory.beat + ROUND_S
        for attempt in self._attempts.values():
            also = f"its core process was killed with {cause.name[0]}: {held or why}"
            attempt.on_killed(held or (why if attempt is cause else also), silent_from)
        self.core.kill()

    # A loop that does not run.

    def check_beat(self) -> None:
        """Reports once that some code blocks the loop, which may last for ever. A process that
        cannot report it itself (a call into C that keeps the interpreter's lock) is found by
        the beat that is missing."""
        if not self._attempts or self.leaving:
            return
        why, beat = self.why_held(), self.memory.beat
        unseen = beat not in (self._reported_beat, self._stack_beat)
        if why and unseen and not self.memory.held_by:
            # Its watchdog does not run either. Its stack names the line, at the next check.
            self._stack_beat = beat
            self.memory.await_stack()
            self.core.ask_for_stack()
        elif why and beat != self._reported_beat:
            self._reported_beat = beat
            self._report_held(why, perf_counter() - beat)
        elif not why and self._reported_beat:
            self._reported_beat = 0.0
            self._report_held("", 0.0)

    def _report_held(self, why: str, silent_s: float) -> None:
        for attempt in self._attempts.values():
            if attempt.has_begun:
                attempt.on_held(why, silent_s)

    def why_held(self) -> str:
        """What blocks the loop of a process that lives; "" when the loop runs."""
        beat = self.memory.beat
        begun = any(attempt.has_begun for attempt in self._attempts.values())
        if not begun or not beat or perf_counter() - beat < HELD_S:
            return ""
        return self.memory.held_by or self._seen_outside()

    def _seen_outside(self) -> str:
        place = ""
        if self._stack_beat == self.memory.beat:
            place = authors_place(self.memory.stack, self._folder)
        return f"its core process does not answer: held by {place or 'something unknown'}"

    # What the process reports.

    def _on_message(self, core: CoreHandle, message: ToParent) -> None:
        match message:
            case Loaded():
                self.loaded = True
                self._each(lambda attempt: attempt.on_loaded())
            case CoreRefused(workflow=""):
                self.leaving = True
                self._each(lambda attempt: attempt.on_message(message))
            case Ready():
                for name in message.shares:
                    self._pass_on(name, message)
            case WindowReport() | ErrorSample() | Ended() | CoreRefused():
                self._pass_on((message.workflow, message.share), message)
            case _:
                # About the process, not about a share: one record of it is enough.
                attempt = next(iter(self._attempts.values()), self._last)
                if attempt is not None:
                    attempt.on_message(message)

    def _pass_on(self, name: ShareName, message: ToParent) -> None:
        if (attempt := self._attempts.get(name)) is not None:
            attempt.on_message(message)

    def _on_death(self, core: CoreHandle) -> None:
        self.leaving = True
        self._each(lambda attempt: attempt.on_death(core.died, core.crash))

    def _each(self, call: Callable[[Hosted], None]) -> None:
        for attempt in list(self._attempts.values()):
            call(attempt)
