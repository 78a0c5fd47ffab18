"""Headers of sent and received messages, and the time of arrival."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from time import perf_counter, time_ns
from typing import Any

from squall.api.protocols.brokers.messages import SENT_HEADER
from squall.clients.calls.arrivals import Arrivals


def stamped(headers: Mapping[str, Any] | None, stamp: bool) -> Mapping[str, Any] | None:
    """The headers to send; with the time of sending if that is wanted."""
    if not stamp:
        return headers
    return {**(headers or {}), SENT_HEADER: str(time_ns())}


def arrived(arrivals: Arrivals) -> float:
    """When the message arrived that the library hands over now. Only the loop of a core process
    notes arrivals; elsewhere it is the present time."""
    return arrivals.last or perf_counter()


def as_text(pairs: Iterable[tuple[Any, Any]]) -> dict[str, str]:
    """Received headers as text."""
    return {_text(name): _text(value) for name, value in pairs}


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
