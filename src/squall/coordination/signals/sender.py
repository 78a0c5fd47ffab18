"""Sends signals: signed, bound to the sender's boot, repeated under one id.

A repeat carries the very same bytes, so a receiver that had the first copy only acknowledges again.
Only a signed acknowledgment of exactly this signal counts. The sender must never send for a boot
that was declared dead.
"""

from __future__ import annotations

import contextlib
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
from squall.coordination.records.schemas import Signal, SignalAck
from squall.coordination.signals.matching import HEARTBEAT
from squall.coordination.signals.member_context import MemberContext
from squall.coordination.stores.interface import ANY, Append, Changed, Delete, Write, make_key
from squall.runtime.backoff import Backoff, Retries

ID_BYTES = 12
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
    ) -> SignalAck:
        signal = self._make(receiver_id, type, iteration, payload, correlation_id, epoch)
        if await self._was_own_beat(signal):
            return self._own_ack(signal)
        await self._check_receiver(receiver_id, allow_unknown)
        encoded = self._encode(signal)
        self._parts.awaited[signal.signal_id] = None
        try:
            return await self._repeated(signal, encoded, max_retries)
        finally:
            del self._parts.awaited[signal.signal_id]

    async def _repeated(self, signal: Signal, encoded: bytes, max_retries: int) -> SignalAck:
        receiver_id, last_error = signal.receiver_id, "no acknowledgment"
        policy = Backoff.around(self._options.retry_base, RETRY_SPREAD, tries=max_retries)
        retries = Retries(policy, self._parts.random.uniform)
        while True:
            try:
                await self._append(signal, encoded)
                ack = await self._acknowledged(signal)
                if ack is not None:
                    if self._options.transient:
                        await self._forget(signal)
                    return ack
                last_error = f"no acknowledgment within {self._options.ack_timeout:g} s"
            except StoreUnavailableError as error:
                last_error = str(error)
            delay_s = retries.next_delay_s()
            if delay_s is None:
                break
            await self._parts.clock.sleep(delay_s)
        metrics = self._parts.metrics
        metrics.counter(metrics.families.signals_sent, "unacknowledged").add()
        await self._unreachable(receiver_id, max_retries, last_error)
        raise SignalDeliveryError(receiver_id, signal.signal_id, max_retries, last_error)

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

    async def _acknowledged(self, signal: Signal) -> SignalAck | None:
        key = keys.ack(signal.sender_id, signal.signal_id)
        clock = self._parts.clock
        deadline = clock.now() + self._options.ack_timeout
        while (left_s := deadline - clock.now()) > 0.0:
            if not await self._parts.patient.wait(Changed(key, ""), timeout_s=left_s):
                continue
            (found,) = await self._parts.patient.get(key)
            ack = (
                None
                if found is None
                else self._parts.codec.read(SignalAck, found.value, key=found.key)
            )
            if found is not None and ack is not None and self._fits(ack, signal):
                metrics = self._parts.metrics
                latency_s = max(0.0, found.modified_ms / 1000.0 - signal.timestamp)
                metrics.histogram(metrics.families.signal_latency_s).observe(latency_s)
                return ack
            # A record that is not our acknowledgment, or does not verify: `wait` would return at
            # once for it again, so this pause keeps the loop from spinning.
            await clock.sleep(min(left_s, 0.1))
        return None

    @staticmethod
    def _fits(ack: SignalAck, signal: Signal) -> bool:
        return (
            ack.signal_id == signal.signal_id
            and ack.receiver_id == signal.receiver_id
            and ack.sender_id == signal.sender_id
        )

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
