"""Connects a client to a cluster for the time of one command.

The journal of submissions lies in the user's state directory (`XDG_STATE_HOME`), so that
a command that is repeated after a crash finds the key of its job. So do the managers that were met,
so that a command finds them after those that it names were replaced.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from squall.api.errors import UsageError
from squall.cluster.client.access import ClusterAccess, RoutedCluster
from squall.cluster.client.cluster_client import RECONNECT_TIMEOUT_S, ClusterClient
from squall.cluster.client.known_managers import KnownManagers
from squall.cluster.client.submission_journal import SubmissionJournal
from squall.cluster.protocol.timeouts import RequestTimeouts
from squall.runtime.interfaces import Address, Runtime
from squall.runtime.real.runtime import RealRuntime
from squall.runtime.tasks import TaskRunner

SHUTDOWN_S = 2.0


@dataclass(frozen=True)
class ClientConnection:
    client: ClusterClient
    journal: SubmissionJournal
    routed: RoutedCluster | None = None
    """The agents behind a store; None if the client talks to managers."""

    async def ready(
        self, say: Callable[[str], None] = lambda _: None, within_s: float | None = math.inf
    ) -> None:
        """Waits for an agent if the store has none yet, and reports the wait through `say`. None:
        as long as a query waits for an answer."""
        if self.routed is not None:
            query_s = self.routed.timeouts.query_s
            await self.routed.ready(say, query_s if within_s is None else within_s)


@asynccontextmanager
async def client_runtime(
    dns_server: Address | None = None,
) -> AsyncGenerator[tuple[Runtime, TaskRunner]]:
    """The machine's runtime under a new client id, with its data in the state directory."""
    node = f"client-{secrets.token_hex(6)}"
    try:
        runtime = RealRuntime(node, data_dir=state_folder(), dns_server=dns_server)
    except OSError as error:
        raise UsageError(
            f"{state_folder()}: cannot keep the keys of jobs there: {error.strerror}; "
            "set XDG_STATE_HOME"
        ) from None
    tasks = TaskRunner(runtime.clock, runtime.random)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(runtime.close)
        stack.push_async_callback(tasks.shutdown, SHUTDOWN_S)
        yield cast("Runtime", runtime), tasks


@asynccontextmanager
async def connected(
    access: ClusterAccess, reconnect_timeout_s: float | None = RECONNECT_TIMEOUT_S
) -> AsyncGenerator[ClientConnection]:
    """Links are made when they are first needed. `reconnect_timeout_s` None: a lost cluster is
    waited for as long as a query waits for an answer."""
    async with AsyncExitStack() as stack:
        runtime, tasks = await stack.enter_async_context(client_runtime(access.dns_server))
        # The journal stays on the machine's disk, whatever network the route brings.
        journal = SubmissionJournal(runtime, process_name(os.getpid()), is_alive)
        known = KnownManagers(runtime, access.cluster, access.addresses)
        remembered = await known.read() if access.route is None else []
        routed: RoutedCluster | None = None
        timeouts: RequestTimeouts | None = None
        shown = ""
        if access.route is not None:
            routed = await stack.enter_async_context(access.route.open(runtime, tasks))
            runtime, timeouts, shown = routed.runtime, routed.timeouts, routed.shown
        client = ClusterClient(
            runtime,
            tasks,
            addresses=access.addresses,
            remembered=remembered,
            on_managers=known.write if access.route is None else None,
            secrets=access.secrets,
            cluster=access.cluster,
            tls=access.tls,
            reconnect_timeout_s=reconnect_timeout_s,
            timeouts=timeouts,
            shown=shown,
        )
        stack.push_async_callback(client.close)
        yield ClientConnection(client, journal, routed)


def state_folder() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(home) / "squall"


def process_name(pid: int) -> str:
    """The process id with the start time of that process, because ids are reused. Empty if
    the process is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return str(pid) if pid == os.getpid() or _exists(pid) else ""
    return f"{pid}:{stat.rpartition(')')[2].split()[19]}"


def is_alive(owner: str) -> bool:
    pid = owner.partition(":")[0]
    return pid.isdecimal() and process_name(int(pid)) == owner


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
