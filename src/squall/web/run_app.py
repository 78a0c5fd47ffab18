"""The routes of one run: its page, its events, its controls, its report.

`guarded` wraps a whole application: it answers requests that `Access` refuses and sets the headers
of every answer. Routes below it ask only for the role.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from squall.api.errors import SquallError, UsageError
from squall.engine.load_change import LoadChange
from squall.web.access import (
    PAGE_HEADERS,
    REPORT_HEADERS,
    Access,
    Role,
    header_map,
)
from squall.web.feed import PageControls, RunFeed, TooManyViewers

STATIC = Path(__file__).parent / "static"
CONTROL_BODY_MAX = 65_536
DOCUMENT_BODY_MAX = 64_000_000
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
}

FeedOf = Callable[[Request], Awaitable[RunFeed]]
"""The run that a request is about; raises `HttpError` if there is none."""


class HttpError(Exception):
    """A refused request: its status and a one-line answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class ChangeBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a change: a `LoadChange`, or a factor for the present load."""

    workflow: str = ""
    paused: bool | None = None
    rate_per_s: float | None = None
    vus: int | None = None
    factor: float | None = None


class StopBody(msgspec.Struct, forbid_unknown_fields=True):
    now: bool = False


# The guard around all routes.


def guarded(app: ASGIApp, access: Access) -> ASGIApp:
    """Refuses what `access` does not allow, adds the security headers, notes the caller's role."""

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *(
                        (name.encode(), value.encode())
                        for name, value in PAGE_HEADERS.items()
                        if name.encode() not in own
                    ),
                ]
            await send(message)

        headers = header_map(scope["headers"])
        refusal = access.refusal(scope["method"], headers)
        if refusal is not None:
            answer = _line(refusal.status, refusal.text)
            await answer(scope, receive, send_with_headers)
            return
        key = Request(scope).query_params.get("key", "")
        scope["squall_role"] = access.role(headers, key)
        scope["squall_view_key"] = "" if access.is_loopback else access.view_token
        await app(scope, receive, send_with_headers)

    return guard


def need(request: Request, wanted: Role) -> None:
    """Raises `HttpError` unless the caller has the role; `control` includes `view`."""
    role: Role = request.scope["squall_role"]
    if role == "control" or role == wanted:
        return
    if wanted == "control":
        raise HttpError(403, "read only: open the page with the address that the command printed")
    raise HttpError(401, "this page needs the token of the address that the command printed")


# Static files.


@cache
def _asset(name: str) -> tuple[bytes, str]:
    path = STATIC / name
    return path.read_bytes(), _MEDIA_TYPES[path.suffix]


@cache
def _asset_names() -> frozenset[str]:
    return frozenset(path.name for path in STATIC.iterdir() if path.suffix in _MEDIA_TYPES)


def page_response(name: str) -> Response:
    content, media_type = _asset(name)
    return Response(content, media_type=media_type)


async def static(request: Request) -> Response:
    name: str = request.path_params["name"]
    # A name from the listing, so that no path leads elsewhere.
    if name not in _asset_names():
        raise HttpError(404, "no such file")
    return page_response(name)


# One run.


def run_routes(prefix: str, feed_of: FeedOf) -> list[Route]:
    """The routes of a run below `prefix`."""

    async def page(_: Request) -> Response:
        return page_response("run.html")

    async def events(request: Request) -> ASGIApp:
        need(request, "view")
        feed = await feed_of(request)
        role: Role = request.scope["squall_role"]
        return EventStream(
            feed.events(may_control=role == "control", key=request.scope["squall_view_key"])
        )

    async def change(request: Request) -> Response:
        need(request, "control")
        controls = _controls(await feed_of(request))
        body = await decoded(request, ChangeBody)
        wanted = LoadChange(
            workflow=body.workflow, paused=body.paused, rate_per_s=body.rate_per_s, vus=body.vus
        )
        try:
            if body.factor is None:
                await controls.change(wanted)
            elif wanted == LoadChange(workflow=body.workflow) and 0.0 < body.factor <= 10.0:
                await controls.multiply(body.factor, body.workflow)
            else:
                raise HttpError(400, "factor: a number above 0 and up to 10, alone")
        except UsageError as error:
            raise HttpError(400, str(error)) from None
        except SquallError as error:
            raise HttpError(409, str(error)) from None
        return JSONResponse({"ok": True})

    async def stop(request: Request) -> Response:
        need(request, "control")
        controls = _controls(await feed_of(request))
        body = await decoded(request, StopBody)
        if controls.stop is None:
            raise HttpError(409, "this command only watches the job: use squall cancel")
        controls.stop(body.now)
        return JSONResponse({"ok": True})

    return [
        Route(f"{prefix}/", page),
        Route(f"{prefix}/api/events", _Answer(events)),
        Route(f"{prefix}/api/change", change, methods=["POST"]),
        Route(f"{prefix}/api/stop", stop, methods=["POST"]),
        *_end_routes(prefix, feed_of),
    ]


