"""`squall coord queue list | dead | requeue`: how full queues are, what failed for good, and
new tries for it.

Looking needs no secret and shows tickets as they are in the store. To requeue is to enqueue,
so it signs, as a member that never leads.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import AsyncIterator

from squall.api.errors import UsageError
from squall.cli.coord import joined, opened, seconds_of
from squall.cli.jobs import print_json
from squall.cli.streams import print_or_drop
from squall.coordination.queue.reading import QueueReading
from squall.coordination.queue.records import Final, QueueKeys, Ticket
from squall.coordination.records import Codec
from squall.coordination.stores.interface import Store
from squall.reporting.format import plural
from squall.reporting.layout import aligned

PAGE = 500


async def answered(arguments: Namespace) -> int:
    if arguments.queue_command == "requeue":
        return await _requeue(arguments)
    async with opened(arguments) as store:
        if arguments.queue_command == "dead":
            return await _dead(store, arguments)
        return await _list(store, arguments)


async def _list(store: Store, arguments: Namespace) -> int:
    found: list[dict[str, object]] = []
    for name in arguments.queues:
        names = QueueKeys(name)
        queued, ready = await store.depth(names.queued), await store.depth(names.ready)
        dead = await store.depth(names.dead)
        found.append(
            {
                "queue": name,
                "pending": queued.items,
                "published": ready.items - ready.held,
                "claimed": ready.held,
                "dead_letters": dead.items,
                "oldest_s": max(queued.oldest_ms, ready.oldest_ms) / 1000.0,
            }
        )
    if arguments.json:
        return print_json(found)
    rows: list[tuple[str, ...]] = [("QUEUE", "PENDING", "PUBLISHED", "CLAIMED", "DEAD", "OLDEST")]
    for queue in found:
        *words, oldest_s = queue.values()
        rows.append((*map(str, words), f"{oldest_s:.1f} s"))
    print_or_drop("\n".join(aligned(rows)))
    return 0


async def _dead(store: Store, arguments: Namespace) -> int:
    names = QueueKeys(arguments.queue)
    letters = [letter async for letter in _letters(store, names)]
    if arguments.json:
        return print_json(
            [
                {
                    "ticket_id": ticket.ticket_id,
                    "payload": ticket.payload,
                    "attempts": 0 if final is None else final.attempt,
                    "error": "" if final is None else final.error,
                }
                for ticket, final in letters
            ]
        )
    if not letters:
        print_or_drop(f"{arguments.queue} has no dead letters")
        return 0
    rows = [("TICKET", "ATTEMPTS", "ERROR")]
    for ticket, final in letters:
        attempts, error = ("-", "-") if final is None else (str(final.attempt), final.error)
        rows.append((ticket.ticket_id, attempts, error.partition("\n")[0] or "-"))
    print_or_drop("\n".join(aligned(rows)))
    return 0


async def _letters(store: Store, names: QueueKeys) -> AsyncIterator[tuple[Ticket, Final | None]]:
    codec, after = Codec(None), ""
    while True:
        page = await store.read(names.dead, after=after, limit=PAGE)
        for item in page:
            ticket = codec.read(Ticket, item.value, signed=False)
            if ticket is not None:
                (found,) = await store.get(names.final(ticket.ticket_id))
                yield ticket, None if found is None else codec.read(Final, found.value)
        if len(page) < PAGE:
            return
        after = page[-1].cursor


async def _requeue(arguments: Namespace) -> int:
    if bool(arguments.ticket) == arguments.all:
        raise UsageError("queue requeue: name dead letters with --ticket, or --all")
    seconds_of(arguments.within, "--within")
    reading = QueueReading(arguments.queue)
    async with joined(arguments, reading):
        ids = list(arguments.ticket)
        if arguments.all:
            ids = [ticket.ticket_id async for ticket, _ in reading.dead_letters()]
        made = {ticket_id: await reading.redrive(ticket_id) for ticket_id in ids}
    if arguments.json:
        return print_json(made)
    lines = [f"{old} is enqueued again as {new}" for old, new in made.items()]
    print_or_drop("\n".join([*lines, f"{plural(len(made), 'ticket')} enqueued again"]))
    return 0
