"""`squall coord queue list | peek | final | dead | requeue | cancel`: inspects queues, enqueues
dead letters again and cancels open tickets.

Reading needs no secret and shows tickets as they are in the store. `requeue` enqueues and `cancel`
writes how a ticket ended, so both sign, as a member that never leads.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from squall.api.errors import UsageError
from squall.cli.coord.command import joined, number_of, opened, seconds_of
from squall.coordination.queue.inspection import QueueInspection
from squall.coordination.queue.records import Final, QueueKeys, Ticket, TicketStateError
from squall.coordination.records.schemas import Codec
from squall.coordination.stores.interface import Store
from squall.reporting.number_format import plural
from squall.reporting.text.layout import aligned
from squall.reporting.text.standard_streams import print_json, print_or_drop

PAGE = 500


async def answered(arguments: Namespace) -> int:
    change = {"requeue": _requeue, "cancel": _cancel}.get(arguments.queue_command)
    if change is not None:
        return await change(arguments)
    query = {"list": _list, "peek": _peek, "final": _final, "dead": _dead}[arguments.queue_command]
    async with opened(arguments) as store:
        return await query(store, arguments)


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


async def _peek(store: Store, arguments: Namespace) -> int:
    limit = number_of(arguments.limit, "--limit", least=1)
    names, found = QueueKeys(arguments.queue), list[tuple[str, Ticket]]()
    for state, stream in (("ready", names.ready), ("pending", names.queued)):
        async with aclosing(_tickets(store, stream)) as tickets:
            async for ticket in tickets:
                if len(found) == limit:
                    break
                found.append((state, ticket))
    if arguments.json:
        return print_json(
            [
                {
                    "ticket_id": ticket.ticket_id,
                    "state": state,
                    "priority": ticket.priority,
                    "order_key": ticket.order_key,
                    "payload": ticket.payload,
                }
                for state, ticket in found
            ]
        )
    if not found:
        print_or_drop(f"{arguments.queue} has no open tickets")
        return 0
    rows = [("TICKET", "STATE", "PRIORITY", "ORDER KEY")]
    rows += [
        (ticket.ticket_id, state, str(ticket.priority), ticket.order_key or "-")
        for state, ticket in found
    ]
    print_or_drop("\n".join(aligned(rows)))
    return 0


async def _final(store: Store, arguments: Namespace) -> int:
    (found,) = await store.get(QueueKeys(arguments.queue).final(arguments.ticket))
    final = None if found is None else Codec(None).read(Final, found.value, signed=False)
    if final is None:
        raise TicketStateError(
            f"{arguments.ticket} of {arguments.queue} is open, ended more than a day ago,"
            " or never existed: see squall coord queue peek"
        )
    if arguments.json:
        return print_json(
            {
                "ticket_id": final.ticket_id,
                "state": final.state,
                "result": final.result,
                "error": final.error,
                "attempt": final.attempt,
            }
        )
    tail = f": {final.error}" if final.error else ""
    print_or_drop(f"{final.ticket_id} is {final.state}, in attempt {final.attempt}{tail}")
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
    async for ticket in _tickets(store, names.dead):
        (found,) = await store.get(names.final(ticket.ticket_id))
        yield ticket, None if found is None else Codec(None).read(Final, found.value)


async def _tickets(store: Store, stream: str) -> AsyncGenerator[Ticket]:
    codec, after = Codec(None), ""
    while True:
        page = await store.read(stream, after=after, limit=PAGE)
        for item in page:
            ticket = codec.read(Ticket, item.value, signed=False)
            if ticket is not None:
                yield ticket
        if len(page) < PAGE:
            return
        after = page[-1].cursor


async def _requeue(arguments: Namespace) -> int:
    if bool(arguments.ticket) == arguments.all:
        raise UsageError("queue requeue: name dead letters with --ticket, or use --all")
    seconds_of(arguments.within, "--within")
    reading = QueueInspection(arguments.queue)
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


async def _cancel(arguments: Namespace) -> int:
    if bool(arguments.ticket) == arguments.all:
        raise UsageError("queue cancel: name tickets with --ticket, or use --all")
    seconds_of(arguments.within, "--within")
    reading = QueueInspection(arguments.queue)
    async with joined(arguments, reading):
        if arguments.all:
            count = await reading.purge()
        else:
            count = sum([await reading.cancel(ticket_id) for ticket_id in arguments.ticket])
    if arguments.json:
        return print_json({"cancelled": count})
    late = len(arguments.ticket) - count if arguments.ticket else 0
    tail = f", {late} had already ended" if late else ""
    print_or_drop(f"{plural(count, 'ticket')} cancelled{tail}")
    return 0
