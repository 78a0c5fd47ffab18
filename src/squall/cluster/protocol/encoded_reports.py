"""Reports as bytes, for their way from a worker through the managers.

A worker encodes each report once. Managers store and forward the bytes and decode each
window report once, when it is summed; until then they only read where it belongs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from squall.stats.reports import HealthReport, WindowReport

encode_report = msgspec.msgpack.Encoder().encode
decode_health = msgspec.msgpack.Decoder(HealthReport).decode
_decode_window = msgspec.msgpack.Decoder(WindowReport).decode


class WindowPlace(msgspec.Struct, array_like=True, tag="window"):
    """The first fields of a `WindowReport`. The decoder skips the rest without making objects
    of it, which is what makes this cheap."""

    workflow: str
    share: int
    window: int


_decode_place = msgspec.msgpack.Decoder(WindowPlace).decode


class TimedReport(NamedTuple):
    """An encoded report with the second that it belongs to."""

    second: int
    data: bytes


def windows_in(encoded: Iterable[msgspec.Raw]) -> list[TimedReport]:
    """Raises `msgspec.ValidationError` if the bytes are not a window report. The bytes are copied:
    the message that they came in is larger and must not stay in memory for them."""
    return [TimedReport(_decode_place(each).window, bytes(each)) for each in encoded]


def healths_in(encoded: Iterable[msgspec.Raw]) -> list[tuple[HealthReport, bytes]]:
    return [(decode_health(each), bytes(each)) for each in encoded]


def raw(report: WindowReport | HealthReport) -> msgspec.Raw:
    return msgspec.Raw(encode_report(report))


def decode_windows(encoded: Iterable[bytes]) -> list[WindowReport]:
    """Leaves out what cannot be decoded: one broken report must not end the sums of its job."""
    found: list[WindowReport] = []
    for data in encoded:
        try:
            found.append(_decode_window(data))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
    return found
