"""Gates in front of datacenters, all real processes on this machine, to be hurt.

    g1 g2 g3        the gates, one group; commands talk to them
    eu-m1 eu-w1     a manager and a worker of the datacenter eu
    us-m1 us-w1     the same of us

`meshed`: everything that dials a gate or a manager goes through the proxy in front of it, so
that any pair of processes can be cut apart.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from squall.api.errors import SquallError
from squall.cluster.client.cluster_client import ClusterClient
from squall.cluster.protocol.gates.federation_messages import DatacenterList, ListDatacenters
from squall.cluster.protocol.group_messages import AskGroup, GroupView
from squall.cluster.protocol.messages import JobView, NodeView
from tests.cluster.lab.nodes import SECRET, Cluster
from tests.cluster.lab.proxy import Proxy
from tests.cluster.lab.questions import Question, answer_to
from tests.lab.machine import factor
from tests.lab.ports import free_ports
from tests.lab.target import TargetHandle

DATACENTERS = ("eu", "us")
READY_S = 120.0
IS_FREE = ("idle", "busy")


class GatedDatacenters(Cluster):
    """The commands of `Cluster` go to the gates; `datacenter_nodes` asks one datacenter."""

    def __init__(
        self,
        folder: Path,
        target: TargetHandle,
        *,
        gates: int = 3,
        managers: int = 1,
        workers: int = 1,
        cores: int = 1,
        meshed: bool = False,
        timers: str = "fast",
        launcher: bool = True,
        datacenters: Sequence[str] = DATACENTERS,
    ) -> None:
        super().__init__(
            folder, target, managers=0, workers=0, cores=cores, timers=timers, launcher=launcher
        )
        gate_names = [f"g{number + 1}" for number in range(gates)]
        self._members = {
            dc: [f"{dc}-m{number + 1}" for number in range(managers)] for dc in datacenters
        }
        named = [*gate_names, *(name for members in self._members.values() for name in members)]
        self._listen_ports = dict(zip(named, free_ports(len(named)), strict=True))
        if meshed:
            self.mesh = {name: Proxy(port) for name, port in self._listen_ports.items()}
        for name in gate_names:
            self._add_gate(name, gate_names)
        for dc, members in self._members.items():
            for name in members:
                self._add_member(dc, name, members)
            for number in range(workers):
                self._add_datacenter_worker(dc, f"{dc}-w{number + 1}", members)

    # What there is.

    @property
    def addresses(self) -> str:
        return ",".join(self._addresses(self.gates()))

    def host_of(self, name: str) -> str:
        """The address of the machine that a node runs on."""
        return "127.0.0.1"

    def managers(self) -> list[str]:
        """The members of the group that the commands ask: the gates."""
        return self.gates()

    def gates(self) -> list[str]:
        return [name for name in self.nodes if self.nodes[name].words[0] == "gate"]

    def managers_of(self, dc: str) -> list[str]:
        return self._members[dc]

    def listens(self, name: str, port: int) -> None:
        """A node that a test adds."""
        self._listen_ports[name] = port

    def addresses_of_gates(self, names: Sequence[str]) -> str:
        """Some of the gates, as `--to` takes them."""
        return ",".join(self._addresses(names))

    def addresses_of(self, dc: str) -> str:
        """Its managers, as `--to` takes them."""
        return ",".join(self._addresses(self.managers_of(dc)))

    def nodes_of(self, dc: str) -> list[str]:
        return [name for name in self.nodes if name.startswith(f"{dc}-")]

    def leader(self, within_s: float = 60.0) -> str:
        """The gate that leads the gates."""
        found: list[str] = [""]

        def leads() -> bool:
            found[0] = self.group_of(self.gates()).leader
            return found[0] in self.nodes

        wait_for(leads, "no gate leads", within_s)
        return found[0]

    def leader_of(self, dc: str) -> str:
        """The manager that leads a datacenter."""
        found: list[str] = [""]

        def leads() -> bool:
            found[0] = self.group_of(self.managers_of(dc)).leader
            return found[0] in self.nodes

        wait_for(leads, f"no manager of {dc} leads")
        return found[0]

    def group_of(self, members: Sequence[str]) -> GroupView:
        return self.asked_of(members, _asking(AskGroup()))

    def datacenter_nodes(self, dc: str) -> list[NodeView]:
        """The nodes of a datacenter, as its managers know them."""

        async def ask(client: ClusterClient) -> list[NodeView]:
            return (await client.nodes()).nodes

        return self.asked_of(self.managers_of(dc), ask)

    def datacenter_jobs(self, dc: str) -> list[JobView]:
        """The jobs of a datacenter, as its managers know them: parts of the gates' jobs."""
        return self.asked_of(self.managers_of(dc), lambda client: client.jobs())

    def asked_of(self, members: Sequence[str], question: Question) -> Any:
        return asyncio.run(answer_to(question, self._addresses(members), SECRET, self.tls))

    def environment_of(self, name: str) -> dict[str, str]:
        """Gates of a test have the timers of the tests too."""
        words = self.nodes[name].words
        if words[0] == "worker":
            return self.environment
        return super().environment_of(name) if words[0] == "manager" else self.environment

    # Start.

    def wait_ready(self, within_s: float = READY_S) -> None:
        """Every worker is registered and every gate reaches every datacenter."""
        try:
            for dc in self._members:
                wait_for(lambda dc=dc: self._has_workers(dc), f"{dc} has its workers", within_s)
            self.leader(within_s)
            for gate in self.gates():
                wait_for(lambda gate=gate: self._sees_all(gate), f"{gate} sees all", within_s)
        except AssertionError as error:
            logs = "\n".join(f"--- {e.name}\n{e.said()[-1500:]}" for e in self.nodes.values())
            raise AssertionError(f"not ready: {error}\n{logs}") from None

    def _has_workers(self, dc: str) -> bool:
        wanted = [name for name in self.nodes_of(dc) if self.nodes[name].words[0] == "worker"]
        nodes = self.datacenter_nodes(dc)
        there = [node.name for node in nodes if node.role == "worker" and node.state in IS_FREE]
        return set(wanted) <= set(there)

    def _sees_all(self, gate: str) -> bool:
        found: DatacenterList = self.asked_of([gate], _asking(ListDatacenters()))
        healthy = {each.name for each in found.datacenters if each.health == "healthy"}
        return healthy == set(self._members)

    # Faults.

    def lose_datacenter(self, dc: str) -> None:
        """All its machines are gone at once."""
        names = self.nodes_of(dc)
        for name in names:
            self.freeze(name)
        for name in names:
            self.kill(name)

    def cut_datacenter(self, dc: str, how: str = "hold") -> None:
        """Nothing passes between the gates and the managers of a datacenter."""
        for manager in self.managers_of(dc):
            self.part(manager, self.gates(), how)

    def cut_client(self, pid: int, gates: Sequence[str]) -> None:
        for gate in gates:
            self.mesh[gate].hold([pid])

    # Commands that start them.

    def _add_gate(self, name: str, names: Sequence[str]) -> None:
        datacenters = [
            word
            for dc, members in self._members.items()
            for word in ("--datacenter", f"{dc}={';'.join(self._addresses(members))}")
        ]
        self._add(
            name,
            "gate", "--name", name, "--listen", self._listen(name),
            "--members", self._named(names), *datacenters, *self._timers,
        )  # fmt: skip

    def _add_member(self, dc: str, name: str, names: Sequence[str]) -> None:
        self._add(
            name,
            "manager", "--dc", dc, "--name", name, "--listen", self._listen(name),
            "--members", self._named(names), "--timers", self.timers,
        )  # fmt: skip

    def _add_datacenter_worker(self, dc: str, name: str, members: Sequence[str]) -> None:
        self._add(
            name,
            "worker", "--dc", dc, "--name", name,
            "--managers", ",".join(self._addresses(members)),
            "--cores", str(self.cores), "--timers", self.timers,
        )  # fmt: skip

    @property
    def _timers(self) -> list[str]:
        """The gates of people have the timers of a wide area."""
        return ["--timers", "fast"] if self.timers == "fast" else []

    def _listen(self, name: str) -> str:
        return f"{self.host_of(name)}:{self._listen_ports[name]}"

    def _addresses(self, names: Sequence[str]) -> list[str]:
        """Where others reach these nodes: through the proxies, if there are some."""
        ports = {name: proxy.port for name, proxy in self.mesh.items()} or self._listen_ports
        return [f"{self.host_of(name)}:{ports[name]}" for name in names]

    def _named(self, names: Sequence[str]) -> str:
        pairs = zip(names, self._addresses(names), strict=True)
        return ",".join(f"{name}={address}" for name, address in pairs)


def _asking(message: Any) -> Question:
    return lambda client: client.managers.ask(message, timeout_s=5.0, reconnect_timeout_s=5.0)


def wait_for(holds: Callable[[], bool], what: str, within_s: float = 60.0) -> None:
    until = time.monotonic() + within_s * factor()
    while True:
        try:
            if holds():
                return
        except SquallError as error:
            what = f"{what.partition(': ')[0]}: {error}"
        assert time.monotonic() < until, what
        time.sleep(0.05)
