"""The processes of `bench/group.py`: a member of a group, and the clients that load it.

A member is the real ledger on the real wire, with a state machine that costs next to
nothing. The clients are coroutines of one process over one sealed link to the primary.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from pathlib import Path
from typing import cast

import msgspec
import uvloop

from ledger import Counting
from squall.api.errors import SquallError
from squall.cluster.control.admission import Admission
from squall.cluster.control.execution import BoundedExecution
from squall.cluster.ledger.group_member.group_ledger import GroupLedger
from squall.cluster.ledger.group_member.open_group_ledger import open_group_ledger
from squall.cluster.ledger.group_member.wire_transport import WireTransport
from squall.cluster.ledger.interface import NotPrimary
from squall.cluster.ledger.replica.types import LAN, GroupId
from squall.cluster.settings_tree import Settings
from squall.cluster.wire.catalogue import message
from squall.cluster.wire.errors import RemoteError
from squall.cluster.wire.header import MessageClass
from squall.cluster.wire.links.dispatch import Handlers, Incoming
from squall.cluster.wire.links.endpoint import Endpoint
from squall.cluster.wire.links.peer import Peer
from squall.cluster.wire.links.switchboard import Switchboard, make_keyring
from squall.cluster.wire.messages import ErrorCode
from squall.cluster.wire.seal.secrets import Secrets
from squall.runtime.interfaces import Address, NodeId, Runtime
from squall.runtime.real.runtime import RealRuntime
from squall.runtime.tasks import TaskRunner

SECRET = "a secret of the bench"
TIMEOUT_S = 10.0


@message(60_010, MessageClass.DISPATCH)
class Commit(msgspec.Struct, frozen=True):
    body: bytes


@message(60_011, MessageClass.DISPATCH)
class Done(msgspec.Struct, frozen=True):
    op: int = 0
    primary: str = ""


@message(60_012, MessageClass.DISPATCH)
class Who(msgspec.Struct, frozen=True):
    """Which member leads, and serves?"""


@message(60_013, MessageClass.DISPATCH)
class GoAside(msgspec.Struct, frozen=True):
    """Hand over, as before a planned restart."""


def board(runtime: RealRuntime) -> tuple[Switchboard, TaskRunner]:
    tasks = TaskRunner(runtime.clock, random.Random(1))
    execution = BoundedExecution(
        Admission(Settings().admission, runtime.random.uniform), runtime.clock
    )
    made = Switchboard(
        runtime=cast("Runtime", runtime),
        keyring=make_keyring(cast("Runtime", runtime), Secrets.of_node(SECRET), "bench"),
        admit=execution.enter,
        tasks=tasks,
        handlers=Handlers(),
    )
    return made, tasks


class Member:
    def __init__(self, ledger: GroupLedger) -> None:
        self._ledger = ledger

    def register(self, handlers: Handlers) -> None:
        handlers.on(Commit, self.commit)
        handlers.on(Who, self.who)
        handlers.on(GoAside, self.go_aside)

    async def commit(self, message: Commit, incoming: Incoming) -> Done:
        try:
            committed = await self._ledger.submit(message.body)
        except NotPrimary as error:
            primary = str(error.primary or "")
            raise RemoteError(ErrorCode.NOT_PRIMARY, str(error), primary=primary) from None
        except SquallError as error:
            raise RemoteError(ErrorCode.RETRY_LATER, str(error)) from None
        return Done(committed.op)

    def who(self, message: Who, incoming: Incoming) -> Done:
        ledger = self._ledger
        return Done(ledger.applied, str(ledger.primary or "") if ledger.is_primary else "")

    def go_aside(self, message: GoAside, incoming: Incoming) -> Done:
        self._ledger.hand_over()
        return Done()


async def serve(name: str, ports: list[int], data: Path) -> None:
    runtime = RealRuntime(name, data_dir=data)
    made, tasks = board(runtime)
    addresses: dict[NodeId, Address] = {
        NodeId(f"m{number}"): ("127.0.0.1", port) for number, port in enumerate(ports)
    }
    ledger = await open_group_ledger(
        cast("Runtime", runtime),
        tasks,
        Counting(),
        WireTransport(made, addresses),
        peers=tuple(addresses),
        timers=LAN,
        form_group=GroupId("bench"),
    )
    Member(ledger).register(made.handlers)
    endpoint = Endpoint(made)
    await endpoint.listen(addresses[NodeId(name)])
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)


async def load(port: int, clients: int, seconds: float, size: int) -> None:
    """Each client has one command under way; latencies as a client sees them."""
    made, _ = board(RealRuntime("client"))
    peer = Peer(made, ("127.0.0.1", port))
    peer.start()
    await peer.connected(5.0)
    request = Commit(random.Random(1).randbytes(size))
    taken: list[float] = []
    began, cpu = time.perf_counter(), time.process_time()
    end = began + seconds

    async def client() -> None:
        now = time.perf_counter()
        while now < end:
            await peer.request(request, TIMEOUT_S)
            then, now = now, time.perf_counter()
            taken.append(now - then)

    await asyncio.gather(*(client() for _ in range(clients)))
    print(json.dumps(measured(taken, time.perf_counter() - began, time.process_time() - cpu)))


def measured(taken: list[float], lasted_s: float, cpu_s: float) -> dict[str, float]:
    taken.sort()
    return {
        "count": len(taken),
        "rate": len(taken) / lasted_s,
        "p50_ms": taken[len(taken) // 2] * 1e3,
        "p99_ms": taken[int(len(taken) * 0.99)] * 1e3,
        "client_cpu": cpu_s / lasted_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("part", choices=("serve", "load"))
    parser.add_argument("--name", default="")
    parser.add_argument("--ports", default="")
    parser.add_argument("--data", type=Path, default=Path())
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--size", type=int, default=256)
    options = parser.parse_args()
    ports = [int(port) for port in options.ports.split(",")]
    if options.part == "serve":
        work = serve(options.name, ports, options.data)
    else:
        work = load(ports[0], options.clients, options.seconds, options.size)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


if __name__ == "__main__":
    main()
