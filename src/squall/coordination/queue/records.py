"""The records, streams, errors and events of a queue.

    queued/<queue>             stream: tickets as producers enqueued them
    ready/<queue>              stream: tickets that workers may take
    deadletter/<queue>         stream: tickets that failed too often
    final/<queue>/<ticket>     record: how a ticket ended; created once, which decides
    dedup/<queue>/<hash>       record: the ticket that was made for a producer's dedup id
    payload/<queue>/<ticket>   record: a payload too large for a stream
    late/<queue>/<ticket>/<n>  record: the result of attempt n that came too late

A ticket is final if and only if its final record exists. Streams only say what is left to do: a
final ticket that is still in a stream is removed by the process that finds it.
"""

from __future__ import annotations

import hashlib
from typing import Any, ClassVar, Literal

from squall.coordination.events import Event
from squall.coordination.records.plain_json import plain_json
from squall.coordination.records.schemas import Schema
from squall.coordination.store_errors import CoordinationError
from squall.coordination.stores.interface import make_key
from squall.coordination.stores.kinds import kept_s

FINAL = "final"
FINAL_TTL_S = kept_s("final")
DEDUP_TTL_S = kept_s("dedup")
# A queue that no producer or worker touches for a month is forgotten.
STREAM_TTL_S = kept_s("queued")
# A larger payload is a record of its own: streams are read whole, by the leader and by operators.
INLINE_MAX_BYTES = 256 * 1024
# What a store takes as one value, less the fields around a payload.
PAYLOAD_MAX_BYTES = 16 * 1024 * 1024 - 1024

TicketState = Literal["pending", "published", "done", "dead_letter", "cancelled", "expired"]


class Ticket(Schema, frozen=True, kw_only=True, omit_defaults=True):
    """One piece of work. The producer signs it, and the leader signs it again when it publishes
    it. The name of the class is part of the signature."""

    given: ClassVar[str] = "payload"
    ticket_id: str
    queue: str
    payload: Any = None
    is_blob: bool = False
    """The payload is in a record of its own."""
    priority: int = 0
    """Higher goes first."""
    order_key: str = ""
    """Tickets with the same key run one after another, in the order of enqueuing."""
    not_before: float = 0.0
    start_before: float = 0.0
    """Store time; 0 for none."""
    max_attempts: int = 3
    created_at: float = 0.0
    epoch: int = 0
    """The epoch of the leader that published it; 0 before that."""


class Final(Schema, frozen=True, kw_only=True, omit_defaults=True):
    """How a ticket ended. The name of the class is part of the signature."""

    given: ClassVar[str] = "result"
    ticket_id: str
    state: TicketState
    result: Any = None
    error: str = ""
    attempt: int = 0
    claim: str = ""
    finished_by: str = ""
    finished_at: float = 0.0


class QueueStats(Schema, frozen=True, kw_only=True):
    """How full a queue is. `claimed` tickets are with a worker or wait for their next attempt."""

    pending: int
    published: int
    claimed: int
    dead_letters: int
    oldest_s: float


class TicketTooLargeError(CoordinationError):
    """The payload or result is too large; nothing was written."""


class TicketStateError(CoordinationError):
    """The ticket is already final, or unknown."""


def encoded_given(what: str, value: Any) -> bytes:
    body = plain_json(what, value)
    if len(body) > PAYLOAD_MAX_BYTES:
        raise TicketTooLargeError(
            f"the {what} has {len(body)} bytes, and the limit is {PAYLOAD_MAX_BYTES}: store it"
            " elsewhere and pass a reference"
        )
    return body


class QueueEvent(Event, frozen=True, kw_only=True):
    """What every event of a queue has."""

    queue: str


class TicketsPublished(QueueEvent, frozen=True, kw_only=True):
    """The leader made tickets available to workers."""

    name: ClassVar[str] = "plg:queue:tickets-published"
    epoch: int
    count: int


class TicketClaimed(QueueEvent, frozen=True, kw_only=True):
    """A worker of this member took a ticket."""

    name: ClassVar[str] = "plg:queue:ticket-claimed"
    ticket_id: str
    attempt: int


class TicketFinished(QueueEvent, frozen=True, kw_only=True):
    """This member ended a ticket as `done`, `dead_letter`, `cancelled` or `expired`."""

    name: ClassVar[str] = "plg:queue:ticket-finished"
    ticket_id: str
    state: str
    attempt: int
    error: str = ""


class TicketRetried(QueueEvent, frozen=True, kw_only=True):
    """An attempt of this member failed; the next one may begin after `delay_s`."""

    name: ClassVar[str] = "plg:queue:ticket-retried"
    ticket_id: str
    attempt: int
    delay_s: float
    error: str


class TicketLost(QueueEvent, frozen=True, kw_only=True):
    """A claim of this member ended before its work did."""

    name: ClassVar[str] = "plg:queue:ticket-lost"
    ticket_id: str
    attempt: int


class TicketRefused(QueueEvent, frozen=True, kw_only=True):
    """An item of the stream was not signed by a member of this namespace."""

    name: ClassVar[str] = "plg:queue:ticket-refused"
    item_id: str
    reason: str


class QueueKeys:
    """The keys and stream names of one queue."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.queued = make_key("queued", queue)
        self.ready = make_key("ready", queue)
        self.dead = make_key("deadletter", queue)

    def final(self, ticket_id: str) -> str:
        return make_key(FINAL, self.queue, ticket_id)

    def dedup(self, dedup_id: str) -> str:
        """Hashed, because a producer's id may be any text."""
        name = f"d-{hashlib.sha256(dedup_id.encode()).hexdigest()[:32]}"
        return make_key("dedup", self.queue, name)

    def payload(self, ticket_id: str) -> str:
        return make_key("payload", self.queue, ticket_id)

    def late(self, ticket_id: str, attempt: int) -> str:
        return make_key("late", self.queue, ticket_id, str(attempt))

    def quarantine(self, item_id: str) -> str:
        return make_key("quarantine", self.queue, item_id)
