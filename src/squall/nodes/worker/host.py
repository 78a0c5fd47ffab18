"""What a worker asks of whatever runs its shares, and what it is told back.

The real host (`squall.nodes.worker.processes`) runs each attempt in a core process of its
own; in a simulation a model with the same interface stands in. The node decides everything
(leases, order, ladders); a host obeys and tells. It must never start load without a `go`
or beyond the deadline of `set_lease`, and it must tell `on_ended` or `on_refused` exactly
once for every prepared attempt, whatever happens to its process.

The life of an attempt:

    prepare ──► on_ready ──► go ──► on_report ... ──► on_ended
       └──────► on_refused          (stop, kill, end of the lease, death of the process)

- `prepare` returns at once. The host loads the code at once, and opens users (whose start
  actions may send requests) only once `set_lease` has given it a deadline ahead.
- `stop` may come at any time after `prepare`; an attempt that has not begun then ends with
  an empty record, or is refused.
- After `on_ended` or `on_refused` the host knows the attempt no more; calls that name it
  are ignored, as are those for attempts it never had.
- Callbacks run on the loop, never inside a call of the node.
- Reports are deltas and arrive before `on_ended`; the node adds them up.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from squall.engine.options import RunOptions
from squall.engine.protocol import Adjust, Line, ShareSpec
from squall.nodes.identity import AttemptKey
from squall.stats.record import RecordEnd
from squall.stats.reports import ErrorSample, HealthReport, WindowReport

HostReport = WindowReport | HealthReport | ErrorSample | Line


class ShareOrder(msgspec.Struct, frozen=True, kw_only=True):
    """All that a host needs to prepare one attempt."""

    key: AttemptKey
    spec: ShareSpec
    process: int
    """Number of its core process in the whole job: for health reports."""
    iterations_done: int = 0
    """Made by earlier attempts; the stripe of feeds and ids continues after them."""
    bundle: str = ""
    """Digest; `has_bundle` was true before. Empty for a URL."""
    entry: str = ""
    requirements: tuple[str, ...] = ()
    python: str = ""
    options: RunOptions


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    """One line that says what is wrong, where, and what to do."""
    exit_code: int
    retryable: bool = False
    """Another worker, or a later time, may do."""


class HostEvents(Protocol):
    """What the node is told."""

    def on_ready(self, key: AttemptKey) -> None: ...
    def on_refused(self, key: AttemptKey, refusal: Refusal) -> None: ...
    def on_report(self, key: AttemptKey, report: HostReport) -> None: ...
    def on_held(self, key: AttemptKey, why: str, silent_s: float) -> None:
        """Its process lives, but executes nothing and cannot say so; "" when it does again."""
        ...

    def on_ended(self, key: AttemptKey, end: RecordEnd) -> None:
        """`end.cut` says why it ended before its time; empty for an end by itself."""
        ...


class ShareHost(Protocol):
    def attach(self, events: HostEvents) -> None:
        """Before anything else, once."""
        ...

    async def has_bundle(self, digest: str) -> bool: ...
    async def add_bundle(self, digest: str, content: bytes) -> None:
        """`SquallError` in one line if it cannot be unpacked; OSError for a full disk."""
        ...

    def prepare(self, order: ShareOrder) -> None: ...

    def go(self, key: AttemptKey, elapsed_s: float, run_elapsed_s: float) -> None:
        """Begin: the workflow's clock shows `elapsed_s` now. Above zero, join there: what
        was planned before is neither made nor late. Below zero, begin when it is zero."""
        ...

    def stop(self, key: AttemptKey, *, now: bool, cut: str) -> None:
        """Not `now`: iterations may end within their grace. `cut` goes into the record."""
        ...

    def kill(self, key: AttemptKey, cut: str) -> None:
        """SIGKILL of the process group; what it has not reported is lost."""
        ...

    def set_lease(self, key: AttemptKey, until: float, boot_until: float) -> None:
        """Readings of the runtime's `clock.now()` and `clock.boot_time()`; infinity for a
        job that runs on without its manager. A deadline never moves back."""
        ...

    def adjust(self, key: AttemptKey, load: Adjust) -> None:
        """At any time after `prepare`; before `go` it holds from the beginning."""
        ...

    async def close(self) -> None:
        """Ends everything that still runs; nobody is told."""
        ...


class Machine(Protocol):
    """What a boot can say about its machine, and about the processes of former boots."""

    @property
    def machine(self) -> str:
        """The same only where this machine's processes can be seen; "" if unknown."""
        ...

    @property
    def kernel_boot(self) -> str: ...
    @property
    def pid(self) -> int: ...
    @property
    def host(self) -> str: ...

    async def end_former(self, node: str, boot: str, pid: int, start: str) -> bool:
        """Kills and reaps all that another boot of this node left running here. True: it
        is certain that nothing of it runs any more."""
        ...

    def start_of(self, pid: int) -> str:
        """When this process started, as the kernel counts; "" if there is none."""
        ...