def _end_routes(prefix: str, feed_of: FeedOf) -> list[Route]:
    """The routes that have content once the run is over."""

    async def report(request: Request) -> Response:
        need(request, "view")
        feed = await feed_of(request)
        if feed.finished is None:
            raise HttpError(404, "the run has no report yet")
        return Response(
            feed.finished.report, media_type=_MEDIA_TYPES[".html"], headers=REPORT_HEADERS
        )

    async def results(request: Request) -> Response:
        need(request, "view")
        feed = await feed_of(request)
        if feed.finished is None:
            raise HttpError(404, "the run has no results yet")
        return Response(feed.finished.document, media_type="application/json")

    async def compared(request: Request) -> Response:
        need(request, "view")
        feed = await feed_of(request)
        if feed.finished is None:
            raise HttpError(409, "the run is not over: its windows are compared at its end")
        content = await body_of(request, DOCUMENT_BODY_MAX)
        text = await asyncio.to_thread(comparison, content, feed.finished.document)
        return JSONResponse({"text": text})

    return [
        Route(f"{prefix}/api/compare", compared, methods=["POST"]),
        Route(f"{prefix}/report.html", report),
        Route(f"{prefix}/results.json", results),
    ]


def comparison(before: bytes, after: bytes) -> str:
    """The text of `squall compare`. Raises `HttpError` if the earlier document cannot be read."""
    from squall.reporting.compare.changes import compare
    from squall.reporting.compare.text import render_comparison
    from squall.reporting.document.read import results_of

    try:
        sides = results_of("earlier run", before), results_of("this run", after)
    except UsageError as error:
        raise HttpError(400, str(error)) from None
    return render_comparison(compare([sides[0]], [sides[1]]))


def _controls(feed: RunFeed) -> PageControls:
    if feed.controls is None:
        raise HttpError(409, "the run is over" if feed.is_over else "the run has not started")
    return feed.controls


def one_run_app(feed: RunFeed) -> ASGIApp:
    """The application of `--web`: one run and nothing else."""

    async def the_run(_: Request) -> RunFeed:
        return feed

    return application(run_routes("", the_run))


def application(routes: Sequence[Route]) -> ASGIApp:
    """An application of these routes and the static files."""

    async def refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, HttpError)
        return _line(error.status, str(error))

    every = [Route("/static/{name}", static), *routes]
    return Starlette(routes=every, exception_handlers={HttpError: refused})


# Requests and answers.


async def body_of(request: Request, most: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise HttpError(413, f"the request has more than {most:,} bytes")
        parts.append(part)
    return b"".join(parts)


async def decoded(request: Request, kind: type[Any]) -> Any:
    """The body of a control request."""
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise HttpError(415, "send application/json")
    try:
        return msgspec.json.decode(await body_of(request, CONTROL_BODY_MAX), type=kind)
    except (msgspec.DecodeError, ValueError) as error:
        raise HttpError(400, str(error)) from None


class _Answer:
    """Runs an endpoint whose answer is an ASGI application and not a starlette response."""

    def __init__(self, endpoint: Callable[[Request], Awaitable[ASGIApp]]) -> None:
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        answer = await self._endpoint(request)
        await answer(scope, receive, send)


class EventStream:
    """Sends server-sent events until they end or the viewer is gone."""

    def __init__(self, events: AsyncGenerator[bytes]) -> None:
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(send))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait((sending, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            sending.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)
            await self._events.aclose()
        if not sending.cancelled():
            error = sending.exception()
            if isinstance(error, TooManyViewers):
                await _line(503, "too many viewers")(scope, receive, send)
            elif error is not None:
                raise error

    async def _send(self, send: Send) -> None:
        begun = False
        async for event in self._events:
            if not begun:
                begun = True
                headers = [(b"content-type", b"text/event-stream"), (b"x-accel-buffering", b"no")]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue


def _line(status: int, text: str) -> Response:
    return JSONResponse({"error": text}, status_code=status)
