"""One share in its core process: with its own lease, counter file and end.

The shares of a core process run on one event loop. What one of them does to the loop concerns all;
everything else is theirs alone, so that one can end, or lose its lease, while the others go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter

from squall.engine.core_protocol import Adjust, Ended, Go, ShareName, Stop
from squall.engine.process.counter_file import CounterFile
from squall.engine.process.lease import LeaseGuard
from squall.engine.users.share import Share

FOLD_S = 0.1
# The shares of a process fold in turn, so that a hundred of them do not delay the loop together.
TURNS = 10
LEASE_ENDED = "lease ended"


class CoreShare:
    """Passes the parent's orders on to a share as soon as it can obey them. Calls `on_cut` when its
    lease has ended."""

    def __init__(
        self,
        share: Share,
        lease: LeaseGuard | None,
        counters: str,
        number: int,
        on_cut: Callable[[CoreShare], None],
    ) -> None:
        """`number` counts the shares of the process: it decides when this one folds."""
        self.share = share
        self._lease = lease
        self._counters = CounterFile(counters) if counters else None
        self._on_cut = on_cut
        self._phase_s = FOLD_S * (number % TURNS) / TURNS
        self._next_turn = 0.0
        self._stop: Stop | None = None
        self._adjust: Adjust | None = None
        # Its users are open.
        self.prepared = False
        # It got its Go: its load runs, or will within a moment.
        self.begun = False
        # Awaits its end, once it has begun.
        self.ending: asyncio.Task[None] | None = None
        if lease is not None:
            lease.on_end, lease.on_gap = self._on_lease_end, self.write_counters

    @property
    def name(self) -> ShareName:
        return self.share.spec.name

    @property
    def lease_ended(self) -> bool:
        return self._lease is not None and self._lease.ended

    def go(self, message: Go) -> None:
        self.begun = True
        self._next_turn = perf_counter() + self._phase_s
        if self._adjust is not None:
            self.share.adjust(self._adjust)
        self.share.go(message.at, message.joined_s)
        if self._stop is not None:
            self.share.stop(now=self._stop.now)

    def adjust(self, wanted: Adjust) -> None:
        self._adjust = wanted
        if self.begun:
            self.share.adjust(wanted)

    def stop(self, message: Stop) -> None:
        self._stop = message
        self.share.stop(now=message.now)

    def check_lease(self) -> None:
        if self._lease is not None:
            self._lease.check()

    def has_turn(self, now: float) -> bool:
        """True every `FOLD_S`, also after a delay of the loop."""
        late_s = now - self._next_turn
        if late_s < 0.0:
            return False
        self._next_turn += FOLD_S * (1 + int(late_s / FOLD_S))
        return True

    def beat(self, now: float) -> None:
        # After a standstill the lease comes first: a share that is over has no more windows.
        if self.share.may_go_on(now):
            self.share.beat(now)

    def fold(self) -> None:
        self.check_lease()
        self.write_counters()

    def write_counters(self) -> None:
        """Written whenever the lease is read, so that no request leaves long after them."""
        if self.begun:
            share = self.share
            share.fold()
            if self._counters is not None:
                at_s = share.elapsed_s(perf_counter())
                self._counters.write(share.recorder.counters(at_s))

    async def wait(self) -> Ended:
        ended = await self.share.wait()
        self.close()
        return ended

    def give_up(self, why: str) -> Ended:
        if self.ending is not None:
            self.ending.cancel()
        self.close()
        return self.share.give_up(why)

    def close(self) -> None:
        if self._lease is not None:
            self._lease.close()
        if self._counters is not None:
            self._counters.close()

    def _on_lease_end(self, at: float) -> None:
        self._stop = Stop(now=True)
        self.share.cut(LEASE_ENDED, at)
        self._on_cut(self)
