"""A job of a cluster as a presenter hears it: snapshots, lines and events until its end.

Ctrl-C once cancels the job gracefully, twice at once; both times the result is still
waited for and shown. A third time leaves: the cluster ends the job by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

from squall.api.errors import ExitCode, SquallError
from squall.nodes.client.client import TERMINAL, ClusterClient
from squall.nodes.client.errors import Unreachable
from squall.nodes.identity import JobId
from squall.nodes.messages import Followed, StreamEvent, StreamLine, StreamSnapshot

if TYPE_CHECKING:
    from squall.cli.presenting import Presenter


class Left(SquallError):
    """The person did not wait for the end."""

    exit_code = ExitCode.INTERRUPTED


class Following:
    """One job and who watches it. With `cancels`, Ctrl-C ends the job; without, only the
    watching."""

    def __init__(
        self,
        client: ClusterClient,
        job: JobId,
        presenter: Presenter,
        *,
        cancels: bool = True,
        says_events: bool = True,
    ) -> None:
        self._client = client
        self._job = job
        self._presenter = presenter
        self._cancels = cancels
        self._says_events = says_events
        self._interruptions = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._told_place = 0

    async def to_the_end(self, after: int = 0) -> Followed:
        """The last answer, with a terminal state."""
        self._presenter.on_controls(self.interrupt)
        with interrupts(self.interrupt):
            watching = asyncio.ensure_future(self._watch(after))
            try:
                await asyncio.wait((watching, self._left), return_when=asyncio.FIRST_COMPLETED)
                if not watching.done():
                    raise Left(self._farewell())
                return watching.result()
            finally:
                watching.cancel()
                for task in self._tasks:
                    task.cancel()

    def interrupt(self, now: bool = False) -> None:
        """Once ends gracefully, twice at once; with `now` at once already."""
        self._interruptions = max(self._interruptions + 1, 2 if now else 1)
        if not self._cancels or self._interruptions > 2:
            if not self._left.done():
                self._left.set_result(None)
            return
        self._presenter.on_interrupt(self._interruptions)
        task = asyncio.ensure_future(self._cancel(self._interruptions > 1))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _cancel(self, now: bool) -> None:
        # Whoever follows hears of a cluster that stays away; a job that is over by now
        # needs no cancelling.
        with contextlib.suppress(SquallError):
            await self._client.cancel(self._job, now=now)

    async def _watch(self, after: int) -> Followed:
        try:
            async for answer in self._client.follow(self._job, after, known=True):
                self._tell(answer)
                if answer.state in TERMINAL and not answer.more:
                    return answer
        except Unreachable as error:
            raise Unreachable(self._out_of_sight(error)) from None
        raise SquallError(f"job {self._job}: the stream ended before the job")

    def _tell(self, answer: Followed) -> None:
        if answer.position and answer.position != self._told_place:
            self._told_place = answer.position
            self._say(f"job {self._job} waits in the queue, place {answer.position}")
        if answer.missed:
            self._say(f"{answer.missed} items of the stream were no longer kept")
        for item in answer.items:
            match item:
                case StreamSnapshot():
                    self._presenter.on_snapshot(item.snapshot)
                case StreamLine():
                    self._presenter.on_log(item.prefix, item.text)
                case StreamEvent():
                    self._say(f"{item.at_s:7.1f} s  {item.text}")

    def _say(self, text: str) -> None:
        if self._says_events:
            self._presenter.on_log("", text)

    def _out_of_sight(self, error: Unreachable) -> str:
        managers = self._client.managers
        if managers.is_store:
            return (
                f"{error}; job {self._job} is lost from sight and its load ends with the leases. "
                f"Start an agent, then: squall watch {self._job} --store {managers.shown}"
            )
        return (
            f"{error}\njob {self._job} is lost from sight; the workers end its load when "
            f"their leases end. Once a manager is back: squall watch {self._job}"
        )

    def _farewell(self) -> str:
        if self._cancels:
            return f"left; job {self._job} is being cancelled: squall status {self._job}"
        return f"left; job {self._job} goes on: squall watch {self._job}"


@contextlib.contextmanager
def interrupts(handler: Callable[[], None]) -> Generator[None]:
    """Ctrl-C and SIGTERM call the handler; only the main thread can have signals. After
    one, results are still to be written: no further Ctrl-C may cost them."""
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
