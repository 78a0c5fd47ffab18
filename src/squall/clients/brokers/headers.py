"""Headers of messages: what is sent with one, and what a received one has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from time import time_ns
from typing import Any

from squall.api.protocols.messages import SENT_HEADER


def stamped(headers: Mapping[str, Any] | None, stamp: bool) -> Mapping[str, Any] | None:
    """The headers to send; with the time of sending if that is wanted."""
    if not stamp:
        return headers
    return {**(headers or {}), SENT_HEADER: str(time_ns())}


def as_text(pairs: Iterable[tuple[Any, Any]]) -> dict[str, str]:
    """Received headers as text."""
    return {_text(name): _text(value) for name, value in pairs}


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
