"""What the store holds of a queue, and what a queue tells.

    queued/<queue>             stream: tickets that producers wrote, in their order
    ready/<queue>              stream: tickets that workers may take
    deadletter/<queue>         stream: tickets that failed too often
    final/<queue>/<ticket>     record: how a ticket ended; created once, which decides
    dedup/<queue>/<hash>       record: the ticket that was made for this id of a producer
    payload/<queue>/<ticket>   record: a payload too big for a stream
    late/<queue>/<ticket>/<n>  record: the result of attempt n that came too late

A ticket is final when, and only when, its record exists. Streams only say what is left to
do: a ticket that stands in one although it is final is dropped by whoever meets it.
"""

from __future__ import annotations

import hashlib
from typing import Any, ClassVar, Literal

from squall.coordination.events import Event
from squall.coordination.plain import plain_json
from squall.coordination.records import Schema
from squall.coordination.stores.errors import CoordinationError
from squall.coordination.stores.interface import make_key

FINAL = "final"
FINAL_TTL_S = 86_400.0
DEDUP_TTL_S = 86_400.0
STREAM_TTL_S = 30 * 86_400.0
"""A queue that nobody touches for so long is forgotten."""
INLINE_MAX_BYTES = 256 * 1024
PAYLOAD_MAX_BYTES = 16 * 1024 * 1024 - 1024

State = Literal["pending", "published", "done", "dead_letter", "cancelled", "expired"]


class Ticket(Schema, frozen=True, kw_only=True, omit_defaults=True):
    """One piece of work. Signed by its producer, and again by who publishes it."""

    given: ClassVar[str] = "payload"
    ticket_id: str
    queue: str
    payload: Any = None
    is_blob: bool = False
    """The payload is a record of its own."""
    priority: int = 0
    """Higher goes first."""
    order_key: str = ""
    """Tickets with the same one run one after another, as they were enqueued."""
    not_before: float = 0.0
    start_before: float = 0.0
    """Store time; 0 for none."""
    max_attempts: int = 3
    created_at: float = 0.0
    epoch: int = 0
    """Of the coordinator that published it."""


class Final(Schema, frozen=True, kw_only=True, omit_defaults=True):
    """How a ticket ended."""

    given: ClassVar[str] = "result"
    ticket_id: str
    state: State
    result: Any = None
    error: str = ""
    attempt: int = 0
    claim: str = ""
    finished_by: str = ""
    finished_at: float = 0.0


class QueueStats(Schema, frozen=True, kw_only=True):
    """`claimed` are held by a worker, or wait for their next attempt."""

    pending: int
    published: int
    claimed: int
    dead_letters: int
    oldest_s: float


class TicketTooLargeError(CoordinationError):
    """The payload or result is above the limit; nothing was written."""


class TicketStateError(CoordinationError):
    """The ticket is already final, or is not known."""


def encoded_given(what: str, value: Any) -> bytes:
    body = plain_json(what, value)
    if len(body) > PAYLOAD_MAX_BYTES:
        raise TicketTooLargeError(
            f"the {what} has {len(body)} bytes and at most {PAYLOAD_MAX_BYTES} are taken:"
            " store it elsewhere and give where it is"
        )
    return body


class QueueEvent(Event, frozen=True, kw_only=True):
    queue: str


class TicketsPublished(QueueEvent, frozen=True, kw_only=True):
    """On the coordinator."""

    name: ClassVar[str] = "plg:queue:tickets-published"
    epoch: int
    count: int


class TicketClaimed(QueueEvent, frozen=True, kw_only=True):
    name: ClassVar[str] = "plg:queue:ticket-claimed"
    ticket_id: str
    attempt: int


class TicketFinished(QueueEvent, frozen=True, kw_only=True):
    """By this member; `state` is `done`, `dead_letter`, `cancelled` or `expired`."""

    name: ClassVar[str] = "plg:queue:ticket-finished"
    ticket_id: str
    state: str
    attempt: int
    error: str = ""


class TicketRetried(QueueEvent, frozen=True, kw_only=True):
    name: ClassVar[str] = "plg:queue:ticket-retried"
    ticket_id: str
    attempt: int
    delay_s: float
    error: str


class TicketLost(QueueEvent, frozen=True, kw_only=True):
    """The claim of this member is not valid any more."""

    name: ClassVar[str] = "plg:queue:ticket-lost"
    ticket_id: str
    attempt: int


class TicketRefused(QueueEvent, frozen=True, kw_only=True):
    """What stood in the stream was not signed by a member of this namespace."""

    name: ClassVar[str] = "plg:queue:ticket-refused"
    item_id: str
    reason: str


class QueueKeys:
    """The names of one queue."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.queued = make_key("queued", queue)
        self.ready = make_key("ready", queue)
        self.dead = make_key("deadletter", queue)

    def final(self, ticket_id: str) -> str:
        return make_key(FINAL, self.queue, ticket_id)

    def dedup(self, dedup_id: str) -> str:
        """An id of a producer is any text."""
        name = f"d-{hashlib.sha256(dedup_id.encode()).hexdigest()[:32]}"
        return make_key("dedup", self.queue, name)

    def payload(self, ticket_id: str) -> str:
        return make_key("payload", self.queue, ticket_id)

    def late(self, ticket_id: str, attempt: int) -> str:
        return make_key("late", self.queue, ticket_id, str(attempt))

    def quarantine(self, item_id: str) -> str:
        return make_key("quarantine", self.queue, item_id)
