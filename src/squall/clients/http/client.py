"""The client of one virtual user: `self.client.http`.

It holds what belongs to the user: idle connections, cookies, the last exchange. `get`
with nothing but a prepared URL is written out in full, because a run spends most of its
time there; every other call goes through `squall.clients.http.exchange`.
"""

# A timeout here is part of the author's API and is swept, never a cancelled task.
# ruff: noqa: ASYNC109

from __future__ import annotations

import re
from collections.abc import Mapping
from contextvars import ContextVar
from time import perf_counter
from typing import Any

from squall.api.arguments import URL, Auth, Cookies, Data, File, Form, Headers, Params
from squall.api.errors import CallError, TransportError
from squall.api.http import HTTPResponse
from squall.clients.http.connection import Pool, Unanswered
from squall.clients.http.cookies import Jar
from squall.clients.http.exchange import Outcome, call, finish
from squall.clients.http.shared import HTTPShared
from squall.clients.http.url import PreparedURL


class StepCell:
    """What belongs to one of several steps that run beside each other. An object, so that
    tasks which the step starts itself see the same one."""

    __slots__ = ("last", "timeout_s")

    def __init__(self, timeout_s: float) -> None:
        self.last: Outcome | None = None
        self.timeout_s = timeout_s


_step: ContextVar[StepCell | None] = ContextVar("_step", default=None)

_METHOD = re.compile(r"[A-Z]+(?:-[A-Z]+)*")


