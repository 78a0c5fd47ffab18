"""Counters of a node's links, and their metrics.

Plain integers that only grow; one object serves all links of a node. A count is the only
trace of input that was dropped without an answer.
"""

from __future__ import annotations

from squall.runtime.metrics import Registry


class WireCounters:
    """Each name says what was counted, each docstring what happened then."""

    __slots__ = (
        "answers_lost",
        "bad_frame",
        "bad_seal",
        "blob_refused",
        "cancelled",
        "control_overflow",
        "decode_error",
        "forbidden",
        "frames_received",
        "frames_sent",
        "handler_failed",
        "handshake_evicted",
        "handshake_failed",
        "handshake_refused",
        "handshakes",
        "keepalive_lost",
        "late_answer",
        "links_lost",
        "oversized",
        "replay",
        "saturated",
        "shed",
        "stalled",
        "telemetry_dropped",
        "undelivered",
        "unknown_type",
    )

    frames_sent: int
    frames_received: int
    """Opened with the right key."""
    bad_frame: int
    """Not a frame of ours, or half of one for too long: link closed, datagram dropped."""
    bad_seal: int
    """Wrong key or changed bytes: link closed, datagram dropped."""
    replay: int
    """A sequence that was seen already: link closed, datagram dropped."""
    oversized: int
    """Over the cap of the link or of the type: link closed, datagram dropped."""
    unknown_type: int
    """A request is answered with this error, a one-way message dropped."""
    decode_error: int
    """A request is answered with the field's name, a one-way message dropped."""
    forbidden: int
    """The peer's role may not send this type: a request is answered with this error."""
    shed: int
    """Not admitted: a request is answered with retry-after, a one-way message dropped."""
    cancelled: int
    """Requests whose caller gave up before they were answered."""
    handler_failed: int
    """Answered "internal"; the exception went to the owner."""
    handshakes: int
    """Sessions established, both sides."""
    handshake_failed: int
    """Not authenticated, malformed or late: no answer, closed after a second."""
    handshake_evicted: int
    """Sent away as busy, or to make room for a newer connection."""
    handshake_refused: int
    """Authenticated, but of another version, role or setting: a typed refusal."""
    links_lost: int
    keepalive_lost: int
    """Nothing heard for too long: link closed."""
    stalled: int
    """The peer stopped taking bytes: link closed."""
    late_answer: int
    """Answers that arrived after their caller gave up: dropped."""
    answers_lost: int
    """Answers whose link was gone before they were sent."""
    control_overflow: int
    """A queue of CONTROL, ours to the peer or the peer's at us, was full: link closed,
    because all of it is re-derived."""
    saturated: int
    """Refused to the caller: the queue holds nothing that may be dropped."""
    telemetry_dropped: int
    """The oldest TELEMETRY of a queue, dropped for something newer."""
    undelivered: int
    """One-way messages that were queued when their link was lost."""
    blob_refused: int
    """Blobs whose content, size or chunks were not as announced."""

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}


def wire_metrics(registry: Registry, counters: WireCounters) -> None:
    family = registry.gauges(
        "squall_wire_events",
        "What the links of this node counted since its start, by name",
        ["event"],
    )
    for name in counters.as_dict():
        family.with_labels(name).follow(lambda name=name: float(getattr(counters, name)))
