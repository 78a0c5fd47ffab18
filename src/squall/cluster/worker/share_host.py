"""The interface between a worker and the host that runs its shares.

The real host (`process_host`) runs each attempt in a core process of its own; in a simulation
a model takes its place. The worker decides everything (leases, order, kill ladder); a host
obeys and reports. A host never makes load without a `go` or beyond the deadline of
`set_lease`, and it reports `on_ended` or `on_refused` exactly once for every prepared attempt,
whatever happens to its process.

The life of an attempt:

    prepare ──► on_ready ──► go ──► on_report ... ──► on_ended
       └──────► on_refused          (stop, kill, end of the lease, death of the process)

- `prepare` returns at once. The host loads the code at once, and opens users (whose start
  actions may send requests) only once `set_lease` has set a deadline in the future.
- `stop` may come at any time after `prepare`; an attempt that has not begun then ends with
  an empty record, or is refused.
- After `on_ended` or `on_refused` the host has forgotten the attempt. It ignores calls that
  name an attempt it does not have.
- Callbacks run on the loop, never inside a call of the worker.
- Reports are deltas and arrive before `on_ended`; the worker adds them up.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from squall.cluster.protocol.job_keys import AttemptKey
from squall.engine.core_protocol import Adjust, ShareSpec
from squall.engine.process.attempt_events import AttemptEvents
from squall.engine.run_options import RunOptions


class ShareOrder(msgspec.Struct, frozen=True, kw_only=True):
    """All that a host needs to prepare one attempt."""

    key: AttemptKey
    spec: ShareSpec
    process: int
    """The number of its core process in the whole job, for health reports."""
    counters: str
    """The path of its counter file in the data directory (`counter_file`)."""
    iterations_done: int = 0
    """Iterations of earlier attempts: the stripe of feeds and ids continues after them."""
    bundle: str = ""
    """The digest; the host has this bundle. Empty for a run of a URL."""
    entry: str = ""
    requirements: tuple[str, ...] = ()
    python: str = ""
    options: RunOptions


HostEvents = AttemptEvents[AttemptKey]
"""Receives the events of this worker's attempts."""


class ShareHost(Protocol):
    """Runs attempts."""

    def attach(self, events: HostEvents) -> None:
        """Called once, before anything else."""
        ...

    async def has_bundle(self, digest: str) -> bool: ...
    async def add_bundle(self, digest: str, content: bytes) -> None:
        """Raises `SquallError` if the bundle cannot be unpacked, OSError if the disk is full."""
        ...

    def prepare(self, order: ShareOrder) -> None: ...

    def go(self, key: AttemptKey, elapsed_s: float, run_elapsed_s: float) -> None:
        """Begins the load: the workflow's clock shows `elapsed_s` now. Above zero, the attempt
        joins there: what was planned before is neither made nor late. Below zero, it begins
        when the clock shows zero."""
        ...

    def stop(self, key: AttemptKey, *, now: bool, cut: str) -> None:
        """Without `now`, iterations may end within their grace. `cut` goes into the record."""
        ...

    def kill(self, key: AttemptKey, cut: str) -> None:
        """Sends SIGKILL to the process group; what it has not reported is lost."""
        ...

    def set_lease(self, key: AttemptKey, until: float, boot_until: float) -> None:
        """Readings of the runtime's `clock.now()` and `clock.boot_time()`; infinity for a
        job that runs on without its manager. A deadline never moves back."""
        ...

    def adjust(self, key: AttemptKey, load: Adjust) -> None:
        """May be called at any time after `prepare`; before `go` it applies from the beginning."""
        ...

    async def close(self) -> None:
        """Ends everything that still runs, without reporting any end."""
        ...


class Machine(Protocol):
    """The machine of a worker, and the processes of its former boots (R6)."""

    @property
    def machine(self) -> str:
        """An id that two boots share only if one can see the processes of the other; "" if it is
        unknown."""
        ...

    @property
    def kernel_boot(self) -> str: ...
    @property
    def pid(self) -> int: ...
    @property
    def host(self) -> str: ...

    async def end_former(self, node: str, boot: str, pid: int, start: str) -> bool:
        """Kills and reaps all processes that another boot of this node left here. Returns True if
        it is certain that none of them runs any more."""
        ...

    def start_of(self, pid: int) -> str:
        """When this process started, by the kernel's count; "" if there is no such process."""
        ...
