"""`--web`: a presenter that shows a run on a web page, beside the one in the terminal.

The page is served by a thread with an event loop of its own. What the run reports goes there as
frozen data and is never waited for; what viewers ask for comes back into the loop of the run. While
the page is served, a file in the state directory tells `squall adjust` of this user where it is.
"""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from squall.api.errors import SquallError, UsageError
from squall.cli.shared.local_runs import LocalRunFile
from squall.engine.load_steps import LoadSteps
from squall.web.server import BoundPage, PageServer, bind_page

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from squall.cli.shared.presenters import Presenter
    from squall.engine.load_change import LoadChange
    from squall.engine.outcome import RunOutcome
    from squall.engine.run_controls import RunControls
    from squall.reporting.redaction import Redactor
    from squall.stats.manifest import FileManifest
    from squall.stats.reports import ExchangeReport
    from squall.stats.snapshot import Snapshot
    from squall.web.feed import FinishedRun

T = TypeVar("T")
REPORT_WAIT_S = 10.0
"""How long the command waits at its end until open pages have loaded the report."""


def web_page_of(arguments: Namespace, what: str) -> WebPage | None:
    """None without `--web`. The address is bound here, so that a mistake is reported first."""
    wanted = vars(arguments).get("web")
    return None if wanted is None else WebPage(bind_page(wanted), what)


class WebPage:
    """The page of one run of this command."""

    def __init__(self, bound: BoundPage, what: str) -> None:
        from squall.web.feed import RunFeed

        self._bound = bound
        self._what = what
        self.feed = RunFeed(what)
        self._server = PageServer(bound, self._app)
        self._file: LocalRunFile | None = None

    def start(self) -> None:
        """Serves the page and prints its address, with the token, once."""
        self._server.start()
        self._server.wait_started()
        bound = self._bound
        self._file = LocalRunFile.write(bound.address, bound.port, bound.access, self._what)
        print(f"page  {bound.control_address}", file=sys.stderr)
        if not bound.access.is_loopback:
            print(f"page to read only  {bound.view_address}", file=sys.stderr)

    def beside(self, presenter: Presenter) -> Presenter:
        return WebPresenter(self, presenter)

    def post(self, name: str, *arguments: Any) -> None:
        self._server.post(getattr(self.feed, name), *arguments)

    def finish(self, outcome: RunOutcome, redact: Redactor) -> None:
        """Gives open pages the report and waits until they have it."""
        from squall.web.finished_run import finished_run

        self._end(finished_run(outcome, redact), "")

    @contextmanager
    def closed_at_the_end(self) -> Generator[None]:
        """Closes the page, also when the run fails; open pages then show the reason."""
        try:
            yield
        except BaseException as error:
            self._end(None, str(error) or type(error).__name__)
            raise
        finally:
            if self._file is not None:
                self._file.remove()
            self._server.stop()

    def _end(self, finished: FinishedRun | None, reason: str) -> None:
        self.post("end", finished, reason)
        self._server.wait_for(self._settled(), REPORT_WAIT_S + 1.0)

    async def _settled(self) -> None:
        await self.feed.wait_for_viewers(REPORT_WAIT_S)
        self.feed.disconnect()

    def _app(self) -> ASGIApp:
        from squall.web.run_app import one_run_app

        return one_run_app(self.feed)


class WebPresenter:
    """Passes everything to the presenter of the terminal, and to the page."""

    def __init__(self, page: WebPage, inner: Presenter) -> None:
        self.redact = inner.redact
        self._page = page
        self._inner = inner
        self._steps: LoadSteps | None = None

    @property
    def wants_histograms(self) -> bool:
        return self._inner.wants_histograms

    def on_run(self, run: str) -> None:
        self._inner.on_run(run)

    def on_manifest(self, manifest: FileManifest, processes: int) -> None:
        self._inner.on_manifest(manifest, processes)
        self._steps = LoadSteps(manifest)
        self._page.post("start", self._redacted(manifest), processes)

    def on_controls(self, controls: RunControls) -> None:
        self._inner.on_controls(controls)
        if self._steps is not None:
            from squall.web.feed import PageControls

            asked = _AskedOfRun(asyncio.get_running_loop(), controls, self._steps)
            stop = asked.stop if controls.stops else None
            self._page.post("offer", PageControls(asked.change, asked.multiply, stop))

    def on_snapshot(self, snapshot: Snapshot) -> None:
        self._inner.on_snapshot(snapshot)
        if self._steps is not None:
            self._steps.feed(snapshot)
        self._page.post("snapshot", self._redacted(snapshot))

    def on_interrupt(self, times: int) -> None:
        self._inner.on_interrupt(times)
        self._page.post("notice", "stopping" if times == 1 else "ending at once")

    def on_log(self, prefix: str, line: str) -> None:
        self._inner.on_log(prefix, line)
        self._page.post("log", self.redact(f"{prefix} {line}" if prefix else line))

    def on_exchange(self, exchange: ExchangeReport) -> None:
        self._inner.on_exchange(exchange)

    async def close(self) -> None:
        await self._inner.close()

    def _redacted(self, data: T) -> T:
        """The data without the values of secrets, in every text that a viewer may see."""
        if not self.redact.has_secrets:
            return data
        import msgspec

        plain = msgspec.json.decode(msgspec.json.encode(data))
        return msgspec.convert(self.redact.document(plain), type=type(data))


class _AskedOfRun:
    """What viewers ask for, carried into the event loop of the run. Called in that of the page."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, controls: RunControls, steps: LoadSteps
    ) -> None:
        self._loop = loop
        self._controls = controls
        self._steps = steps

    async def change(self, change: LoadChange) -> None:
        await self._there(self._controls.change(change))

    async def multiply(self, factor: float, workflow: str) -> None:
        await self._there(self._multiplied(factor, workflow))

    def stop(self, now: bool) -> None:
        try:
            self._loop.call_soon_threadsafe(self._controls.interrupt, now)
        except RuntimeError:
            raise UsageError("the run is over") from None

    async def _multiplied(self, factor: float, workflow: str) -> None:
        changes = self._steps.by(factor, workflow)
        if not changes:
            raise UsageError("there is no load to change now")
        for change in changes:
            await self._controls.change(change)

    async def _there(self, wanted: Coroutine[Any, Any, None]) -> None:
        try:
            future = asyncio.run_coroutine_threadsafe(wanted, self._loop)
        except RuntimeError:
            wanted.close()
            raise UsageError("the run is over") from None
        try:
            await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if future.cancelled():
                raise SquallError("the run ended before the change") from None
            raise
