"""What `squall dev` starts: the datacenters and gates, their names, addresses and command lines."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from squall.api.errors import ConfigError, UsageError
from squall.api.quantities import parse_count, parse_duration
from squall.cli.dev.node_process import NodeProcess
from squall.cluster.ledger.replica.types import FORMED_SIZES

if TYPE_CHECKING:
    from squall.runtime.interfaces import Address

ALONE = "dev"
"""The only datacenter has this name."""
NAMES = ("eu", "us", "ap", "sa", "af")
"""The names of the first datacenters, if the command gives a number."""
DATACENTERS_MAX = 20


@dataclass
class ClusterLayout:
    """The processes to start and their common settings."""

    managers: int
    """Of each datacenter."""
    workers: int
    cores: int
    folder: Path
    timers: str
    cluster: str
    datacenters: tuple[str, ...] = (ALONE,)
    gates: int = 0
    web: str | None = None
    """The address of the page, which the first gate serves, or the first manager; None: no page."""
    far: dict[str, float] = field(default_factory=dict[str, float])
    """Seconds that each way to the managers of a datacenter takes."""
    secret: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)

    @property
    def secret_file(self) -> Path:
        return self.folder / "secret"

    @property
    def environment(self) -> dict[str, str]:
        own = {"SQUALL_SECRET_FILE": str(self.secret_file), "SQUALL_CLUSTER_ID": self.cluster}
        kept = {k: v for k, v in os.environ.items() if k not in ("SQUALL_SECRET", "SQUALL_TO")}
        return kept | own


@dataclass
class NodeAddresses:
    """Where the nodes of a layout listen."""

    managers: dict[str, list[Address]]
    """By datacenter."""
    reached: dict[str, list[Address]]
    """Where others reach these managers: the same, or the end of a delayed line."""
    gates: list[Address]


def datacenter_names(text: str) -> tuple[str, ...]:
    """`3` or `eu,us`."""
    if not text.isdecimal():
        names = tuple(word.strip() for word in text.split(","))
        if not all(names) or len(set(names)) < len(names):
            raise UsageError(f"--datacenters {text}: give a number or different names, eu,us")
        return names
    count = _number(text, "--datacenters")
    if count > DATACENTERS_MAX:
        raise UsageError(f"--datacenters {count}: at most {DATACENTERS_MAX} on one machine")
    if count == 1:
        return (ALONE,)
    return tuple(NAMES[i] if i < len(NAMES) else f"dc{i + 1}" for i in range(count))


def gate_count(text: str | None, datacenters: tuple[str, ...]) -> int:
    """Without a number, one gate stands in front of several datacenters."""
    if text is None:
        return 1 if len(datacenters) > 1 else 0
    if text == "0":
        return 0
    gates = _number(text, "--gates")
    if gates not in FORMED_SIZES:
        raise UsageError(f"--gates {gates}: a group has 1, 3 or 5")
    return gates


def manager_count(text: str) -> int:
    managers = _number(text, "--managers")
    if managers not in FORMED_SIZES:
        raise UsageError(f"--managers {managers}: a group has 1, 3 or 5")
    return managers


def positive(text: str, flag: str) -> int:
    return _number(text, flag)


def delays_of(entries: list[str], datacenters: tuple[str, ...]) -> dict[str, float]:
    """`us=80ms`: the round trip to a datacenter."""
    found: dict[str, float] = {}
    for word in entries:
        name, equals, text = word.partition("=")
        if not equals:
            raise UsageError(f"--far {word}: write NAME=TIME, such as us=80ms")
        if name not in datacenters:
            raise UsageError(f"--far: no datacenter {name}; there are {', '.join(datacenters)}")
        try:
            # Half of a round trip passes on each way.
            found[name] = parse_duration(text, "--far") / 2.0
        except ConfigError as error:
            raise UsageError(str(error)) from None
    return found


def addresses_of(layout: ClusterLayout) -> NodeAddresses:
    per_datacenter = layout.managers
    lines = per_datacenter * len(layout.far)
    total = per_datacenter * len(layout.datacenters) + layout.gates + lines
    free = iter(_free_addresses(total))
    managers = {name: [next(free) for _ in range(per_datacenter)] for name in layout.datacenters}
    gates = [next(free) for _ in range(layout.gates)]
    reached = {
        name: [next(free) for _ in own] if name in layout.far else own
        for name, own in managers.items()
    }
    return NodeAddresses(managers, reached, gates)


def nodes_of(layout: ClusterLayout, at: NodeAddresses) -> list[NodeProcess]:
    found: list[NodeProcess] = []
    for name in layout.datacenters:
        found += _datacenter(layout, name, at)
    gates = [_shown(address) for address in at.gates]
    members = ",".join(f"g{i + 1}={address}" for i, address in enumerate(gates))
    known = ",".join(
        f"{name}={';'.join(map(_shown, addresses))}" for name, addresses in at.reached.items()
    )
    for index, address in enumerate(gates):
        name = f"g{index + 1}"
        words = ["gate", "--name", name, "--listen", address, "--members", members]
        words += ["--datacenter", known, "--data", str(layout.folder / name)]
        found.append(_node(layout, name, "gate", words, address))
    if layout.web is not None:
        serving_node(layout, found).words.append(f"--web={layout.web}")
    return found


def serving_node(layout: ClusterLayout, nodes: list[NodeProcess]) -> NodeProcess:
    """The node that serves the page: one that clients talk to."""
    role = "gate" if layout.gates else "manager"
    return next(node for node in nodes if node.role == role)


def _datacenter(layout: ClusterLayout, name: str, at: NodeAddresses) -> list[NodeProcess]:
    """Its managers and workers. The names of nodes are unique in their datacenter; those of
    processes on this machine have it in front."""
    first = "" if layout.datacenters == (ALONE,) else f"{name}-"
    listen = [_shown(address) for address in at.managers[name]]
    reached = [_shown(address) for address in at.reached[name]]
    members = ",".join(f"m{i + 1}={address}" for i, address in enumerate(reached))
    found: list[NodeProcess] = []
    for index, address in enumerate(listen):
        node = f"m{index + 1}"
        words = ["manager", "--dc", name, "--name", node, "--listen", address]
        words += ["--members", members, "--data", str(layout.folder / f"{first}{node}")]
        found.append(_node(layout, f"{first}{node}", "manager", words, address))
    for index in range(layout.workers):
        node = f"w{index + 1}"
        words = ["worker", "--dc", name, "--name", node, "--managers", ",".join(listen)]
        words += ["--cores", str(layout.cores), "--data", str(layout.folder / f"{first}{node}")]
        # They all stop together: there is no other worker that could continue their shares.
        words += ["--drain-timeout", "0"]
        found.append(_node(layout, f"{first}{node}", "worker", words, ""))
    return found


def _node(
    layout: ClusterLayout, name: str, role: str, words: list[str], address: str
) -> NodeProcess:
    return NodeProcess(
        name=name,
        role=role,
        words=[*words, "--timers", layout.timers],
        log=layout.folder / f"{name}.log",
        environment=layout.environment,
        address=address,
    )


def _shown(address: Address) -> str:
    return f"{address[0]}:{address[1]}"


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