class HTTPClient:
    """Made once per user. `dirty` says whether `begin_iteration` has anything to do."""

    __slots__ = (
        "_remembered",
        "_timeout_s",
        "counters",
        "dirty",
        "jar",
        "last",
        "limit",
        "plain",
        "pool",
        "shared",
        "siblings",
        "vu_index",
    )

    def __init__(self, shared: HTTPShared, vu_index: int) -> None:
        self.shared = shared
        self.vu_index = vu_index
        self.pool = shared.pool or Pool()
        self.jar: Jar | None = None
        self.last: Outcome | None = None
        self.dirty = shared.connections == "iteration"
        self._remembered: Jar | None = None
        self.counters = shared.counters
        self.limit = shared.limit
        self.siblings = shared.siblings
        # A plain get needs no look at cookies and nobody watches.
        self.plain = shared.on_exchange is None
        self._timeout_s = shared.timeout_s

    async def get(
        self,
        url: URL,
        *,
        headers: Headers | None = None,
        params: Params | None = None,
        cookies: Cookies | None = None,
        auth: Auth | None = None,
        path: Mapping[str, str | float] | None = None,
        timeout: str | float | None = None,
        redirects: int | None = None,
        name: str | None = None,
    ) -> HTTPResponse:
        if (
            type(url) is PreparedURL
            and headers is None
            and params is None
            and cookies is None
            and auth is None
            and path is None
            and timeout is None
            and redirects is None
            and name is None
            and self.plain
        ):
            pool = self.pool
            conn = pool.idle
            if conn is not None and conn.origin is url.lane:
                pool.idle = None
                conn.future = future = conn.create_future()
                conn.source = url
                conn.timeout_s = self.timeout_s if self.siblings else self._timeout_s
                conn.spent_s = 0.0
                raw = url.get_raw
                counters = self.counters
                conn.started = started = perf_counter()
                if started > self.limit[0] and not self.shared.allows(started):
                    conn.withhold()
                counters.sent += 1
                counters.bytes_sent += len(raw)
                conn.transport.write(raw)
                try:
                    response = await future
                except Unanswered:
                    del future
                    response = None
                except BaseException as error:
                    conn.abandon(future)
                    # It holds the error, whose traceback holds this frame: no cycle, please.
                    del future
                    if isinstance(error, TransportError):
                        self.note(error)
                    raise
                if response is None or response.head.special:
                    return await finish(self, url, response, perf_counter() - conn.started)
                self.last = response
                if self.siblings:
                    self.note(response)
                return response
        return await call(
            self, "GET", url, headers, params, cookies, auth, path, timeout, redirects, name
        )

    async def head(
        self,
        url: URL,
        *,
        headers: Headers | None = None,
        params: Params | None = None,
        cookies: Cookies | None = None,
        auth: Auth | None = None,
        path: Mapping[str, str | float] | None = None,
        timeout: str | float | None = None,
        redirects: int | None = None,
        name: str | None = None,
    ) -> HTTPResponse:
        return await call(
            self, "HEAD", url, headers, params, cookies, auth, path, timeout, redirects, name
        )

    async def options(
        self,
        url: URL,
        *,
        headers: Headers | None = None,
        params: Params | None = None,
        cookies: Cookies | None = None,
        auth: Auth | None = None,
        path: Mapping[str, str | float] | None = None,
        timeout: str | float | None = None,
        redirects: int | None = None,
        name: str | None = None,
    ) -> HTTPResponse:
        return await call(
            self, "OPTIONS", url, headers, params, cookies, auth, path, timeout, redirects, name
        )

    async def post(
        self,
        url: URL,
        *,
        headers: Headers | None = None,
        params: Params | None = None,
        cookies: Cookies | None = None,
        auth: Auth | None = None,
        path: Mapping[str, str | float] | None = None,
        timeout: str | float | None = None,
        redirects: int | None = None,
        name: str | None = None,
        data: Data | None = None,
        json: Any = None,
        form: Form | None = None,
        files: Mapping[str, File] | None = None,
    ) -> HTTPResponse:
        return await call(
            self,
            "POST",
            url,
            headers,
            params,
            cookies,
            auth,
            path,
            timeout,
            redirects,
            name,
            data,
            json,
            form,
            files,
        )

    async def put(
        self,
        url: URL,
        *,
        headers: Headers | None = None,
        params: Params | None = None,
        cookies: Cookies | None = None,
        auth: Auth | None = None,
        path: Mapping[str, str | float] | None = None,
        timeout: str | float | None = None,
        redirects: int | None = None,
        name: str | None = None,
        data: Data | None = None,
        json: Any = None,
        form: Form | None = None,
        files: Mapping[str, File] | None = None,
    ) -> HTTPResponse:
        return await call(
            self,
            "PUT",
            url,
            headers,
            params,
            cookies,
            auth,
            path,
            timeout,
            redirects,
            name,
            data,
            json,
            form,
            files,
        )

    async def patch(
        self,
        url: URL,
        *,
        headers: Headers | None = None,
        params: Params | None = None,
        cookies: Cookies | None = None,
        auth: Auth | None = None,
        path: Mapping[str, str | float] | None = None,
        timeout: str | float | None = None,
        redirects: int | None = None,
        name: str | None = None,
        data: Data | None = None,
        json: Any = None,
        form: Form | None = None,
        files: Mapping[str, File] | None = None,
    ) -> HTTPResponse:
        return await call(
            self,
            "PATCH",
            url,
            headers,
            params,
            cookies,
            auth,
            path,
            timeout,
            redirects,
            name,
            data,
            json,
            form,
            files,
        )

    async def delete(
        self,
        url: URL,
        *,
        headers: Headers | None = None,
        params: Params | None = None,
        cookies: Cookies | None = None,
        auth: Auth | None = None,
        path: Mapping[str, str | float] | None = None,
        timeout: str | float | None = None,
        redirects: int | None = None,
        name: str | None = None,
        data: Data | None = None,
        json: Any = None,
        form: Form | None = None,
        files: Mapping[str, File] | None = None,
    ) -> HTTPResponse:
        return await call(
            self,
            "DELETE",
            url,
            headers,
            params,
            cookies,
            auth,
            path,
            timeout,
            redirects,
            name,
            data,
            json,
            form,
            files,
        )

    async def request(
        self,
        method: str,
        url: URL,
        *,
        headers: Headers | None = None,
        params: Params | None = None,
        cookies: Cookies | None = None,
        auth: Auth | None = None,
        path: Mapping[str, str | float] | None = None,
        timeout: str | float | None = None,
        redirects: int | None = None,
        name: str | None = None,
        data: Data | None = None,
        json: Any = None,
        form: Form | None = None,
        files: Mapping[str, File] | None = None,
    ) -> HTTPResponse:
        method = method.upper()
        if _METHOD.fullmatch(method) is None or method == "CONNECT":
            raise CallError(f"{method!r} is not a method this client can send")
        return await call(
            self,
            method,
            url,
            headers,
            params,
            cookies,
            auth,
            path,
            timeout,
            redirects,
            name,
            data,
            json,
            form,
            files,
        )

    @property
    def timeout_s(self) -> float:
        """The limit for calls without `timeout=`. Assign None to go back to the default.
        Where steps run beside each other, it is the limit of the running one."""
        if self.siblings and (cell := _step.get()) is not None:
            return cell.timeout_s
        return self._timeout_s

    @timeout_s.setter
    def timeout_s(self, seconds: float | None) -> None:
        if seconds is None:
            seconds = self.shared.timeout_s
        else:
            self.shared.expect_timeout(seconds, perf_counter() + seconds)
        self._timeout_s = seconds
        if self.siblings and (cell := _step.get()) is not None:
            cell.timeout_s = seconds

    def begin_iteration(self) -> None:
        """Cookies as remembered; no connection kept if connections live for an iteration.

        May be skipped while `dirty` is False.
        """
        shared = self.shared
        if shared.session == "iteration":
            self.use(self._remembered)
        self.dirty = shared.connections == "iteration"
        if self.dirty:
            self.pool.close()

    def remember(self) -> None:
        """The cookies of now are those every iteration begins with."""
        self._remembered = self.jar
        self.dirty = self.shared.connections == "iteration"

    def clear_last(self) -> None:
        """Before a step, in its own task: forgets the last exchange.

        Where no other step of this user runs, `last = None` does the same and costs less.
        """
        if self.siblings:
            _step.set(StepCell(self.shared.timeout_s))
        else:
            self.last = None

    def last_exchange(self) -> Outcome | None:
        """How the last exchange of the running step ended, None before any."""
        if self.siblings and self.last is not None:
            # `last` may be of a step beside this one.
            cell = _step.get()
            return self.last if cell is None else cell.last
        return self.last

    def note(self, outcome: Outcome) -> None:
        """Keeps how an exchange ended."""
        self.last = outcome
        if self.siblings:
            cell = _step.get()
            if cell is not None:
                cell.last = outcome

    def use(self, jar: Jar | None) -> None:
        """The cookies from here on."""
        if jar is not self.jar:
            self.jar = jar
            self.plain = jar is None and self.shared.on_exchange is None
            if self.shared.session == "iteration":
                self.dirty = True

    def close(self) -> None:
        """Closes what is idle. A call still waiting closes its own when it is cancelled."""
        if self.pool is not self.shared.pool:
            self.pool.close()
