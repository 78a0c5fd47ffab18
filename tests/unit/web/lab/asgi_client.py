"""Asks an application as a server does, without a server or a port."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from starlette.types import ASGIApp

ENDS_WITHIN_S = 60.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    content: bytes

    def json(self) -> Any:
        return json.loads(self.content)


class AsgiClient:
    """One client of one application."""

    def __init__(self, app: ASGIApp, host: str = "127.0.0.1:8650") -> None:
        self._app = app
        self._host = host

    def get(self, target: str, headers: Mapping[str, str] | None = None) -> Answer:
        return self.ask("GET", target, b"", headers)

    def post(self, target: str, body: Any, headers: Mapping[str, str] | None = None) -> Answer:
        """A `body` that is not bytes is sent as JSON."""
        if isinstance(body, bytes):
            return self.ask("POST", target, body, headers)
        more = {"content-type": "application/json"} | dict(headers or {})
        return self.ask("POST", target, json.dumps(body).encode(), more)

    def ask(
        self, method: str, target: str, body: bytes, headers: Mapping[str, str] | None
    ) -> Answer:
        return asyncio.run(self._asked(method, target, body, headers or {}))

    async def _asked(
        self, method: str, target: str, body: bytes, headers: Mapping[str, str]
    ) -> Answer:
        path, _, query = target.partition("?")
        every = {"host": self._host} | dict(headers)
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in every.items()],
            "server": ("127.0.0.1", 8650),
            "client": ("127.0.0.1", 50000),
        }
        sent: list[Any] = []
        waiting = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            if waiting:
                return waiting.pop()
            await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        async with asyncio.timeout(ENDS_WITHIN_S):
            await self._app(scope, receive, send)
        return Answer(
            sent[0]["status"],
            {name.decode(): value.decode() for name, value in sent[0]["headers"]},
            b"".join(message.get("body", b"") for message in sent[1:]),
        )
