"""A client of a cluster on the real network of this machine, for the time of one command.

The journal of submissions lies in the user's state directory (`XDG_STATE_HOME`), so that
a command that is given again after a crash finds the key of its job.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from squall.api.errors import UsageError
from squall.cli.access import Access
from squall.nodes.client.client import PATIENCE_S, ClusterClient
from squall.nodes.client.journal import Journal
from squall.nodes.patience import Patience
from squall.runtime.interfaces import Runtime
from squall.runtime.real import RealRuntime
from squall.runtime.tasks import TaskRunner

if TYPE_CHECKING:
    from squall.nodes.agent.reaching import Agents

SHUTDOWN_S = 2.0


@dataclass(frozen=True)
class Connection:
    client: ClusterClient
    journal: Journal
    agents: Agents | None = None
    """Those behind a store; None where managers are talked to."""

    async def ready(
        self, say: Callable[[str], None] = lambda _: None, within_s: float = math.inf
    ) -> None:
        """Behind a store there may be nobody yet: waits for an agent and says so."""
        if self.agents is not None:
            await self.agents.ready(say, max(within_s, self.agents.pace.patience.query_s))


@asynccontextmanager
async def connected(access: Access, patience_s: float = PATIENCE_S) -> AsyncGenerator[Connection]:
    """Links are made when they are first needed."""
    try:
        runtime = RealRuntime(f"client-{secrets.token_hex(6)}", data_dir=state_folder())
    except OSError as error:
        raise UsageError(
            f"{state_folder()}: cannot keep the keys of jobs there: {error.strerror}; "
            "set XDG_STATE_HOME"
        ) from None
    world = cast("Runtime", runtime)
    tasks = TaskRunner(runtime.clock, runtime.random)
    journal = Journal(world, process_name(os.getpid()), is_alive)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(runtime.close)
        stack.push_async_callback(tasks.shutdown, SHUTDOWN_S)
        agents: Agents | None = None
        patience: Patience | None = None
        shown = ""
        if access.store is not None:
            from squall.nodes.agent.reaching import reached

            agents = await stack.enter_async_context(reached(access.store, world, tasks))
            world, patience, shown = agents.world, agents.pace.patience, agents.shown
            patience_s = max(patience_s, patience.query_s)
        client = ClusterClient(
            world,
            tasks,
            addresses=access.addresses,
            secrets=access.secrets,
            cluster=access.cluster,
            patience_s=patience_s,
            patience=patience,
            shown=shown,
        )
        stack.push_async_callback(client.close)
        yield Connection(client, journal, agents)


def state_folder() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(home) / "squall"


def process_name(pid: int) -> str:
    """A process id and when that process began: ids are used again. Empty if it is gone."""
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
