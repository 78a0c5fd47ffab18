"""A parsed request, and the answer of a path before a behaviour changes it.

Plain data. The server caches requests by their exact bytes and shares a `TargetRequest`, so
nothing here may change after construction.
"""

from __future__ import annotations

import json
from typing import Any, cast
from urllib.parse import parse_qsl

import msgspec

# A body is kept up to this size for echo, forms and field counts; all of it is counted.
KEPT_BODY_BYTES = 1 << 20


class TargetRequest(msgspec.Struct):
    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes = b""
    body_bytes: int = 0
    keep_alive: bool = True
    http10: bool = False
    path: str = ""
    query: str = ""

    def __post_init__(self) -> None:
        target = self.target
        if not target.startswith("/"):
            # Absolute form, as sent to proxies: the authority is ignored.
            _, _, rest = target.partition("://")
            target = "/" + rest.partition("/")[2]
        path, _, query = target.partition("?")
        self.path, self.query = path, query.partition("#")[0]

    def header(self, name: str) -> str | None:
        """The first header of that lower-case name."""
        return next((value for key, value in self.headers if key.lower() == name), None)

    def cookie(self, name: str) -> str | None:
        """The value of a cookie that came in, from any of the Cookie headers."""
        for key, value in self.headers:
            if key.lower() != "cookie":
                continue
            for pair in value.split(";"):
                found, _, text = pair.strip().partition("=")
                if found == name:
                    return text
        return None

    def body_fields(self) -> dict[str, str]:
        """The fields of a form or the top level of a JSON object; empty for others."""
        if not self.body:
            return {}
        kind = (self.header("content-type") or "").partition(";")[0].strip().lower()
        if kind == "application/x-www-form-urlencoded":
            return dict(parse_qsl(self.body.decode("utf-8", "replace"), keep_blank_values=True))
        if kind == "application/json":
            try:
                loaded: object = json.loads(self.body)
            except ValueError:
                return {}
            if isinstance(loaded, dict):
                pairs = cast("dict[str, Any]", loaded).items()
                return {
                    name: value if isinstance(value, str) else json.dumps(value)
                    for name, value in pairs
                }
        return {}


class Answer(msgspec.Struct):
    status: int = 200
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    headers: list[tuple[str, str]] = msgspec.field(default_factory=list[tuple[str, str]])


def json_answer(
    value: object, status: int = 200, headers: list[tuple[str, str]] | None = None
) -> Answer:
    body = msgspec.json.encode(value) + b"\n"
    return Answer(status, body, "application/json", headers or [])
