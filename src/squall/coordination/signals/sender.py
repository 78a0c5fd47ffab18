"""Sends signals: signed, bound to the sender's boot, repeated under one id.

A repeat carries the very same bytes, so a receiver that had the first copy only acknowledges again,
or answers with a receipt if its handler still works on it. Only a signed acknowledgment of exactly
this signal counts. The sender must never send for a boot
that was declared dead.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

from squall.coordination import events
from squall.coordination.errors import (
    CoordinationError,
    InboxFullError,
    MemberFencedError,
    SignalDeliveryError,
    StoreError,
    StoreUnavailableError,
    StreamFullError,
    UnknownMemberError,
    VersionConflict,
)
from squall.coordination.member_parts import MemberParts
from squall.coordination.members.health_lookup import health_of
from squall.coordination.options import Options
from squall.coordination.records import keys
from squall.coordination.records.plain_json import NOT_PLAIN, not_plain
from squall.coordination.records.schemas import Signal, SignalAck, SignalReceipt
from squall.coordination.signals.matching import HEARTBEAT
from squall.coordination.signals.member_context import MemberContext
from squall.coordination.signals.step_retry import log_fields
from squall.coordination.stores.interface import (
    ANY,
    Append,
    Changed,
    Delete,
    Record,
    Write,
    make_key,
)
from squall.coordination.value_rules import check, whole
from squall.runtime.backoff import Backoff, Retries

ID_BYTES = 12
EPOCH_RULE = whole(0, example=0)
# Receivers whose registration was seen. Beyond it each send looks the receiver up.
KNOWN_MAX = 10_000
# Senders that all miss one receiver must not repeat at the same moment.
RETRY_SPREAD = 0.1


class Sender:
    """Sends the signals of one member."""

    def __init__(self, parts: MemberParts, context: MemberContext, options: Options) -> None:
        self._parts = parts
        self._context = context
        self._options = options
        self._known: set[str] = set()

    async def send(
        self,
        receiver_id: str,
        type: str,
        *,
        iteration: int,
        payload: Any,
        correlation_id: str | None,
        epoch: int,
        allow_unknown: bool,
    ) -> Signal:
        signal = self._make(receiver_id, type, iteration, payload, correlation_id, epoch)
        if await self._was_own_beat(signal):
            return signal
        await self._check_receiver(receiver_id, allow_unknown)
        await self._append(signal, self._encode(signal))
        return signal

    async def send_with_retry(
        self,
        receiver_id: str,
        type: str,
        *,
        iteration: int,
        payload: Any,
        correlation_id: str | None,
        epoch: int,
        allow_unknown: bool,
        max_retries: int,
        handled_within_s: float,
    ) -> SignalAck:
        signal = self._make(receiver_id, type, iteration, payload, correlation_id, epoch)
        if await self._was_own_beat(signal):
            return self._own_ack(signal)
        await self._check_receiver(receiver_id, allow_unknown)
        encoded = self._encode(signal)
        self._parts.awaited[signal.signal_id] = None
        try:
            return await self._repeated(signal, encoded, max_retries, handled_within_s)
        finally:
            del self._parts.awaited[signal.signal_id]

    async def _repeated(
        self, signal: Signal, encoded: bytes, max_retries: int, handled_within_s: float
    ) -> SignalAck:
        """Sends until the receiver acknowledges, or says that a consumer has the signal: then a
        repeat would change nothing, and only the acknowledgment is awaited."""
        policy = Backoff.around(self._options.retry_base, RETRY_SPREAD, tries=max_retries)
        retries = Retries(policy, self._parts.random.uniform)
        tries, handled_by = 0, math.inf
        while True:
            is_received = handled_by < math.inf
            try:
                if not is_received:
                    tries += 1
                    await self._append(signal, encoded)
                answer = await self._answered(signal, handled_by)
                if isinstance(answer, SignalAck):
                    if self._options.transient:
                        await self._forget(signal)
                    return answer
                if isinstance(answer, SignalReceipt) and answer.error:
                    is_received, error = True, f"its handler failed with {answer.error}"
                    break
                if isinstance(answer, SignalReceipt):
                    handled_by = self._parts.clock.now() + handled_within_s
                    continue
                error = answer
            except StoreUnavailableError as failure:
                error = str(failure)
                if is_received and self._parts.clock.now() < handled_by:
                    # The handler works on; the store may be back before it is done.
                    await self._parts.clock.sleep(self._options.retry_base)
                    continue
            delay_s = None if is_received else retries.next_delay_s()
            if delay_s is None:
                break
            self._parts.log.warning(
                "signal_retry",
                **log_fields(signal),
                receiver_id=signal.receiver_id,
                attempt=f"{tries}/{max_retries}",
                delay_s=round(delay_s, 2),
                error=error,
            )
            await self._parts.clock.sleep(delay_s)
        metrics = self._parts.metrics
        metrics.counter(metrics.families.signals_sent, "unacknowledged").add()
        await self._unreachable(signal.receiver_id, tries, error)
        raise SignalDeliveryError(
            signal.receiver_id, signal.signal_id, tries, error, received=is_received
        )

    async def _forget(self, signal: Signal) -> None:
        """Removes the acknowledgment: a transient member leaves nothing behind. If the removal
        fails, the record expires."""
        with contextlib.suppress(CoordinationError):
            ack = Delete(keys.ack(signal.sender_id, signal.signal_id), ANY)
            await self._parts.urgent.write(ack)

    async def _was_own_beat(self, signal: Signal) -> bool:
        """A `heartbeat` signal to oneself is sent as a heartbeat: it enters no inbox and ends no
        wait."""
        if signal.type != HEARTBEAT or signal.receiver_id != self._parts.member_id:
            return False
        await self._context.beat()
        return True

    def _own_ack(self, signal: Signal) -> SignalAck:
        return SignalAck(
            signal_id=signal.signal_id,
            receiver_id=signal.receiver_id,
            sender_id=signal.sender_id,
            iteration=signal.iteration,
            received_at=self._parts.store_time(),
        )

    def _make(
        self,
        receiver_id: str,
        type: str,
        iteration: int,
        payload: Any,
        correlation_id: str | None,
        epoch: int,
    ) -> Signal:
        make_key(type)
        check("epoch", epoch, EPOCH_RULE)
        if correlation_id:
            make_key(correlation_id)
        now = self._parts.store_time()
        return Signal(
            signal_id=self._parts.runtime.entropy(ID_BYTES).hex(),
            correlation_id=correlation_id or "",
            sender_id=self._parts.member_id,
            sender_boot=self._context.boot(),
            receiver_id=receiver_id,
            type=type,
            iteration=iteration,
            payload=payload,
            epoch=epoch,
            timestamp=now,
            expires_at=now + keys.SIGNAL_LIFE_S,
        )

    def _encode(self, signal: Signal) -> bytes:
        try:
            return self._parts.codec.encode(signal)
        except NOT_PLAIN as error:
            raise not_plain("payload", signal.payload, error) from None

    async def _check_receiver(self, receiver_id: str, allow_unknown: bool) -> None:
        key = keys.member(receiver_id)
        if allow_unknown or receiver_id in self._known:
            return
        (found,) = await self._parts.patient.get(key)
        if found is None:
            raise UnknownMemberError(receiver_id)
        if len(self._known) < KNOWN_MAX:
            self._known.add(receiver_id)

    async def _append(self, signal: Signal, encoded: bytes) -> None:
        check = self._context.alive()
        append = Append(
            keys.inbox(signal.receiver_id),
            signal.signal_id,
            encoded,
            ttl_s=keys.SIGNAL_TTL_S,
            limit=self._options.max_inbox,
            # The receiver gets these two versions with the pushed item, and need not ask for them
            # before it acts.
            carried=True,
            versions_of=(
                keys.idempotency(signal.receiver_id, signal.signal_id),
                keys.tombstone(signal.sender_id),
            ),
        )
        writes: tuple[Write, ...] = (append,) if check is None else (check, append)
        metrics = self._parts.metrics
        try:
            await self._parts.patient.write(*writes)
        except StreamFullError as full:
            metrics.counter(metrics.families.signals_sent, "full").add()
            raise InboxFullError(signal.receiver_id, full.limit) from None
        except VersionConflict:
            metrics.counter(metrics.families.signals_sent, "fenced").add()
            raise MemberFencedError(self._parts.member_id, self._context.boot()) from None
        metrics.counter(metrics.families.signals_sent, "sent").add()

    async def _answered(self, signal: Signal, handled_by: float) -> SignalAck | SignalReceipt | str:
        """The acknowledgment, a receipt with an error, or why none came. Before there was a receipt
        (`handled_by` is infinite) also the first receipt, and not longer than `ack_timeout`."""
        key, is_received = keys.ack(signal.sender_id, signal.signal_id), handled_by < math.inf
        clock, store = self._parts.clock, self._parts.patient
        limit_s = self._options.ack_timeout
        deadline = handled_by if is_received else clock.now() + limit_s
        version = ""
        while (left_s := deadline - clock.now()) > 0.0:
            slice_s = min(left_s, self._parts.timing.heartbeat_ttl) if is_received else left_s
            if not await store.wait(Changed(key, version), timeout_s=slice_s):
                if is_received and await self._is_gone(signal.receiver_id):
                    return "it received the signal, and left or died before it was done with it"
                continue
            (found,) = await store.get(key)
            if found is None:
                version = ""
                continue
            version = found.version
            answer = self._read_answer(found, signal)
            if isinstance(answer, SignalAck):
                metrics = self._parts.metrics
                latency_s = max(0.0, found.modified_ms / 1000.0 - signal.timestamp)
                metrics.histogram(metrics.families.signal_latency_s).observe(latency_s)
                return answer
            if answer is not None and (answer.error or not is_received):
                return answer
        if is_received:
            return "it received the signal, but was not done with it in time (timeout_s)"
        return f"no acknowledgment within {limit_s:g} s"

    def _read_answer(self, found: Record, signal: Signal) -> SignalAck | SignalReceipt | None:
        """None for a record that is not about this signal, or does not verify."""
        codec = self._parts.codec
        answer = codec.read(SignalAck, found.value) or codec.read(
            SignalReceipt, found.value, key=found.key
        )
        fits = (
            answer is not None
            and answer.signal_id == signal.signal_id
            and answer.receiver_id == signal.receiver_id
            and answer.sender_id == signal.sender_id
        )
        return answer if fits else None

    async def _is_gone(self, receiver_id: str) -> bool:
        return (await health_of(self._parts, [receiver_id]))[receiver_id] in ("dead", "left")

    async def _unreachable(self, receiver_id: str, attempts: int, error: str) -> None:
        """Emits an event with the receiver's health. Only the leader declares members dead."""
        health = "unknown"
        with contextlib.suppress(StoreError):
            health = (await health_of(self._parts, [receiver_id]))[receiver_id]
        self._parts.bus.emit(
            events.CoordinatorUnreachable(
                member_id=receiver_id,
                reason="signal_delivery_failure",
                attempts=attempts,
                error=error,
                health=health,
            )
        )
