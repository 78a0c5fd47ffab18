"""Known bugs of the coordination library, each switched on by its name.

Each one breaks a rule that was wrong in an older design or is easily forgotten. They are
patches of the real classes, in force for one run; the library itself knows nothing of them.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

from squall.coordination import acceptance, keys, mailbox, signing
from squall.coordination import election_messages as messages
from squall.coordination.election import Election
from squall.coordination.errors import StaleEpochError, StoreUnavailableError
from squall.coordination.leadership import Leadership
from squall.coordination.mailbox import Mailbox
from squall.coordination.monitor import Monitor
from squall.coordination.pulse import Pulse
from squall.coordination.queue.claims import ClaimedTicket
from squall.coordination.queue.plugin import Queue
from squall.coordination.scheduler.runner import Runner
from squall.coordination.stores.interface import ANY, Fence, Put, Remove, Write
from squall.coordination.stores.memory import MemoryStore
from squall.coordination.timing import Timing
from squall.sim.clock import SimClock

MUTANTS = {
    "lexicographic": "leadership is written without a condition: the smallest id just leads",
    "epoch_tolerance": "orders of the epoch before the present one are obeyed",
    "fence_tolerance": "the store takes writes of the epoch before the present one",
    "unsigned_payload": "the signature does not cover the payload",
    "no_local_limit": "a holder acts on until it hears that it was replaced",
    "sleeping_clock": "a lease is counted on a clock that stands still in suspension",
    "impatient": "a follower takes a lease at the first look",
    "no_idempotency": "a delivered signal is not remembered",
    "early_ack": "a signal is acknowledged when it is read",
    "ruthless_death": "a death replaces whatever heartbeat is there",
    "undead": "a member goes on beating after it was declared dead",
    "any_claim": "a worker ends its ticket though its claim ran out",
    "held_by_nobody": "a claim whose end could not be written is renewed on",
    "repeated_run": "a run that a coordinator left is begun again by the next one",
    "forgotten_run": "a run whose record was written without an answer is not begun",
    "endless_run": "the end of a run is not tried again when the store does not answer",
}


@contextmanager
def mutated(name: str | None) -> Generator[None]:
    with ExitStack() as stack:
        if name is not None:
            for patched in _PATCHES[name]():
                stack.enter_context(patched)
        yield


def _lexicographic() -> list[Any]:
    async def write(self: Leadership, request: messages.WriteLease) -> None:
        put = Put(keys.LEADER, self._codec.encode(request.lease), expect=ANY, ttl_s=None)
        fence = Fence(keys.LEADER, request.lease.epoch)
        try:
            (version,) = await self._urgent.write(put, fence=fence)
        except StaleEpochError:
            self.handle(messages.LeaseRefused(request))
        except StoreUnavailableError:
            self.handle(messages.LeaseUnanswered(request))
        else:
            self.handle(messages.LeaseWritten(request, version))

    return [patch.object(Leadership, "_write", write)]


def _epoch_tolerance() -> list[Any]:
    def is_stale(epoch: int, known_epoch: int) -> bool:
        return 0 < epoch < known_epoch - 1

    return [patch.object(acceptance, "is_stale", is_stale)]


def _fence_tolerance() -> list[Any]:
    def check_fence(self: MemoryStore, fence: Fence, writes: Any, now_ms: int) -> None:
        scope = self._live(fence.scope, now_ms)
        if scope is not None and abs(scope.epoch - fence.epoch) > 1:
            raise StaleEpochError(fence.scope, fence.epoch, scope.epoch)

    return [patch.object(MemoryStore, "_check_fence", check_fence)]


def _unsigned_payload() -> list[Any]:
    def content_of(kind: str, body: bytes) -> bytes:
        return signing.canonical(kind, msgspec.json.decode(body, type=dict[str, Any]))

    return [
        patch.object(signing, "UNSIGNED", ("signature", "payload")),
        patch.object(signing, "content_of", content_of),
    ]


def _no_local_limit() -> list[Any]:
    return [patch.object(Timing, "local_limit", property(lambda self: self.lease_ttl * 20.0))]


def _sleeping_clock() -> list[Any]:
    return [patch.object(SimClock, "boot_time", SimClock.now)]


def _impatient() -> list[Any]:
    def at_once(self: Election, now: float) -> float:
        return now

    return [patch.object(Election, "_free_at", at_once)]


def _no_idempotency() -> list[Any]:
    async def write_effects(self: Mailbox, source: Any, effects: Any) -> None:
        for effect in effects:
            await self._parts.patient.write(msgspec.structs.replace(effect, expect=ANY))

    marks = Mailbox._marks

    def forgetful(self: Mailbox, entry: Any) -> tuple[Write, ...]:
        return marks(self, entry)[1:]

    delivered = Mailbox.delivered

    async def careless(self: Mailbox, entry: Any, writes: Any = ()) -> bool:
        free = [msgspec.structs.replace(each, expect=ANY) for each in writes]
        return await delivered(self, entry, free)

    return [
        patch.object(Mailbox, "_write_effects", write_effects),
        patch.object(Mailbox, "_marks", forgetful),
        patch.object(Mailbox, "delivered", careless),
    ]


def _early_ack() -> list[Any]:
    accept = Mailbox._accept

    async def eager(self: Mailbox, source: Any, item: Any, signal: Any, known: Any) -> None:
        if not isinstance(signal, str):
            entry = mailbox.Entry(-1, source.stream, item.cursor, source.receiver_id, signal, 0)
            await self._again(entry)
        await accept(self, source, item, signal, known)

    return [patch.object(Mailbox, "_accept", eager)]


def _ruthless_death() -> list[Any]:
    declare = Monitor._declare_dead

    async def ruthless(
        self: Monitor, term: Any, stale: Any, beat: Any, member: Any, warning: Any
    ) -> None:
        now = await self._parts.patient.get(keys.heartbeat(stale.member_id))
        await declare(self, term, stale, now[0], member, warning)

    def always(self: Any, now: float) -> bool:
        return True

    from squall.coordination.health import Grace

    return [
        patch.object(Monitor, "_declare_dead", ruthless),
        patch.object(Grace, "may_warn", always),
    ]


def _undead() -> list[Any]:
    async def resolve(self: Pulse) -> None:
        _, beat = await self._read()
        if beat is not None:
            self._beat_version = beat.version

    return [patch.object(Pulse, "_resolve", resolve)]


def _any_claim() -> list[Any]:
    async def write(self: ClaimedTicket, *writes: Write) -> None:
        free: list[Write] = []
        for each in writes:
            if isinstance(each, Put):
                free.append(msgspec.structs.replace(each, expect=ANY))
            elif isinstance(each, Remove):
                free.append(msgspec.structs.replace(each, claim=""))
        if free:
            await self._queue.coordinator.store.write(*free)

    return [patch.object(ClaimedTicket, "_write", write)]


def _held_by_nobody() -> list[Any]:
    def stop_renewing(self: Queue, ticket: ClaimedTicket) -> None:
        if not ticket.is_open:
            self._renewed.pop(ticket, None)

    return [patch.object(Queue, "stop_renewing", stop_renewing)]


def _repeated_run() -> list[Any]:
    async def interrupt(self: Runner, name: str) -> None:
        slot = self._jobs[name].opened
        found = await self._open_run(name, slot) if slot else None
        if found is not None:
            run, record = found
            await self._start(run, self._jobs[name], record.version, record.value)

    return [patch.object(Runner, "_interrupt", interrupt)]


def _forgotten_run() -> list[Any]:
    async def resume(self: Runner, name: str, job: Any, slot: str) -> bool:
        return False

    return [patch.object(Runner, "_resume", resume)]


def _endless_run() -> list[Any]:
    async def once(self: Runner, call: Any) -> None:
        await call()

    return [patch.object(Runner, "_until_answered", once)]


_PATCHES: dict[str, Callable[[], list[Any]]] = {
    "lexicographic": _lexicographic,
    "epoch_tolerance": _epoch_tolerance,
    "fence_tolerance": _fence_tolerance,
    "unsigned_payload": _unsigned_payload,
    "no_local_limit": _no_local_limit,
    "sleeping_clock": _sleeping_clock,
    "impatient": _impatient,
    "no_idempotency": _no_idempotency,
    "early_ack": _early_ack,
    "ruthless_death": _ruthless_death,
    "undead": _undead,
    "any_claim": _any_claim,
    "held_by_nobody": _held_by_nobody,
    "repeated_run": _repeated_run,
    "forgotten_run": _forgotten_run,
    "endless_run": _endless_run,
}
