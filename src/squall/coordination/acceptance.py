"""Whether a signal that was read is believed. Pure.

The order of the questions: is the record one, is it signed by a key that is accepted, is it
for this receiver, is it in its time, is its epoch the present one, may its sender still
speak. The first that fails is the reason. Times are store times.
"""

from __future__ import annotations

from squall.coordination.records import Codec, Signal, Tombstone


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
    """Why a signal with a good signature is refused; None if it is not."""
    if signal.receiver_id != receiver_id:
        return "wrong_receiver"
    if signal.expires_at <= store_now:
        return "expired"
    if signal.timestamp > store_now + max_clock_skew:
        return "from_future"
    if is_stale(signal.epoch, known_epoch):
        return "stale_epoch"
    if (
        sender_tombstone is not None
        and signal.sender_incarnation <= sender_tombstone.incarnation
        and appended_at > sender_tombstone.died_at
    ):
        return "fenced_sender"
    return None


def is_stale(epoch: int, known_epoch: int) -> bool:
    """No tolerance: the epoch before the present one is exactly the deposed coordinator's.
    Signals of members carry no epoch (0)."""
    return 0 < epoch < known_epoch


def read_signal(codec: Codec, value: bytes) -> Signal | str:
    """The signal, or `missing`, `malformed`, `unknown_key`, `bad_signature`."""
    return codec.decode(Signal, value)
