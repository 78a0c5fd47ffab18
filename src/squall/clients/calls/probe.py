"""The answer of a client to `squall ping`."""

from __future__ import annotations

from dataclasses import dataclass, field

from squall.api.protocols.response import ProtocolResponse


@dataclass(frozen=True, slots=True)
class PingAnswer:
    """The answer to a small question; `server` is like "Redis 7.0.15"."""

    server: str
    response: ProtocolResponse
    lines: list[str] = field(default_factory=list[str])
    """What else to show of the server."""
