"""Posts bytes over HTTP, from the thread of one live output.

It blocks that thread, which serves only this output, and each wait has a limit. It keeps the
connection. If the server has closed it meanwhile, it repeats the request once on a new one.
"""

from __future__ import annotations

import http.client
import ssl
from base64 import b64encode
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from squall.api.errors import SquallError

TIMEOUT_S = 5.0
_SHOWN_CHARS = 200


class PostRefused(SquallError):
    """The server answered with a status that is no success."""


class HTTPPoster:
    """A connection to one server."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        """Raises `ValueError` for a URL that cannot be used. Credentials in it become a header."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("write a URL that begins with http:// or https://")
        self._secure = parts.scheme == "https"
        self._host = parts.hostname
        self._port = parts.port
        self._path = parts.path.rstrip("/")
        self._query = parts.query
        self._headers = dict(headers or {})
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        self._connection: http.client.HTTPConnection | None = None

    @property
    def path(self) -> str:
        """The path of the URL; empty if it has none."""
        return self._path

    def post(
        self, path: str, body: bytes, headers: Mapping[str, str], *, method: str = "POST"
    ) -> bytes:
        """`path` follows the path of the URL. Returns the body of the answer."""
        target = f"{self._path}{path}" or "/"
        if self._query:
            target += ("&" if "?" in target else "?") + self._query
        is_kept = self._connection is not None
        try:
            return self._sent(target, body, headers, method)
        except (http.client.HTTPException, ConnectionError):
            self.close()
            if not is_kept:
                raise
        return self._sent(target, body, headers, method)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _sent(self, target: str, body: bytes, headers: Mapping[str, str], method: str) -> bytes:
        if self._connection is None:
            self._connection = self._opened()
        try:
            self._connection.request(method, target, body, {**self._headers, **headers})
            answer = self._connection.getresponse()
            content = answer.read()
        except OSError:
            # After a timeout its answer would be taken for that of the next request.
            self.close()
            raise
        if not 200 <= answer.status < 300:
            # Nobody closes it if this was the last request.
            self.close()
            text = " ".join(content.decode(errors="replace").split())[:_SHOWN_CHARS]
            raise PostRefused(f"the server answered {answer.status} {answer.reason}: {text}")
        return content

    def _opened(self) -> http.client.HTTPConnection:
        if not self._secure:
            return http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=TIMEOUT_S, context=context
        )
