"""What the clients of a workflow did in one protocol, over the whole run or in one second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from squall.stats.histogram import Histogram
from squall.stats.reports import HTTP1, NOT_KNOWN, ProtocolDelta, RequestsDelta

if TYPE_CHECKING:
    from squall.stats.totals.workflow import WorkflowStats


class ProtocolStats:
    """One protocol of a workflow over the whole run."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.requests = RequestsDelta()
        # Messages of WebSockets, events of SSE.
        self.messages_sent = 0
        self.messages_received = 0
        self.connect = Histogram()
        self.tls = Histogram()

    def add(self, delta: ProtocolDelta) -> None:
        self._count(delta)
        if delta.connect is not None:
            self.connect.merge_data(delta.connect)
        if delta.tls is not None:
            self.tls.merge_data(delta.tls)

    def merge(self, other: ProtocolStats) -> None:
        self._count(other)
        self.connect.merge(other.connect)
        self.tls.merge(other.tls)

    def _count(self, other: ProtocolDelta | ProtocolStats) -> None:
        add_requests(self.requests, other.requests)
        self.messages_sent += other.messages_sent
        self.messages_received += other.messages_received


def named(protocols: dict[str, ProtocolStats], name: str) -> ProtocolStats:
    found = protocols.get(name)
    if found is None:
        found = protocols[name] = ProtocolStats(name)
    return found


def protocols_of(workflow: WorkflowStats) -> dict[str, ProtocolStats]:
    """The protocols of a workflow, also of one whose document names none: it was all HTTP/1."""
    if workflow.protocols:
        return workflow.protocols
    all_of_it = ProtocolStats(HTTP1)
    all_of_it.requests, all_of_it.connect, all_of_it.tls = (
        workflow.requests,
        workflow.connect,
        workflow.tls,
    )
    return {HTTP1: all_of_it}


def are_shown(protocols: dict[str, ProtocolStats]) -> bool:
    """Whether another protocol than HTTP/1 took part; otherwise the totals say everything."""
    return any(each.requests.connections for each in protocols.values() if each.name not in _USUAL)


def add_requests(total: RequestsDelta, delta: RequestsDelta) -> None:
    total.sent += delta.sent
    total.answered += delta.answered
    total.failed += delta.failed
    total.redirects += delta.redirects
    total.reconnects += delta.reconnects
    total.bytes_sent += delta.bytes_sent
    total.bytes_received += delta.bytes_received
    total.connections += delta.connections
    total.replies += delta.replies


_USUAL = (HTTP1, NOT_KNOWN)
