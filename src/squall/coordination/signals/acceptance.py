"""Decides whether a signal that was read is accepted. Pure.

In this order: does the record decode, is it signed with an accepted key, is it for this receiver,
has it expired or come from the future, is its epoch the current one, was its sender alive when it
was sent. The first question that fails is the reason. Times are store times.
"""

from __future__ import annotations

from squall.coordination.records.schemas import Codec, Signal, Tombstone


def refusal(
    signal: Signal,
    *,
    receiver_id: str,
    store_now: float,
    appended_at: float,
    known_epoch: int,
    max_clock_skew: float,
    sender_tombstone: Tombstone | None,
) -> str | None:
    """Why a signal with a valid signature is refused; None if it is accepted."""
    if signal.receiver_id != receiver_id:
        return "wrong_receiver"
    if signal.expires_at <= store_now:
        return "expired"
    if signal.timestamp > store_now + max_clock_skew:
        return "from_future"
    if is_stale(signal.epoch, known_epoch):
        return "stale_epoch"
    if signal.epoch > known_epoch or signal.epoch < 0:
        return "unknown_epoch"
    # Sent after the sender's death: that process was replaced and did not know it. What it sent
    # before its death counts.
    if (
        sender_tombstone is not None
        and signal.sender_boot <= sender_tombstone.boot
        and appended_at > sender_tombstone.died_at
    ):
        return "fenced_sender"
    return None


def is_stale(epoch: int, known_epoch: int) -> bool:
    """Whether an order comes from a deposed leader. There is no tolerance: the epoch before the
    current one is exactly that leader's. Signals of ordinary members have no epoch (0)."""
    return 0 < epoch < known_epoch


def read_signal(codec: Codec, value: bytes) -> Signal | str:
    """The signal, or `missing`, `malformed`, `unknown_key`, `bad_signature`."""
    return codec.decode(Signal, value)
