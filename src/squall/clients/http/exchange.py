"""Makes a call: connection, second try, redirects, cookies.

Every exchange is counted exactly once: as answered, failed, repeated (`reconnects`) or
cancelled. A cancelled call closes its connection, because its answer may still come.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Awaitable, Callable
from time import perf_counter, time
from typing import TYPE_CHECKING, Any, cast

from squall.api.errors import CallError, TransportError
from squall.api.http import BodyOptions, CallOptions, HTTPResponse, HTTPVerbs
from squall.clients.http.call import build
from squall.clients.http.connect import connect
from squall.clients.http.connection import HTTPConnection, Unanswered
from squall.clients.http.cookies import stored
from squall.clients.http.request import (
    REDIRECTS,
    REPEATABLE,
    Request,
    RequestTemplate,
    redirected,
)
from squall.clients.http.shared import Exchange, HTTPShared
from squall.clients.http.url import PreparedURL, join, read_url
from squall.stats.manifest import ITERATION, START

if TYPE_CHECKING:
    from squall.clients.http.client import HTTPClient

ExchangeOutcome = HTTPResponse | TransportError
# (client, request, its limit, how much of the limit is used up) -> the answer.
Exchanger = Callable[["HTTPClient", Request, float, float], Awaitable[HTTPResponse]]
# What other libraries call our options.
_OTHER_NAMES = {
    "body": "data",
    "content": "data",
    "query": "params",
    "allow_redirects": "redirects",
    "follow_redirects": "redirects",
}


async def call(
    client: HTTPClient,
    method: str,
    url: Any,
    headers: Any = None,
    params: Any = None,
    cookies: Any = None,
    auth: Any = None,
    path: Any = None,
    timeout: str | float | None = None,  # noqa: ASYNC109
    redirects: int | None = None,
    name: str | None = None,
    data: Any = None,
    json: Any = None,
    form: Any = None,
    files: Any = None,
    via: Exchanger | None = None,
    **unknown: Any,
) -> HTTPResponse:
    """Makes the call of a verb. `via` makes its exchanges in another protocol than HTTP/1."""
    if unknown:
        raise _unknown_option(method, next(iter(unknown)))
    shared = client.shared
    target = url if type(url) is PreparedURL else shared.url(url)
    request = build(
        shared, method, target, headers, params, cookies, auth, path, data, json, form, files
    )
    timeout_s = client.timeout_s if client.siblings else client.own_timeout_s
    if timeout is not None:
        timeout_s = shared.seconds(timeout)
        shared.expect_timeout(timeout_s, perf_counter() + timeout_s)
    limit = shared.redirects
    if redirects is not None:
        limit = _checked_redirects(redirects)
    if name is not None:
        _check_name(name)
    try:
        response = await (via or exchange)(client, request, timeout_s, 0.0)
        if response.head.special:
            response = await follow(client, request, response, timeout_s, limit, via)
    except TransportError as error:
        error.request = f"{method} {request.address}"
        client.note(error)
        _report_named(shared, name, error)
        raise
    # `client.note` without its call, as in `HTTPClient.get`.
    client.last = response
    if client.siblings:
        client.note(response)
    if name is not None:
        _report_named(shared, name, response)
    return response


def _checked_redirects(redirects: Any) -> int:
    if redirects.__class__ is not int or redirects < 0:
        raise CallError(f"redirects={redirects!r} is not a number of redirects; 0 follows none")
    return redirects


def _unknown_option(method: str, name: str) -> TypeError:
    """Names the verb that the author wrote, and the options that it takes."""
    verb = method.lower() if hasattr(HTTPVerbs, method.lower()) else "request"
    takes_body = verb not in ("get", "head", "options")
    known = sorted((BodyOptions if takes_body else CallOptions).__optional_keys__)
    close = _OTHER_NAMES.get(name) or "".join(difflib.get_close_matches(name, known, 1))
    hint = f"; did you mean {close}=?" if close in known else ""
    return TypeError(f"{verb}() takes no {name}={hint or ';'} it takes {', '.join(known)}")


def _check_name(name: Any) -> None:
    """A name is the key of a row: reports and documents have only text there."""
    if not isinstance(name, str) or not name:
        raise CallError(f"name={name!r} is not the name of a row; write text")
    if name in (ITERATION, START):
        raise CallError(f'name="{name}" is reserved; choose another name')


async def finish(
    client: HTTPClient,
    source: PreparedURL | Request | RequestTemplate,
    url: PreparedURL,
    options: CallOptions,
    outcome: HTTPResponse | Unanswered,
) -> HTTPResponse:
    """Completes a call that a verb sent itself: its answer needs more work, or never arrived.
    `source` is what was sent, made from `url` and `options`."""
    shared, timeout_s = client.shared, client.timeout_s
    method = source.method
    request = source
    if not isinstance(request, Request):
        request = build(shared, method, url, **cast("dict[str, Any]", options))
    try:
        if isinstance(outcome, HTTPResponse):
            response = outcome
        elif method not in REPEATABLE:
            raise _failed(client, request, request.raw, "", outcome)
        else:
            client.counters.reconnects += 1
            spent_s = outcome.ended - outcome.started
            response = await exchange(client, request, timeout_s, spent_s, fresh=True)
        if response.head.special:
            response = await follow(client, request, response, timeout_s, shared.redirects)
    except TransportError as error:
        error.request = f"{method} {request.address}"
        client.note(error)
        raise
    client.note(response)
    return response


async def exchange(
    client: HTTPClient,
    request: Request,
    timeout_s: float,
    spent_s: float,
    *,
    fresh: bool = False,
) -> HTTPResponse:
    """Sends one request and returns its answer. Repeats it once if the peer closed a
    reused connection before an answer, provided that the method may be repeated."""
    shared, jar = client.shared, client.jar
    raw = request.raw
    if jar is not None:
        raw = request.with_cookies(jar.header(request.origin, request.path, time()))
    conn = client.pool.take(request.origin) if shared.reuse and not fresh else None
    reused = conn is not None
    if conn is None:
        conn = await _connected(client, request, raw, timeout_s, spent_s)
        spent_s += sum(conn.setup or ())
    peer = "" if shared.on_exchange is None else peer_of(conn.transport)
    if spent_s:
        shared.expect_timeout(timeout_s, perf_counter() + timeout_s - spent_s)
    future = conn.send(raw, request, timeout_s, spent_s)
    try:
        response = await future
    except Unanswered as error:
        del future
        if not reused or request.method not in REPEATABLE:
            raise _failed(client, request, raw, peer, error) from None
        spent_s += error.ended - error.started
    except BaseException as error:
        conn.abandon(future)
        # The future holds the error, whose traceback holds this frame: break the cycle.
        del future
        if isinstance(error, TransportError):
            show(client, request, raw, peer, error)
        raise
    else:
        if not reused:
            # Moved and not copied: an idle connection of each of 10,000 users would keep it.
            response.setup, conn.setup = conn.setup, None
        if shared.on_exchange is not None:
            show(client, request, raw, peer, response)
        return response
    client.counters.reconnects += 1
    return await exchange(client, request, timeout_s, spent_s, fresh=True)


def _failed(
    client: HTTPClient, request: Request, raw: bytes, peer: str, error: Unanswered
) -> TransportError:
    client.counters.failed += 1
    failure = TransportError(error.reason, started=error.started, ended=error.ended)
    show(client, request, raw, peer, failure)
    return failure


async def _connected(
    client: HTTPClient, request: Request, raw: bytes, timeout_s: float, spent_s: float
) -> HTTPConnection:
    left_s = max(timeout_s - spent_s, 0.0)
    try:
        return await connect(
            client.shared, client.pool, request.origin, client.vu_index, timeout_s, left_s
        )
    except TransportError as error:
        client.counters.failed += 1
        client.counters.unsent += 1
        show(client, request, raw, "", error)
        raise


async def follow(
    client: HTTPClient,
    request: Request,
    response: HTTPResponse,
    timeout_s: float,
    limit: int,
    via: Exchanger | None = None,
) -> HTTPResponse:
    """Stores cookies and follows redirects. The latency covers the whole chain."""
    started, hops = response.started, 1
    make = via or exchange
    while True:
        lines = response.headers.get_all("set-cookie")
        if lines:
            client.use(stored(client.jar, lines, request.origin, request.path, time()))
        location = response.headers.get("location")
        if response.status_code not in REDIRECTS or limit <= 0 or location is None:
            break
        if hops > limit:
            raise TransportError(
                f"more than {limit} redirects", started=started, ended=response.ended
            )
        url = _next_url(client, request, location)
        if url is None:
            raise TransportError(
                "redirect to an unusable address", started=started, ended=response.ended
            )
        request = redirected(request, response, url)
        client.shared.counters_of(response.protocol).redirects += 1
        try:
            response = await make(client, request, timeout_s, perf_counter() - started)
        except TransportError as error:
            error.started = started
            raise
        hops += 1
    response.started = started
    response.hops = hops
    return response


def _next_url(client: HTTPClient, request: Request, location: str) -> PreparedURL | None:
    try:
        # Header bytes were read as latin-1; an address in them is UTF-8.
        address = location.encode("latin-1").decode("utf-8", "replace")
        absolute = join(request.address, address)
        return read_url(absolute, "", client.shared.origins, literal=True)
    except (CallError, ValueError):
        return None


def _report_named(shared: HTTPShared, name: str | None, outcome: ExchangeOutcome) -> None:
    if name is not None and shared.on_named is not None:
        shared.on_named(name, outcome)


def show(
    client: HTTPClient, request: Request, raw: bytes, peer: str, outcome: ExchangeOutcome
) -> None:
    """Reports an exchange for `--once` and `squall ping`."""
    watcher = client.shared.on_exchange
    if watcher is not None:
        watcher(Exchange(request.method, request.address, peer, raw, outcome))


def peer_of(transport: asyncio.Transport) -> str:
    """Address and port of the peer."""
    where = transport.get_extra_info("peername") or ("", "")
    host, port = where[0], where[1]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
