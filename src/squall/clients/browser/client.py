"""The browser of one virtual user: `self.client.browser`.

A user has one context with one page, made with its first call. A page that did not load in time is
closed, since Chromium goes on loading it; the next call begins with a new one. If screenshots of
failed steps are wanted, such a page stays open until its screenshot is taken.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from time import perf_counter
from typing import TYPE_CHECKING, Any, Unpack

from playwright.async_api import BrowserContext, Error, Page, Response
from playwright.async_api import TimeoutError as PageTimeout

from squall.api.arguments import URL
from squall.api.errors import CallError, TransportError
from squall.api.protocols.browser import WAITS, ActionOptions, OpenOptions, PageResult
from squall.clients.browser.process import BrowserUse, check_memory, program
from squall.clients.browser.reasons import page_reason
from squall.clients.browser.vitals import vitals_of
from squall.clients.calls.library import CallText
from squall.clients.http.failure_reasons import timeout_reason
from squall.clients.http.shared import Exchange

if TYPE_CHECKING:
    from squall.clients.http.client import HTTPClient
    from squall.clients.http.shared import HTTPShared

# Chromium and the driver answer a timeout themselves; this is for one of them that hangs.
_MORE_TIME_S = 2.0


class BrowserClient:
    """Opens and uses the page of one user."""

    __slots__ = ("_context", "_counters", "_failed_page", "_http", "_page", "_picture", "_shared")

    def __init__(self, http: HTTPClient) -> None:
        self._http = http
        self._shared = http.shared
        self._counters = http.shared.counters_of("browser")
        self._context: BrowserContext | None = None
        self._page: Page | None = None
        # Did not load, and is closed once its picture is taken.
        self._failed_page: Page | None = None
        # Being taken: the next call would change what it shows.
        self._picture: asyncio.Task[None] | None = None
        http.companions = (*http.companions, self)
        if _use_of(http.shared).screenshots is not None:
            http.on_step_failed = self._step_failed

    @staticmethod
    def check(users: int, processes: int) -> None:
        """Raises a `ConfigError` if the browser is missing or its pages do not fit."""
        program()
        check_memory(users, processes)

    @staticmethod
    async def start(shared: HTTPShared) -> None:
        """Starts the browser, so that no call has to wait for it."""
        await _use_of(shared).browser.get(shared)

    @property
    def page(self) -> Page:
        if self._page is None:
            raise CallError("there is no page yet; call self.client.browser.open(url) first")
        return self._page

    async def open(self, url: URL, **options: Unpack[OpenOptions]) -> PageResult:
        """Opens an address in the page of the user and measures how it loads."""
        return await self._opened("OPEN", url, options, vitals=options.get("vitals", True))

    async def goto(self, url: URL, **options: Unpack[OpenOptions]) -> PageResult:
        """Opens an address in the page of the user."""
        return await self._opened("GOTO", url, options, vitals=options.get("vitals", False))

    async def click(self, selector: str, **options: Unpack[ActionOptions]) -> PageResult:
        """Clicks the element, once it is there and visible."""

        async def clicked(limit_ms: float) -> None:
            await self.page.click(selector, timeout=limit_ms)

        return await self._acted("CLICK", selector, options, clicked)

    async def fill(self, selector: str, text: str, **options: Unpack[ActionOptions]) -> PageResult:
        """Writes a text into the field, once it is there and enabled."""

        async def filled(limit_ms: float) -> None:
            await self.page.fill(selector, text, timeout=limit_ms)

        # Without the text, which may be a password.
        return await self._acted("FILL", selector, options, filled)

    async def expect(
        self, selector: str, text: str | None = None, **options: Unpack[ActionOptions]
    ) -> PageResult:
        """Waits until the element is visible and, if a text is given, contains it."""

        async def found(limit_ms: float) -> None:
            locator = self.page.locator(selector)
            if text is not None:
                # A pattern, because a plain text would match in capitals and small letters.
                locator = locator.filter(has_text=re.compile(re.escape(text)))
            await locator.first.wait_for(state="visible", timeout=limit_ms)

        return await self._acted("EXPECT", selector, options, found)

    async def _opened(
        self, action: str, url: Any, options: OpenOptions, *, vitals: bool
    ) -> PageResult:
        wait = options.get("wait", "load")
        if wait not in WAITS:
            raise CallError(f"wait={wait!r}: write one of {', '.join(WAITS)}")
        if options.get("fresh"):
            self._leave_context()
        shared = self._shared
        address = shared.url(url).address
        limit_s = self._limit_s(options)

        async def loaded(limit_ms: float) -> PageResult:
            page = await self._ready_page()
            started = perf_counter()
            answer = await page.goto(address, wait_until=wait, timeout=limit_ms)
            ended = perf_counter()
            result = PageResult(
                CallText(address, action), started, started, ended, location=page.url
            )
            if answer is not None:
                result.status, result.error = answer.status, _status_error(answer)
            if vitals:
                for name, value in (await vitals_of(page)).items():
                    setattr(result, name, value)
            result.first_byte = started + (result.ttfb_s or ended - started)
            result.bytes_received = result.transferred
            self._counters.bytes_received += result.transferred
            return result

        try:
            return await self._counted(action, address, limit_s, loaded)
        except BaseException as error:
            self._leave_page(failed=isinstance(error, TransportError))
            raise

    async def _acted(
        self,
        action: str,
        selector: str,
        options: ActionOptions,
        act: Callable[[float], Awaitable[None]],
    ) -> PageResult:
        page = self.page
        limit_s = self._limit_s(options)

        async def done(limit_ms: float) -> PageResult:
            started = perf_counter()
            await act(limit_ms)
            ended = perf_counter()
            source = CallText(page.url, f"{action} {selector}")
            return PageResult(source, started, ended, ended, location=page.url)

        return await self._counted(f"{action} {selector}", page.url, limit_s, done)

    async def _counted(
        self,
        operation: str,
        address: str,
        limit_s: float,
        perform: Callable[[float], Awaitable[PageResult]],
    ) -> PageResult:
        shared, counters = self._shared, self._counters
        started = perf_counter()
        if shared.closed or (started > shared.limit[0] and not shared.allows(started)):
            # The lease has ended: as if the task had been cancelled.
            raise asyncio.CancelledError
        if self._picture is not None:
            picture, self._picture = self._picture, None
            await asyncio.wait([picture])
            started = perf_counter()
        counters.sent += 1
        try:
            async with asyncio.timeout(limit_s + _MORE_TIME_S):
                result = await perform(limit_s * 1000)
        except (PageTimeout, TimeoutError):
            reason = timeout_reason(limit_s)
        except Error as error:
            reason = page_reason(error)
        except BaseException:
            counters.cancelled += 1
            raise
        else:
            counters.replies += 1
            return self._noted(operation, address, result)
        counters.failed += 1
        failure = TransportError(reason, started=started, ended=perf_counter())
        failure.protocol = "browser"
        failure.request = f"BROWSER {operation} {address}"
        self._noted(operation, address, failure)
        raise failure

    def _noted(self, operation: str, address: str, outcome: Any) -> Any:
        self._http.note(outcome)
        watcher = self._shared.on_exchange
        if watcher is not None:
            watcher(Exchange("BROWSER", address, "", operation.encode(), outcome))
        return outcome

    async def _ready_page(self) -> Page:
        # The author's code went on after a failure.
        self._leave_failed_page()
        page = self._page
        if page is not None and not page.is_closed():
            return page
        shared = self._shared
        browser = await _use_of(shared).browser.get(shared)
        if self._context is None or self._context.browser is not browser:
            self._context = await browser.new_context(ignore_https_errors=not shared.verify)
            self._counters.connections += 1
        self._page = page = await self._context.new_page()
        return page

    def _step_failed(self, step: str) -> None:
        """Takes a picture of the page of a failed step."""
        pictures = _use_of(self._shared).screenshots
        page = self._failed_page or self._page
        if pictures is not None and page is not None and not page.is_closed():
            stops = self._failed_page is not None
            self._picture = pictures.take(page, step, stops=stops) or self._picture
        self._leave_failed_page()

    def _leave_page(self, *, failed: bool) -> None:
        self._leave_failed_page()
        page, self._page = self._page, None
        if failed and _use_of(self._shared).screenshots is not None:
            self._failed_page = page
        elif page is not None:
            self._end(page)

    def _leave_failed_page(self) -> None:
        page, self._failed_page = self._failed_page, None
        if page is not None:
            self._end(page)

    def _leave_context(self) -> None:
        context, self._context, self._page, self._failed_page = self._context, None, None, None
        if context is not None:
            self._end(context)

    def _end(self, closed: Page | BrowserContext) -> None:
        """Closes something in a task of its own, after the picture of it."""
        picture = self._picture

        async def ended() -> None:
            try:
                if picture is not None:
                    await asyncio.wait([picture])
                await closed.close()
            except Error:
                return

        # A task must not vanish before it has ended.
        tasks: set[asyncio.Task[None]] = self._shared.protocols.setdefault("ending pages", set())
        task = asyncio.get_running_loop().create_task(ended())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def _limit_s(self, options: Any) -> float:
        timeout = options.get("timeout")
        return self._http.timeout_s if timeout is None else self._shared.seconds(timeout)

    def begin_iteration(self) -> None:
        """The context lives as long as the user, whatever `connections` says."""

    def close(self) -> None:
        if not self._shared.closed:
            self._leave_context()


def _use_of(shared: HTTPShared) -> BrowserUse:
    found = shared.protocols.get("browser")
    if found is None:
        found = shared.protocols["browser"] = BrowserUse(shared)
    return found


def _status_error(answer: Response) -> str:
    """Why a page counts as failed, as a response of HTTP does by default."""
    if answer.status < 400:
        return ""
    try:
        return f"{answer.status} {HTTPStatus(answer.status).phrase}"
    except ValueError:
        return str(answer.status)
