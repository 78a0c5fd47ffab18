"""The demo shop: the answer of each path without a behaviour.

Every path answers 200, because this is a target for load; only `/missing` answers 404.
Identities and tokens are unique over all processes of one target. Any process can verify a token
without shared memory, because the token carries a digest that only this target can compute.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable

from squall.target.behaviour import Behaviour
from squall.target.counts import Counts
from squall.target.request import Answer, TargetRequest, json_answer

Handler = Callable[[TargetRequest, Behaviour, float], Answer]


class Shop:
    """Answers by path. `worker` of `workers` keeps identities apart between processes."""

    def __init__(self, counts: Counts, secret: bytes, worker: int = 0, workers: int = 1) -> None:
        self._counts = counts
        self._secret = secret
        self._next = worker + workers
        self._step = workers
        self._fixed: dict[str, Answer] = {
            "/": Answer(body=b"hello world\n"),
            "/search": json_answer({"items": [{"id": n, "sku": f"sku-{n}"} for n in range(1, 4)]}),
            "/cart": json_answer([{"id": 1, "price": 9.5}, {"id": 2, "price": 12.0}]),
            "/offers": json_answer([{"id": 3, "price": 4.25}]),
            "/list": json_answer([{"id": n, "sku": f"sku-{n}"} for n in range(1, 6)]),
            "/pay": json_answer({"paid": True}),
            "/buy": json_answer({"bought": True}),
            "/logout": json_answer({"signed_out": True}),
            "/missing": Answer(404, b"404 Not Found\n"),
        }
        self._live: dict[str, Handler] = {
            "/login": self._login,
            "/inbox": self._inbox,
            "/session": self._session,
            "/tenants": self._tenants,
            "/orders": self._orders,
            "/files": self._files,
            "/use": self._use,
            "/rows": self._rows,
            "/echo": self._echo,
            "/headers": self._headers,
        }

    def fixed(self, method: str, path: str) -> Answer | None:
        """The answer of a path that never changes, or None."""
        found = self._fixed.get(path)
        if found is not None or path in self._live:
            return found
        if path.startswith("/items/"):
            return _item(path.removeprefix("/items/"))
        if path.startswith("/tenants/"):
            return Answer(204) if method == "DELETE" else json_answer({"id": path[9:]})
        return Answer(body=b"ok\n")

    def live(self, path: str) -> Handler:
        """The function that creates the answer of a path for which `fixed` returns None."""
        return self._live[path]

    def _identity(self) -> int:
        identity = self._next
        self._next += self._step
        return identity

    def _token(self, identity: int) -> str:
        digest = hmac.new(self._secret, str(identity).encode(), hashlib.blake2s).hexdigest()
        return f"{identity}-{digest[:16]}"

    def knows(self, token: str | None) -> bool:
        """Whether this target issued a token or session value."""
        identity, _, _ = (token or "").partition("-")
        return (
            identity.isdecimal()
            and len(identity) < 19
            and hmac.compare_digest(self._token(int(identity)).encode(), (token or "").encode())
        )

    def _login(self, request: TargetRequest, behaviour: Behaviour, elapsed_s: float) -> Answer:
        identity = self._identity()
        self._counts.issued(str(identity))
        token = self._token(identity)
        cookie = ("Set-Cookie", f"session={token}; Path=/; HttpOnly")
        return json_answer({"token": token, "id": identity}, headers=[cookie])

    def _inbox(self, request: TargetRequest, behaviour: Behaviour, elapsed_s: float) -> Answer:
        strict = behaviour.field("strict") == "1"
        known = self.knows(request.header("x-token")) or self.knows(request.cookie("session"))
        if strict and not known:
            return json_answer({"error": "log in first"}, 401)
        return json_answer({"messages": [{"id": 1, "text": "welcome"}]})

    def _session(self, request: TargetRequest, behaviour: Behaviour, elapsed_s: float) -> Answer:
        session = request.cookie("session")
        return json_answer({"session": session, "known": self.knows(session)})

    def _tenants(self, request: TargetRequest, behaviour: Behaviour, elapsed_s: float) -> Answer:
        if request.method != "POST":
            return json_answer([])
        return json_answer({"id": f"t{self._identity()}"}, 201)

    def _orders(self, request: TargetRequest, behaviour: Behaviour, elapsed_s: float) -> Answer:
        if request.method != "POST":
            return json_answer([])
        time_ms = ("X-Time", f"{elapsed_s * 1000:.3f}")
        return json_answer({"id": self._identity()}, 201, [time_ms])

    def _files(self, request: TargetRequest, behaviour: Behaviour, elapsed_s: float) -> Answer:
        return json_answer({"bytes": request.body_bytes})

    def _use(self, request: TargetRequest, behaviour: Behaviour, elapsed_s: float) -> Answer:
        identity = behaviour.field("id") or request.body_fields().get("id", "")
        self._counts.used(identity)
        return json_answer({"id": identity})

    def _rows(self, request: TargetRequest, behaviour: Behaviour, elapsed_s: float) -> Answer:
        key = behaviour.field("key") or request.body_fields().get("key", "")
        self._counts.field("key", key)
        return json_answer({"key": key, "seen": self._counts.fields.get("key", {}).get(key, 0)})

    def _echo(self, request: TargetRequest, behaviour: Behaviour, elapsed_s: float) -> Answer:
        return json_answer(
            {
                "method": request.method,
                "path": request.path,
                "query": request.query,
                "headers": _joined(request.headers),
                "header_list": request.headers,
                "body": request.body.decode("utf-8", "replace"),
                "body_bytes": request.body_bytes,
            }
        )

    def _headers(self, request: TargetRequest, behaviour: Behaviour, elapsed_s: float) -> Answer:
        return json_answer({"headers": _joined(request.headers), "header_list": request.headers})


def _item(name: str) -> Answer:
    # The price depends on the name alone, so that every process and run agrees.
    price = int.from_bytes(hashlib.blake2s(name.encode(), digest_size=2).digest(), "big") / 100
    number = name.isdecimal() and len(name) < 19
    return json_answer({"id": int(name) if number else name, "price": price})


def _joined(headers: list[tuple[str, str]]) -> dict[str, str]:
    joined: dict[str, str] = {}
    for name, value in headers:
        joined[name] = f"{joined[name]}, {value}" if name in joined else value
    return joined
