"""`squall dev`: runs a whole datacenter of real processes on this machine until Ctrl-C.

The secret is made for this datacenter and lies in its folder, which is removed at the end unless
`--data` names it. Every process dies with this one, however it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from squall.api.errors import ConfigError, SquallError, UsageError
from squall.api.quantities import parse_count
from squall.cli.dev.node_process import NodeProcess
from squall.cluster.ledger.replica.types import FORMED_SIZES
from squall.reporting.text.standard_streams import print_json
from squall.settings.shared_sections import DEFAULT_CLUSTER

if TYPE_CHECKING:
    from squall.cluster.client.cluster_client import ClusterClient
    from squall.runtime.interfaces import Address

READY_S = 30.0
POLL_S = 0.05
STOP_S = 15.0
DATACENTER = "dev"
HEARD = ("active", "idle", "busy")
"""States of a worker that can be given work."""


@dataclass
class DatacenterLayout:
    """The processes to start and their common settings."""

    managers: int
    workers: int
    cores: int
    folder: Path
    timers: str
    cluster: str
    secret: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)

    @property
    def secret_file(self) -> Path:
        return self.folder / "secret"

    @property
    def environment(self) -> dict[str, str]:
        own = {"SQUALL_SECRET_FILE": str(self.secret_file), "SQUALL_CLUSTER_ID": self.cluster}
        kept = {k: v for k, v in os.environ.items() if k not in ("SQUALL_SECRET", "SQUALL_TO")}
        return kept | own


def execute(arguments: Namespace) -> int:
    managers = _number(arguments.managers, "--managers")
    if managers not in FORMED_SIZES:
        raise UsageError(f"--managers {managers}: a group has 1, 3 or 5")
    began = time.monotonic()
    with _folder(arguments.data) as folder:
        layout = DatacenterLayout(
            managers=managers,
            workers=_number(arguments.workers, "--workers"),
            cores=_number(arguments.cores, "--cores"),
            folder=folder,
            timers=arguments.timers or "lan",
            cluster=os.environ.get("SQUALL_CLUSTER_ID") or DEFAULT_CLUSTER,
        )
        return asyncio.run(_serve(layout, began, as_json=arguments.json))


async def _serve(layout: DatacenterLayout, began: float, *, as_json: bool) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    _settle_secret(layout)
    addresses = _free_addresses(layout.managers)
    nodes = _nodes(layout, addresses)
    try:
        for node in nodes:
            node.start()
        stopped = asyncio.ensure_future(stop.wait())
        ready = asyncio.ensure_future(_ready(layout, addresses, nodes))
        await asyncio.wait((stopped, ready), return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            ready.cancel()
            return 0
        ready.result()
        to = ",".join(f"{host}:{port}" for host, port in addresses)
        with _announced(layout, to) as is_found:
            took_s = time.monotonic() - began
            _print_ready(layout, to, nodes, took_s, is_found=is_found, as_json=as_json)
            await _until_stopped(stop, nodes)
        return 0
    finally:
        await asyncio.shield(_end(nodes))


@contextmanager
def _announced(layout: DatacenterLayout, to: str) -> Generator[bool]:
    """Lets `--to dev` find this datacenter while it runs; yields whether that works."""
    from squall.cluster.client.local_datacenter import LocalDatacenter, announce, withdraw

    here = LocalDatacenter(to=to, secret_file=str(layout.secret_file), cluster=layout.cluster)
    try:
        yield announce(here)
    finally:
        withdraw()


def _nodes(layout: DatacenterLayout, addresses: list[Address]) -> list[NodeProcess]:
    shown = [f"{host}:{port}" for host, port in addresses]
    members = ",".join(f"m{i + 1}={address}" for i, address in enumerate(shown))
    found: list[NodeProcess] = []
    for index, address in enumerate(shown):
        name = f"m{index + 1}"
        words = ["manager", "--dc", DATACENTER, "--name", name, "--listen", address]
        words += ["--members", members, "--data", str(layout.folder / name)]
        found.append(_node(layout, name, "manager", words, address))
    for index in range(layout.workers):
        name = f"w{index + 1}"
        words = ["worker", "--dc", DATACENTER, "--name", name, "--managers", ",".join(shown)]
        words += ["--cores", str(layout.cores), "--data", str(layout.folder / name)]
        # They all stop together: there is no other worker that could continue their shares.
        words += ["--drain-timeout", "0"]
        found.append(_node(layout, name, "worker", words, ""))
    return found


def _node(
    layout: DatacenterLayout, name: str, role: str, words: list[str], address: str
) -> NodeProcess:
    return NodeProcess(
        name=name,
        role=role,
        words=[*words, "--timers", layout.timers],
        log=layout.folder / f"{name}.log",
        environment=layout.environment,
        address=address,
    )


async def _ready(
    layout: DatacenterLayout, addresses: list[Address], nodes: list[NodeProcess]
) -> None:
    """Returns when a manager answers and every worker is registered."""
    # Imported while the nodes start: that is what they wait for themselves.
    from squall.cluster.client.access import ClusterAccess, file_settings, link_tls
    from squall.cluster.client.connection import connected
    from squall.cluster.wire.seal.secrets import Secrets, client_credential

    credential = client_credential(layout.secret, "dev")
    access = ClusterAccess(
        tuple(addresses),
        Secrets.of_credential(credential),
        layout.cluster,
        tls=link_tls(file_settings().tls),
    )
    until = time.monotonic() + READY_S
    async with connected(access) as connection:
        while not await _workers_ready(connection.client, layout.workers):
            for node in nodes:
                node.check()
            if time.monotonic() > until:
                raise SquallError(
                    f"the datacenter is not ready after {READY_S:.0f} s; see the logs in "
                    f"{layout.folder}"
                )
            await asyncio.sleep(POLL_S)


async def _workers_ready(client: ClusterClient, workers: int) -> bool:
    try:
        answer = await client.nodes()
    except SquallError:
        return False
    active = [node for node in answer.nodes if node.state in ("idle", "busy")]
    return len(active) >= workers


def _print_ready(
    layout: DatacenterLayout,
    to: str,
    nodes: list[NodeProcess],
    took_s: float,
    *,
    is_found: bool,
    as_json: bool,
) -> None:
    if as_json:
        print_json(
            {
                "to": to,
                "addresses": to.split(","),
                "cluster": layout.cluster,
                "datacenter": DATACENTER,
                "secret_file": str(layout.secret_file),
                "data": str(layout.folder),
                "pid": os.getpid(),
                "ready_s": round(took_s, 3),
                "nodes": [node.facts() for node in nodes],
            }
        )
        return
    cluster = "" if layout.cluster == DEFAULT_CLUSTER else f" --cluster {layout.cluster}"
    flags = f"--to {to} --secret-file {layout.secret_file}{cluster}"
    shown = f"--to dev   (the same as {flags})" if is_found else flags
    print(f"ready in {took_s:.1f} s: squall run FILE {shown}", flush=True)


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
    for role in ("worker", "manager"):
        chosen = [node for node in nodes if node.role == role]
        for node in chosen:
            node.terminate()
        until = time.monotonic() + STOP_S
        for node in chosen:
            await asyncio.to_thread(node.wait, max(until - time.monotonic(), 0.0))
            node.kill()


def _settle_secret(layout: DatacenterLayout) -> None:
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


def _free_addresses(count: int) -> list[Address]:
    """All sockets are held until the last is bound, so that no port comes twice."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [("127.0.0.1", int(each.getsockname()[1])) for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _number(text: str, flag: str) -> int:
    try:
        return parse_count(text, flag)
    except ConfigError as error:
        raise UsageError(str(error)) from None
