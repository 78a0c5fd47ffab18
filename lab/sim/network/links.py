"""The way from one host to another: how long it takes, what it loses, whether it is open.

A link has one direction. It is closed by a cut (what is sent is lost, streams wait and
send again) or by a clog (what is sent waits, up to a few datagrams). Cuts and clogs are
counted, so that two faults on one link can end in any order. Links decide nothing about
streams; they notify a waiting stream when they are open again.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

CLOG_CAPACITY = 16
"""Datagrams that wait in a clogged link; the rest is lost (TigerBeetle draws 2 to 20)."""
QUEUE_LIMIT_S = 1.0
"""A datagram that would wait longer for bandwidth is dropped, as a router would."""


@dataclass(frozen=True, slots=True)
class LinkProfile:
    """Defaults: a quiet LAN."""

    delay_s: float = 0.0003
    jitter_s: float = 0.0004
    tail: float = 0.0
    """Probability of a delay from the heavy tail, of mean `tail_s`."""
    tail_s: float = 0.0
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    """Probability that a datagram is overtaken: up to `reorder_s` later."""
    reorder_s: float = 0.02
    bandwidth_bytes_s: float = 0.0
    """0: no limit."""
    fragment: float = 0.0
    """Probability that a piece of a stream is cut at arbitrary places."""
    coalesce: float = 0.0
    """Probability that arrived bytes wait a little for more."""
    break_after_s: float = 20.0
    """A stream that gets no acknowledgment for this time is broken."""


class Waiter(Protocol):
    """A stream that has something to send on a closed link."""

    def link_opened(self) -> None: ...


class Link:
    __slots__ = (
        "busy_until",
        "clogs",
        "cuts",
        "held",
        "open",
        "profile",
        "source",
        "target",
        "waiters",
    )

    def __init__(self, source: str, target: str, profile: LinkProfile) -> None:
        self.source = source
        self.target = target
        self.profile = profile
        self.open = True
        self.cuts = 0
        self.clogs = 0
        self.busy_until = 0.0
        self.held: deque[Callable[[], None]] = deque()
        self.waiters: dict[Waiter, None] = {}

    def delay(self, draw: random.Random, now: float, size: int) -> float:
        """Time on the way for `size` bytes that are sent now."""
        profile = self.profile
        delay = profile.delay_s + profile.jitter_s * draw.random()
        if profile.tail and draw.random() < profile.tail:
            delay += draw.expovariate(1.0) * profile.tail_s
        if profile.bandwidth_bytes_s:
            begin = max(self.busy_until, now)
            self.busy_until = begin + size / profile.bandwidth_bytes_s
            delay += self.busy_until - now
        return delay

    def congested(self, now: float) -> bool:
        return self.busy_until - now > QUEUE_LIMIT_S

    def hold(self, send: Callable[[], None]) -> bool:
        """Keeps a datagram of a clogged link for later; False: it is lost."""
        if self.cuts or len(self.held) >= CLOG_CAPACITY:
            return False
        self.held.append(send)
        return True

    def change(self, *, cuts: int = 0, clogs: int = 0) -> None:
        self.cuts = max(self.cuts + cuts, 0)
        self.clogs = max(self.clogs + clogs, 0)
        was_open, self.open = self.open, not (self.cuts or self.clogs)
        if self.cuts:
            self.held.clear()
        if self.open and not was_open:
            held, self.held = self.held, deque()
            for send in held:
                send()
            waiters, self.waiters = self.waiters, {}
            for waiter in waiters:
                waiter.link_opened()


class Links:
    """All links, made when first used, with the profile that holds for all or for one."""

    def __init__(self, profile: LinkProfile | None = None) -> None:
        self._links: dict[tuple[str, str], Link] = {}
        self._default = profile or LinkProfile()
        self._profiles: dict[tuple[str, str], LinkProfile] = {}

    def between(self, source: str, target: str) -> Link:
        key = (source, target)
        link = self._links.get(key)
        if link is None:
            profile = self._profiles.get(key, self._default)
            if source == target:
                profile = LinkProfile(delay_s=0.00002, jitter_s=0.00002)
            link = self._links[key] = Link(source, target, profile)
        return link

    def shape(self, profile: LinkProfile, source: str | None = None, target: str = "") -> None:
        """For all links between hosts, or for the one from `source` to `target`."""
        if source is not None:
            self._profiles[source, target] = profile
            self.between(source, target).profile = profile
            return
        self._default = profile
        for key, link in self._links.items():
            if link.source != link.target and key not in self._profiles:
                link.profile = profile

    def cut(self, source: str, target: str) -> None:
        self.between(source, target).change(cuts=1)

    def mend(self, source: str, target: str) -> None:
        self.between(source, target).change(cuts=-1)

    def clog(self, source: str, target: str) -> None:
        self.between(source, target).change(clogs=1)

    def unclog(self, source: str, target: str) -> None:
        self.between(source, target).change(clogs=-1)

    def mend_all(self) -> None:
        """Opens every link, however it was closed."""
        for link in list(self._links.values()):
            link.change(cuts=-link.cuts, clogs=-link.clogs)
