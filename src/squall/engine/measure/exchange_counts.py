"""Reads the counters of a share's clients, for its window reports."""

from __future__ import annotations

from array import array

from squall.clients.http import HTTPShared
from squall.clients.http.shared import HTTPCounters
from squall.stats.histogram import Histogram, summed
from squall.stats.reports import HTTP1, HistogramData, ProtocolDelta, RequestsDelta

_OF_REQUESTS = RequestsDelta.__struct_fields__
_OF_PROTOCOL = ("messages_sent", "messages_received", "in_flight")


class ExchangeCounts:
    """What was counted since the last report, in all protocols and in each."""

    def __init__(self, http: HTTPShared) -> None:
        self._http = http
        # Everything that is in a report, by protocol.
        self._reported: dict[str, dict[str, int]] = {}
        self._statuses = self._all_statuses()

    @property
    def has_news(self) -> bool:
        """Whether requests were made since the last report."""
        return self._http.total("sent") > sum(each["sent"] for each in self._reported.values())

    def take(self) -> list[ProtocolDelta]:
        """What happened in each protocol since the last call."""
        return [
            self._protocol(name, counters)
            for name, counters in tuple(self._http.counters_by_protocol.items())
        ]

    def take_statuses(self) -> dict[int, int]:
        now, before = self._all_statuses(), self._statuses
        self._statuses = now
        return {
            status: count - known
            for status, (count, known) in enumerate(zip(now, before, strict=True))
            if count > known
        }

    def _all_statuses(self) -> list[int]:
        found = [each.statuses for each in self._http.counters_by_protocol.values()]
        return (
            list(found[0]) if len(found) == 1 else [sum(each) for each in zip(*found, strict=True)]
        )

    def _protocol(self, name: str, counters: HTTPCounters) -> ProtocolDelta:
        before = self._reported.get(name, {})
        now = {key: getattr(counters, key) for key in (*_OF_REQUESTS, *_OF_PROTOCOL)}
        self._reported[name] = now
        new = {key: count - before.get(key, 0) for key, count in now.items()}
        return ProtocolDelta(
            name=name,
            requests=RequestsDelta(*(new[key] for key in _OF_REQUESTS)),
            connect=samples_of(counters.connect_samples),
            tls=samples_of(counters.tls_samples),
            **{key: new[key] for key in _OF_PROTOCOL},
        )


def requests_of(protocols: list[ProtocolDelta]) -> RequestsDelta:
    """The exchanges of all protocols."""
    if len(protocols) == 1:
        return protocols[0].requests
    return RequestsDelta(
        *(sum(getattr(each.requests, key) for each in protocols) for key in _OF_REQUESTS)
    )


def times_of(protocols: list[ProtocolDelta], name: str) -> HistogramData | None:
    """The histogram `name` of all protocols; None without samples."""
    found = [data for each in protocols if (data := getattr(each, name)) is not None]
    return summed(found) if found else None


def listed(protocols: list[ProtocolDelta]) -> list[ProtocolDelta]:
    """What a report lists: nothing if there is HTTP/1 only, whose numbers are the report's own."""
    return [] if [each.name for each in protocols] == [HTTP1] else protocols


def samples_of(samples: array[float]) -> HistogramData | None:
    """The histogram of some samples, which it removes; None without any."""
    if not samples:
        return None
    histogram = Histogram()
    histogram.add_seconds(drained(samples))
    return histogram.to_data()


def drained(samples: array[float]) -> array[float]:
    """Empties the array in place and returns a copy.

    numpy must not read the array itself: while the watchdog thread holds one of our frames,
    the buffer may stay exported, and an exported array cannot shrink.
    """
    copy = samples[:]
    del samples[:]
    return copy
