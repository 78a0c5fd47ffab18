"""Mutants of the coordination library: known bugs, each switched on by name.

Each breaks a rule that an older design got wrong or that is easily forgotten. A mutant patches the
real classes for one run; the library itself contains no switch for it.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

from lab.sim.clock import SimClock
from squall.coordination.election import leases, messages
from squall.coordination.election.core import Election
from squall.coordination.election.leadership import Leadership
from squall.coordination.errors import StaleEpochError, StoreUnavailableError
from squall.coordination.members.monitor import Monitor
from squall.coordination.members.registration import Registration
from squall.coordination.queue.claims import ClaimedTicket
from squall.coordination.queue.plugin import Queue
from squall.coordination.records import keys
from squall.coordination.scheduler.runner import ScheduleRunner
from squall.coordination.secrets import signing
from squall.coordination.signals import acceptance
from squall.coordination.signals.inbox_writer import InboxWriter
from squall.coordination.signals.matching import InboxEntry
from squall.coordination.signals.receiver import Receiver
from squall.coordination.stores.interface import ANY, Fence, Put, Remove, Write
from squall.coordination.stores.memory.store import MemoryStore
from squall.coordination.timing import Timing

MUTANTS = {
    "lexicographic": "members write the lease without a condition: the smallest id leads",
    "epoch_tolerance": "a member obeys orders of the previous epoch",
    "fence_tolerance": "the store accepts writes of the previous epoch",
    "unsigned_payload": "the signature does not cover the payload",
    "no_local_limit": "a leader acts past its lease, until it learns that it was replaced",
    "sleeping_clock": "a leader measures its lease with a clock that stops during suspension",
    "no_lease_wait": "a follower takes the lease when it first reads it, without waiting",
    "no_idempotency": "a receiver does not remember delivered signals",
    "early_ack": "a receiver acknowledges a signal when it reads it, before handling it",
    "ruthless_death": "a death notice replaces any heartbeat, even a fresh one",
    "beats_after_death": "a member continues its heartbeat after it was declared dead",
    "any_claim": "a worker finishes a ticket after its claim has expired",
    "renewed_after_end": "a worker renews a claim whose end it could not write",
    "repeated_run": "a new leader repeats a run that the previous one left unfinished",
    "forgotten_run": "a leader that gets no answer to the write of a run never starts it",
    "epoch_starts_at_one": "the first leader of a store that lost its data leads in epoch 1",
    "endless_run": "a leader does not retry writing the end of a run during an outage",
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


def _no_lease_wait() -> list[Any]:
    def at_once(self: Election, now: float) -> float:
        return now

    return [patch.object(Election, "_free_at", at_once)]


def _no_idempotency() -> list[Any]:
    async def write_effects(self: InboxWriter, inbox: Any, effects: Any) -> None:
        for effect in effects:
            await self._parts.patient.write(msgspec.structs.replace(effect, expect=ANY))

    marks = InboxWriter.marks

    def forgetful(self: InboxWriter, entry: Any) -> tuple[Write, ...]:
        return marks(self, entry)[1:]

    delivered = Receiver.deliver_once

    async def careless(self: Receiver, entry: Any, writes: Any = ()) -> bool:
        free = [msgspec.structs.replace(each, expect=ANY) for each in writes]
        return await delivered(self, entry, free)

    return [
        patch.object(InboxWriter, "write_effects", write_effects),
        patch.object(InboxWriter, "marks", forgetful),
        patch.object(Receiver, "deliver_once", careless),
    ]


def _early_ack() -> list[Any]:
    accept = Receiver._accept

    async def eager(self: Receiver, inbox: Any, item: Any, signal: Any, known: Any) -> None:
        if not isinstance(signal, str):
            entry = InboxEntry(-1, inbox.stream, item.cursor, inbox.receiver_id, signal, 0)
            await self.writer.acknowledge_again(entry)
        await accept(self, inbox, item, signal, known)

    return [patch.object(Receiver, "_accept", eager)]


def _ruthless_death() -> list[Any]:
    declare = Monitor._declare_dead

    async def ruthless(
        self: Monitor, term: Any, stale: Any, beat: Any, member: Any, warning: Any
    ) -> None:
        now = await self._parts.patient.get(keys.heartbeat(stale.member_id))
        await declare(self, term, stale, now[0], member, warning)

    def always(self: Any, now: float) -> bool:
        return True

    from squall.coordination.members.health_rules import GracePeriod

    return [
        patch.object(Monitor, "_declare_dead", ruthless),
        patch.object(GracePeriod, "may_warn", always),
    ]


def _beats_after_death() -> list[Any]:
    async def resolve(self: Registration) -> None:
        _, beat = await self._read()
        if beat is not None:
            self._beat_version = beat.version

    return [patch.object(Registration, "_resolve", resolve)]


def _any_claim() -> list[Any]:
    async def write(self: ClaimedTicket, *writes: Write) -> None:
        free: list[Write] = []
        for each in writes:
            if isinstance(each, Put):
                free.append(msgspec.structs.replace(each, expect=ANY))
            elif isinstance(each, Remove):
                free.append(msgspec.structs.replace(each, claim=""))
        if free:
            await self._queue.coordinator.parts.patient.write(*free)

    return [patch.object(ClaimedTicket, "_write", write)]


def _renewed_after_end() -> list[Any]:
    def stop_renewing(self: Queue, ticket: ClaimedTicket) -> None:
        if not ticket.is_open:
            self._renewed.pop(ticket, None)

    return [patch.object(Queue, "stop_renewing", stop_renewing)]


def _repeated_run() -> list[Any]:
    async def interrupt(self: ScheduleRunner, name: str) -> None:
        slot = self._jobs[name].opened
        found = await self._open_run(name, slot) if slot else None
        if found is not None:
            run, record = found
            await self._start(run, self._jobs[name], record.version, record.value)

    return [patch.object(ScheduleRunner, "_interrupt", interrupt)]


def _forgotten_run() -> list[Any]:
    async def resume(self: ScheduleRunner, name: str, job: Any, slot: str) -> bool:
        return False

    return [patch.object(ScheduleRunner, "_resume", resume)]


def _endless_run() -> list[Any]:
    async def once(self: ScheduleRunner, call: Any) -> None:
        await call()

    return [patch.object(ScheduleRunner, "_until_answered", once)]


def _epoch_starts_at_one() -> list[Any]:
    def without_clock(seen: Any, highest: int, wall_s: float) -> int:
        return max(seen.epoch if seen is not None else 0, highest) + 1

    return [patch.object(leases, "next_epoch", without_clock)]


_PATCHES: dict[str, Callable[[], list[Any]]] = {
    "lexicographic": _lexicographic,
    "epoch_tolerance": _epoch_tolerance,
    "fence_tolerance": _fence_tolerance,
    "unsigned_payload": _unsigned_payload,
    "no_local_limit": _no_local_limit,
    "sleeping_clock": _sleeping_clock,
    "no_lease_wait": _no_lease_wait,
    "no_idempotency": _no_idempotency,
    "early_ack": _early_ack,
    "ruthless_death": _ruthless_death,
    "beats_after_death": _beats_after_death,
    "any_claim": _any_claim,
    "renewed_after_end": _renewed_after_end,
    "repeated_run": _repeated_run,
    "forgotten_run": _forgotten_run,
    "endless_run": _endless_run,
    "epoch_starts_at_one": _epoch_starts_at_one,
}
