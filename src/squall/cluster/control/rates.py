"""Limits how often one client may ask: a token bucket per client and kind of request.

A client that asks too often gets the exact wait after which it succeeds, and takes nothing
from the others. A full bucket is forgotten, so memory follows the clients that ask now. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from squall.cluster.control.settings import RateSettings


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float


class RateLimit:
    """The buckets of all clients for one kind of request."""

    def __init__(self, settings: RateSettings) -> None:
        self._settings = settings
        self._buckets: dict[str, _Bucket] = {}
        self._sweep_at = settings.full_after_s
        self.refused = 0

    def __len__(self) -> int:
        return len(self._buckets)

    def ask(self, client: str, now: float) -> float:
        """0 if the client may ask now, else the seconds until it may."""
        settings = self._settings
        self._sweep(now)
        bucket = self._buckets.get(client)
        if bucket is None:
            bucket = self._buckets[client] = _Bucket(settings.burst, now)
        passed_s = max(now - bucket.at, 0.0)
        bucket.tokens = min(bucket.tokens + passed_s * settings.per_s, settings.burst)
        bucket.at = max(bucket.at, now)
        # The tolerance admits a client that waited exactly as long as the refusal asked.
        if bucket.tokens >= 1.0 - 1e-9:
            bucket.tokens -= 1.0
            return 0.0
        self.refused += 1
        return (1.0 - bucket.tokens) / settings.per_s

    def _sweep(self, now: float) -> None:
        full_s = self._settings.full_after_s
        if now < self._sweep_at and len(self._buckets) < self._settings.clients_max:
            return
        self._sweep_at = now + full_s
        for client in [c for c, bucket in self._buckets.items() if now - bucket.at >= full_s]:
            del self._buckets[client]
        while len(self._buckets) >= self._settings.clients_max:
            del self._buckets[next(iter(self._buckets))]
