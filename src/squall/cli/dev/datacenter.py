"""`squall dev`: runs a whole datacenter, or several behind gates, of real processes on this machine
until Ctrl-C.

The secret is made for this datacenter and lies in its folder, which is removed at the end unless
`--data` names it. Every process dies with this one, however it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from squall.api.errors import SquallError, UsageError
from squall.cli.dev.layout import (
    ClusterLayout,
    NodeAddresses,
    addresses_of,
    datacenter_names,
    delays_of,
    gate_count,
    manager_count,
    nodes_of,
    positive,
    serving_node,
)
from squall.cli.dev.node_process import NodeProcess
from squall.reporting.text.standard_streams import print_json
from squall.runtime.addresses import shown_address
from squall.settings.shared_sections import DEFAULT_CLUSTER
from squall.target.delayed_line import DelayedLine

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from squall.cluster.client.cluster_client import ClusterClient
    from squall.runtime.interfaces import Address

    IsReady = Callable[[ClusterClient, ClusterLayout], Awaitable[bool]]

READY_S = 30.0
POLL_S = 0.05
STOP_S = 15.0
ASK_S = 2.0
HEARD = ("active", "idle", "busy")
"""States of a worker that can be given work."""


def execute(arguments: Namespace) -> int:
    if arguments.web is not None:
        from squall.web.server import check_libraries, page_place

        check_libraries("--web")
        page_place(arguments.web, "--web")
    managers = manager_count(arguments.managers)
    datacenters = datacenter_names(arguments.datacenters)
    gates = gate_count(arguments.gates, datacenters)
    far = delays_of(arguments.far, datacenters)
    began = time.monotonic()
    with _folder(arguments.data) as folder:
        layout = ClusterLayout(
            managers=managers,
            workers=positive(arguments.workers, "--workers"),
            cores=positive(arguments.cores, "--cores"),
            folder=folder,
            timers=arguments.timers or "lan",
            cluster=os.environ.get("SQUALL_CLUSTER_ID") or DEFAULT_CLUSTER,
            datacenters=datacenters,
            gates=gates,
            far=far,
            web=arguments.web,
        )
        return asyncio.run(_serve(layout, began, as_json=arguments.json))


async def _serve(layout: ClusterLayout, began: float, *, as_json: bool) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    _settle_secret(layout)
    at = addresses_of(layout)
    nodes = nodes_of(layout, at)
    lines: list[DelayedLine] = []
    try:
        lines = await _delayed(layout, at)
        for node in nodes:
            node.start()
        stopped = asyncio.ensure_future(stop.wait())
        ready = asyncio.ensure_future(_ready(layout, at, nodes))
        await asyncio.wait((stopped, ready), return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            ready.cancel()
            return 0
        ready.result()
        to = _entrance(layout, at)
        with _announced(layout, to) as is_found:
            took_s = time.monotonic() - began
            _print_ready(layout, to, nodes, took_s, is_found=is_found, as_json=as_json)
            await _until_stopped(stop, nodes)
        return 0
    finally:
        await asyncio.shield(_end(nodes))
        for line in lines:
            await line.close()


async def _delayed(layout: ClusterLayout, at: NodeAddresses) -> list[DelayedLine]:
    """The lines in front of datacenters that are far away."""
    lines: list[DelayedLine] = []
    for name, delay_s in layout.far.items():
        for own, reached in zip(at.managers[name], at.reached[name], strict=True):
            lines.append(DelayedLine(own, delay_s))
            await lines[-1].listen(reached)
    return lines


def _entrance(layout: ClusterLayout, at: NodeAddresses) -> str:
    """What to give to `--to`: the gates, or the managers; of several datacenters without gates,
    one of each by its name."""
    if layout.gates:
        return ",".join(map(shown_address, at.gates))
    if len(layout.datacenters) == 1:
        return ",".join(map(shown_address, at.reached[layout.datacenters[0]]))
    return ",".join(f"{n}={shown_address(at.reached[n][0])}" for n in layout.datacenters)


@contextmanager
def _announced(layout: ClusterLayout, to: str) -> Generator[bool]:
    """Lets `--to dev` find this datacenter while it runs; yields whether that works."""
    from squall.cluster.client.local_datacenter import LocalDatacenter, announce, withdraw

    here = LocalDatacenter(to=to, secret_file=str(layout.secret_file), cluster=layout.cluster)
    try:
        yield announce(here)
    finally:
        withdraw()


async def _ready(layout: ClusterLayout, at: NodeAddresses, nodes: list[NodeProcess]) -> None:
    """Returns when every datacenter has a manager that answers and all its workers, and the gates
    know that."""
    # Imported while the nodes start: that is what they wait for themselves.
    from squall.cluster.client.access import ClusterAccess, file_settings, link_tls
    from squall.cluster.client.connection import connected
    from squall.cluster.wire.seal.secrets import Secrets, client_credential

    secrets_ = Secrets.of_credential(client_credential(layout.secret, "dev"))
    tls = link_tls(file_settings().tls)
    until = time.monotonic() + READY_S

    async def wait(addresses: list[Address], is_ready: IsReady) -> None:
        access = ClusterAccess(tuple(addresses), secrets_, layout.cluster, tls=tls)
        async with connected(access) as connection:
            while not await is_ready(connection.client, layout):
                for node in nodes:
                    node.check()
                if time.monotonic() > until:
                    raise SquallError(
                        f"the datacenter is not ready after {READY_S:.0f} s; see the logs in "
                        f"{layout.folder}"
                    )
                await asyncio.sleep(POLL_S)

    if layout.gates:
        await wait(at.gates, _datacenters_ready)
        return
    for addresses in at.managers.values():
        await wait(addresses, _workers_ready)


async def _workers_ready(client: ClusterClient, layout: ClusterLayout) -> bool:
    try:
        answer = await client.nodes()
    except SquallError:
        return False
    active = [node for node in answer.nodes if node.state in ("idle", "busy")]
    return len(active) >= layout.workers


async def _datacenters_ready(client: ClusterClient, layout: ClusterLayout) -> bool:
    from squall.cluster.protocol.gates.federation_messages import DatacenterList, ListDatacenters

    try:
        answer: DatacenterList = await client.managers.ask(
            ListDatacenters(), timeout_s=ASK_S, reconnect_timeout_s=ASK_S
        )
        ready = [
            each
            for each in answer.datacenters
            if each.health in ("healthy", "busy") and each.workers >= layout.workers
        ]
        if len(ready) < len(layout.datacenters):
            return False
        # Any gate answers the list; jobs are answered by a group that has formed.
        await client.jobs(limit=1)
    except SquallError:
        return False
    return True


def _print_ready(
    layout: ClusterLayout,
    to: str,
    nodes: list[NodeProcess],
    took_s: float,
    *,
    is_found: bool,
    as_json: bool,
) -> None:
    page_file = None
    if layout.web is not None:
        from squall.cli.shared.node_page import address_file

        page_file = address_file(layout.folder / serving_node(layout, nodes).name)
    if as_json:
        print_json(
            {
                "to": to,
                "addresses": to.split(","),
                "cluster": layout.cluster,
                "datacenter": layout.datacenters[0],
                "datacenters": list(layout.datacenters),
                "secret_file": str(layout.secret_file),
                "data": str(layout.folder),
                "pid": os.getpid(),
                "ready_s": round(took_s, 3),
                "nodes": [node.facts() for node in nodes],
            }
            | ({"page_file": str(page_file)} if page_file is not None else {})
        )
        return
    cluster = "" if layout.cluster == DEFAULT_CLUSTER else f" --cluster {layout.cluster}"
    flags = f"--to {to} --secret-file {layout.secret_file}{cluster}"
    shown = f"--to dev   (the same as {flags})" if is_found else flags
    print(f"ready in {took_s:.1f} s: squall run FILE {shown}", flush=True)
    if page_file is not None:
        print(page_file.read_text(encoding="utf-8").rstrip("\n"), flush=True)


async def _until_stopped(stop: asyncio.Event, nodes: list[NodeProcess]) -> None:
    reported: set[str] = set()
    while not stop.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), 1.0)
        for node in nodes:
            if node.ended is not None and node.name not in reported and not stop.is_set():
                reported.add(node.name)
                print(
                    f"{node.name} ended with exit code {node.ended}; see {node.log}",
                    file=sys.stderr,
                )


async def _end(nodes: list[NodeProcess]) -> None:
    """Stops workers first, so that they can leave in order; kills what does not end."""
    for role in ("worker", "manager", "gate"):
        chosen = [node for node in nodes if node.role == role]
        for node in chosen:
            node.terminate()
        until = time.monotonic() + STOP_S
        for node in chosen:
            await asyncio.to_thread(node.wait, max(until - time.monotonic(), 0.0))
            node.kill()


def _settle_secret(layout: ClusterLayout) -> None:
    """Keeps the secret of an existing folder: its stored jobs are sealed with it, and a
    datacenter that already runs there must stay reachable."""
    with contextlib.suppress(OSError):
        kept = layout.secret_file.read_text(encoding="utf-8").strip()
        if kept:
            layout.secret = kept
            return
    layout.secret_file.unlink(missing_ok=True)
    descriptor = os.open(layout.secret_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(f"{layout.secret}\n")


@contextmanager
def _folder(given: str | None) -> Generator[Path]:
    if given is not None:
        folder = Path(given).absolute()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--data {given}: {error.strerror}") from None
        yield folder
        return
    made = Path(tempfile.mkdtemp(prefix="squall-dev-"))
    try:
        yield made
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(made)
