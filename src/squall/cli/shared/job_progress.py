"""Follows a job of a cluster and passes its snapshots, lines and events to a presenter.

The first Ctrl-C cancels the job gracefully, the second immediately; after both the result is
still awaited and shown. A third one leaves: the cluster ends the job by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import threading
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

from squall.api.errors import ExitCode, SquallError
from squall.cluster.client.cluster_client import TERMINAL, ClusterClient
from squall.cluster.client.errors import Unreachable
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.messages import (
    AdjustJob,
    Followed,
    StreamEvent,
    StreamLine,
    StreamSnapshot,
)
from squall.engine.load_change import LoadChange
from squall.engine.run_controls import RunControls
from squall.reporting.text.control_characters import one_line

if TYPE_CHECKING:
    from squall.cli.shared.presenters import Presenter


CONTACT_POLL_S = 0.25
CONTACT_AGAIN_S = 5.0
"""The interval between two lines that say the same."""


class LeftJob(SquallError):
    """The user left before the job ended."""

    exit_code = ExitCode.INTERRUPTED


class JobFollower:
    """Presents one job until its end. With `cancels`, Ctrl-C cancels the job; without, it only
    stops following."""

    def __init__(
        self,
        client: ClusterClient,
        job: JobId,
        presenter: Presenter,
        *,
        cancels: bool = True,
        shows_events: bool = True,
    ) -> None:
        self._client = client
        self._job = job
        self._presenter = presenter
        self._cancels = cancels
        self._shows_events = shows_events
        self._interruptions = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._shown_position = 0

    async def follow(self, after: int = 0) -> Followed:
        """Returns the last answer, with a terminal state."""
        self._presenter.on_controls(RunControls(self.interrupt, self._change, stops=self._cancels))
        with interrupts(self.interrupt):
            watching = asyncio.ensure_future(self._watch(after))
            contact = asyncio.ensure_future(self._watch_contact())
            try:
                await asyncio.wait((watching, self._left), return_when=asyncio.FIRST_COMPLETED)
                if not watching.done():
                    raise LeftJob(self._detached())
                return watching.result()
            finally:
                watching.cancel()
                contact.cancel()
                for task in self._tasks:
                    task.cancel()

    def interrupt(self, now: bool = False) -> None:
        """The first call cancels gracefully, the second immediately; with `now` the first does
        too."""
        self._interruptions = max(self._interruptions + 1, 2 if now else 1)
        if not self._cancels or self._interruptions > 2:
            if not self._left.done():
                self._left.set_result(None)
            return
        self._presenter.on_interrupt(self._interruptions)
        task = asyncio.ensure_future(self._cancel(self._interruptions > 1))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _change(self, change: LoadChange) -> None:
        await self._client.adjust(
            AdjustJob(
                job=self._job,
                workflow=change.workflow,
                paused=change.paused,
                rate_per_s=change.rate_per_s,
                vus=change.vus,
            )
        )

    async def _cancel(self, now: bool) -> None:
        # `_watch` reports a cluster that stays away, and a job that has ended meanwhile needs no
        # cancelling.
        with contextlib.suppress(SquallError):
            await self._client.cancel(self._job, now=now)

    async def _watch(self, after: int) -> Followed:
        try:
            async for answer in self._client.follow(
                self._job, after, known=True, histograms=self._presenter.wants_histograms
            ):
                self._show(answer)
                if answer.state in TERMINAL and not answer.more:
                    return answer
        except Unreachable as error:
            raise Unreachable(self._lost_contact(error)) from None
        raise SquallError(f"job {self._job}: the stream ended before the job")

    async def _watch_contact(self) -> None:
        """Reports at once that no manager answers, and again until one does: the last line that is
        shown must not look like a run that goes well."""
        role = "coordinator" if self._client.managers.is_store else "manager"
        reported_s = -math.inf
        while True:
            await asyncio.sleep(CONTACT_POLL_S)
            lost_s, left_s = self._client.out_of_contact_s()
            if lost_s and (reported_s < 0.0 or lost_s >= reported_s + CONTACT_AGAIN_S):
                reported_s = lost_s
                since = f" for {lost_s:.0f} s" if lost_s >= 1.0 else ""
                self._presenter.on_log(
                    "",
                    f"no {role} answers{since}: what is shown of job {self._job} is old; its load "
                    f"may go on; trying for {left_s:.0f} s more",
                )
            elif not lost_s and reported_s >= 0.0:
                reported_s = -math.inf
                self._presenter.on_log("", f"a {role} answers again")

    def _show(self, answer: Followed) -> None:
        if answer.position and answer.position != self._shown_position:
            self._shown_position = answer.position
            self._log_event(f"job {self._job} waits in the queue at place {answer.position}")
        if answer.missed:
            self._log_event(f"{answer.missed} earlier updates of the job are no longer available")
        for item in answer.items:
            match item:
                case StreamSnapshot():
                    self._presenter.on_snapshot(item.snapshot)
                case StreamLine():
                    self._presenter.on_log(one_line(item.prefix), one_line(item.text))
                case StreamEvent():
                    self._log_event(f"{item.at_s:7.1f} s  {one_line(item.text)}")

    def _log_event(self, text: str) -> None:
        if self._shows_events:
            self._presenter.on_log("", text)

    def _lost_contact(self, error: Unreachable) -> str:
        managers = self._client.managers
        if managers.is_store:
            return (
                f"{error}; job {self._job} cannot be followed; its load ends when the leases "
                f"expire. Start an agent, then: squall watch {self._job} --store {managers.shown}"
            )
        return (
            f"{error}\njob {self._job} cannot be followed; the workers end its load when their "
            f"leases expire. Once a manager is back: squall watch {self._job}"
        )

    def _detached(self) -> str:
        if self._cancels:
            return f"left; job {self._job} is being cancelled; see squall status {self._job}"
        return f"left; job {self._job} goes on; follow it with squall watch {self._job}"


@contextlib.contextmanager
def interrupts(handler: Callable[[], None]) -> Generator[None]:
    """Ctrl-C and SIGTERM call the handler; only the main thread can handle signals. After one,
    results are still to be written, so further signals are ignored then."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    seen: list[None] = []

    def interrupted() -> None:
        seen.append(None)
        handler()

    for number in numbers:
        loop.add_signal_handler(number, interrupted)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN if seen else before[number])
