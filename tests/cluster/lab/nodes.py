"""A datacenter of real processes on this machine, to be hurt: kill -9, SIGSTOP, cut links.

Everything is started as an operator would start it, by `squall manager` and `squall
worker`; what a test learns is what a person sees: exit codes, the summary, the results
document, and the counts of the target that was loaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from squall.api.errors import SquallError
from squall.cluster.client.cluster_client import ClusterClient
from squall.cluster.protocol.messages import NodeView
from squall.cluster.wire.links.switchboard import LinkTLS
from squall.settings.shared_sections import JOB_PROFILES, MEMBERSHIP_PROFILES, TIMER_PROFILES
from tests.cluster.lab.proxy import Proxy
from tests.cluster.lab.questions import Question, answer_to, as_json, question_of
from tests.cluster.lab.small_disk import SmallDisk
from tests.lab.machine import factor
from tests.lab.ports import free_ports
from tests.lab.target import TargetHandle

SQUALL = Path(sys.executable).with_name("squall")
SECRET = "a secret of the cluster laboratory"
ENDS_WITHIN_S = 90.0
SPARE_SOCKETS = 1
"""Of a core process without a share: the one to its parent."""
HEADER = (
    "import os, asyncio, time; from squall import (URL, All, Feed, HTTPResponse, Headers, Provide, "
    "Use, Workflow, action, depends, state, step)\n"
    "SENDER = {'X-Squall-Attempt': os.environ.get('SQUALL_ATTEMPT', 'local')}\n"
)


@dataclass
class Ended:
    """The exit code and output of a command."""

    code: int
    out: str
    err: str
    results: Path

    @property
    def document(self) -> dict[str, Any]:
        assert self.results.exists(), f"no results, exit code {self.code}: {self.err}{self.out}"
        return json.loads(self.results.read_text(encoding="utf-8"))


class Command:
    """A `squall` command that runs."""

    def __init__(self, process: subprocess.Popen[str], results: Path) -> None:
        self.process = process
        self.results = results

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self, within_s: float = ENDS_WITHIN_S) -> Ended:
        try:
            out, err = self.process.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
            raise AssertionError(f"did not end; it said:\n{err}\n{out}") from None
        return Ended(self.process.returncode, out, err, self.results)


@dataclass
class Node:
    """One process of the datacenter and how to start it again."""

    name: str
    words: list[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    former: list[int] = field(default_factory=list[int])
    """Process ids of everything that it and its former boots started."""

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.name} was not started"
        return self.process.pid

    def children(self) -> list[int]:
        return children_of(self.pid)

    def processes(self) -> list[int]:
        """Launcher, main process and core processes; parents first."""
        found = [self.pid]
        for pid in found:
            found += children_of(pid)
        return found

    def main_pid(self) -> int:
        """The main process of a node that runs below a launcher."""
        (pid,) = self.children()
        return pid

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(word) for word in (task / "children").read_text().split()]
    return found


class Cluster:
    """`managers` managers and `workers` workers with fast timers, and one target."""

    def __init__(
        self,
        folder: Path,
        target: TargetHandle,
        *,
        managers: int = 1,
        workers: int = 2,
        cores: int = 1,
        proxied: bool = False,
        meshed: bool = False,
        small_disk: str = "",
        timers: str = "fast",
        launcher: bool = False,
        least_factor: float = 1.0,
    ) -> None:
        """`proxied`: the first worker talks to the manager through `proxy`. `meshed`: all talk
        to managers through `mesh`. `small_disk` names a manager with little room. Without
        `launcher`, `Node.pid` is the main process, and a killed node stays dead until `start`."""
        self.launcher = launcher
        # How many times slower than the fast profile its timers are at least.
        self.factor = max(factor(), least_factor)
        self.folder = folder
        self.target = target
        self.secret = folder / "secret"
        self.secret.write_text(SECRET)
        self.secret.chmod(0o600)
        self.timers = timers
        self.cores = cores
        self._ports = free_ports(managers)
        self.proxy = Proxy(self._ports[0]) if proxied else None
        self._listens = list(self._ports)
        self.mesh: dict[str, Proxy] = {}
        if meshed:
            self.mesh = {f"m{i + 1}": Proxy(port) for i, port in enumerate(self._listens)}
            self._ports = [proxy.port for proxy in self.mesh.values()]
        self.disk = SmallDisk(folder / small_disk) if small_disk else None
        self._on_disk = small_disk
        self.nodes: dict[str, Node] = {}
        for number in range(managers):
            self._add_manager(number)
        for number in range(workers):
            self._add_worker(number)
        self._commands: list[Command] = []
        self._count = 0

    @property
    def addresses(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    @property
    def reach(self) -> tuple[str, ...]:
        """The flags that name this cluster."""
        return ("--to", self.addresses)

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {
            "SQUALL_CLUSTER_ID": "lab",
            "SQUALL_SECRET_FILE": str(self.secret),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "CI": "1",
        }

    def environment_of(self, name: str) -> dict[str, str]:
        """What one node is started with. Workers have their timers from the managers."""
        words = self.nodes[name].words
        given = slower_timers(self.factor) if words[0] == "manager" and "fast" in words else {}
        return self.environment | given

    @property
    def tls(self) -> LinkTLS | None:
        """How a client of this process proves its name; as `environment` does for commands."""
        return None

    def __enter__(self) -> Cluster:
        try:
            for proxy in self._proxies():
                proxy.start()
            for name in self.nodes:
                self.start(name)
            self.wait_ready()
        except BaseException:
            # No other code does it: a context that was not entered is not exited either.
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for command in self._commands:
            if command.process.poll() is None:
                command.process.kill()
                command.process.communicate()
        for node in self.nodes.values():
            self.kill(node.name)
        for proxy in self._proxies():
            proxy.stop()
        if self.disk is not None:
            self.disk.close()

    def _proxies(self) -> list[Proxy]:
        return [*self.mesh.values(), *([self.proxy] if self.proxy is not None else [])]

    def part(self, name: str, others: Sequence[str], how: str = "hold") -> None:
        """Nothing passes any more between a manager and these nodes."""
        for at, far in ((name, others), *((other, [name]) for other in others)):
            if at in self.mesh:
                pids = [self.main_pid(each) for each in far]
                self.mesh[at].cut(pids) if how == "cut" else self.mesh[at].hold(pids)

    def mend(self) -> None:
        for proxy in self.mesh.values():
            proxy.heal()

    # Nodes.

    def start(self, name: str) -> None:
        node = self.nodes[name]
        with node.log.open("ab") as log:
            node.process = subprocess.Popen(
                [*self._within(name), str(SQUALL), *node.words, *self._no_launcher],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment_of(name),
                start_new_session=True,
            )
        node.former.append(node.pid)

    @property
    def _no_launcher(self) -> list[str]:
        return [] if self.launcher else ["--no-launcher"]

    def _within(self, name: str) -> list[str]:
        return self.disk.words if self.disk is not None and name == self._on_disk else []

    def is_up(self, name: str) -> bool:
        process = self.nodes[name].process
        return process is not None and process.poll() is None

    def kill(self, name: str) -> None:
        node = self.nodes[name]
        if node.process is None or node.process.poll() is not None:
            return
        processes = node.processes()
        node.former += processes[1:]
        if self.launcher:
            # As with the machine: a stopped launcher starts no other main process meanwhile.
            self.pause(name)
            for pid in processes[1:]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        node.process.kill()
        node.process.wait()

    def kill_main(self, name: str) -> None:
        """`kill -9` of the main process; a launcher starts another."""
        node = self.nodes[name]
        node.former += node.processes()[1:]
        os.kill(self.main_pid(name), signal.SIGKILL)

    def kill_launcher(self, name: str) -> None:
        node = self.nodes[name]
        assert self.launcher and node.process is not None
        node.former += node.processes()[1:]
        node.process.kill()
        node.process.wait()

    def main_pid(self, name: str) -> int:
        node = self.nodes[name]
        return node.main_pid() if self.launcher else node.pid

    def pause(self, name: str) -> None:
        os.kill(self.nodes[name].pid, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        os.kill(self.nodes[name].pid, signal.SIGCONT)

    def freeze(self, name: str) -> None:
        """Stops all its processes, as a machine that stands still."""
        self._send_all(name, signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        self._send_all(name, signal.SIGCONT)

    def _send_all(self, name: str, number: int) -> None:
        for pid in self.nodes[name].processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def busy_cores(self, name: str) -> list[int]:
        """Core processes of a worker that have connections: not the spare ones."""
        found: list[int] = []
        for pid in children_of(self.main_pid(name)):
            with contextlib.suppress(OSError):
                links = [os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()]
                if sum(link.startswith("socket:") for link in links) > SPARE_SOCKETS:
                    found.append(pid)
        return found

    def managers(self) -> list[str]:
        return [name for name in self.nodes if name.startswith("m")]

    def leader(self, within_s: float = 60.0) -> str:
        """The manager that leads now."""

        def leads(nodes: list[NodeView]) -> bool:
            return any(node.state == "leads" for node in nodes)

        nodes = self._nodes_once(leads, within_s)
        assert leads(nodes), "nobody leads"
        return next(node.name for node in nodes if node.state == "leads")

    def wipe(self, name: str) -> None:
        """The data directory of a node that does not run is lost."""
        shutil.rmtree(self.folder / name, ignore_errors=True)

    def stop(self, name: str, within_s: float = 60.0) -> int:
        """Asks it to end, as systemd would; the exit code."""
        node = self.nodes[name]
        assert node.process is not None
        node.former += node.processes()[1:]
        node.process.terminate()
        return node.process.wait(within_s)

    def leftovers(self) -> list[str]:
        """Processes that outlived the node that started them."""
        found: list[str] = []
        for node in self.nodes.values():
            alive = node.process is not None and node.process.poll() is None
            own = set(node.processes()) if alive else set[int]()
            outlived = [p for p in dict.fromkeys(node.former) if p not in own and _lives(p)]
            found += [f"{pid} of {node.name}" for pid in outlived]
        return found

    # Commands.

    def squall(self, *words: str, within_s: float = 60.0) -> Ended:
        return self.begin(*words).end(within_s)

    def begin(self, *words: str) -> Command:
        self._count += 1
        results = self.folder / f"results-{self._count}.json"
        process = subprocess.Popen(
            [str(SQUALL), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
            cwd=self.folder,
            start_new_session=True,
        )
        command = Command(process, results)
        self._commands.append(command)
        return command

    def run(self, file: str, *words: str, to: str = "") -> Command:
        """`squall run FILE --to` this datacenter, or `to` one of its managers."""
        results = self.folder / f"results-{self._count + 1}.json"
        return self.begin(
            "run", file, "--to", to or self.addresses, "--host", self.target.url,
            "--json", str(results), *words,
        )  # fmt: skip

    def write(self, text: str, name: str = "flow.py") -> str:
        (self.folder / name).write_text(HEADER + textwrap.dedent(text).lstrip("\n"))
        return name

    def ask(self, *words: str) -> Any:
        """The answer of a command with `--json`. Most are asked in this process: a command takes a
        core of the machine for half a second, which the nodes need."""
        question = question_of(words)
        if question is not None:
            try:
                return as_json(self.asked(question))
            except SquallError as error:
                raise AssertionError(f"{words}: {error}") from error
        ended = self.squall(*words, *self.reach, "--json")
        assert ended.code == 0, ended.err
        return json.loads(ended.out)

    def asked(self, question: Question, *, of: Sequence[str] = ()) -> Any:
        """The answer to a client of this process; `of` these managers only."""
        addresses = self.addresses.split(",")
        if of:
            by_name = dict(zip(self.managers(), addresses, strict=False))
            addresses = [by_name[name] for name in of]
        return asyncio.run(answer_to(question, addresses, SECRET, self.tls))

    def _nodes_once(
        self, holds: Callable[[list[NodeView]], bool], within_s: float
    ) -> list[NodeView]:
        """The nodes as soon as `holds` accepts them; at the end of the time, as they are then."""

        async def look(client: ClusterClient) -> list[NodeView]:
            until = time.monotonic() + within_s
            nodes: list[NodeView] = []
            while time.monotonic() < until:
                # Managers that start or elect a leader do not answer yet.
                with contextlib.suppress(SquallError):
                    nodes = (await client.nodes()).nodes
                    if holds(nodes):
                        return nodes
                await asyncio.sleep(0.05)
            return nodes

        return self.asked(look)

    def wait_ready(self, within_s: float = 180.0) -> None:
        """All workers registered."""
        wanted = sum(1 for node in self.nodes if node.startswith("w"))

        def are_there(nodes: list[NodeView]) -> bool:
            workers = [node for node in nodes if node.role == "worker"]
            return sum(node.state in ("idle", "busy") for node in workers) >= wanted

        nodes = self._nodes_once(are_there, within_s)
        if not are_there(nodes):
            logs = "\n".join(
                f"--- {each.name}\n{each.said()[-2000:]}" for each in self.nodes.values()
            )
            raise AssertionError(f"the datacenter is not ready: {nodes}\n{logs}")

    def wait_load(self, requests: int = 1, within_s: float = 60.0) -> None:
        """Until the target has seen so many requests."""
        until = time.monotonic() + within_s
        while self.target.counts()["total"] < requests:
            if time.monotonic() > until:
                logs = "\n".join(f"--- {n.name}\n{n.said()[-2000:]}" for n in self.nodes.values())
                raise AssertionError(f"no load arrived\n{logs}")
            time.sleep(0.02)

    def wait_quiet(self, quiet_s: float = 1.0, within_s: float = 60.0) -> None:
        """Until the target has seen no request for so long."""
        until = time.monotonic() + within_s
        seen, since = self.target.counts()["total"], time.monotonic()
        while time.monotonic() < since + quiet_s:
            assert time.monotonic() < until, "the load goes on"
            time.sleep(0.05)
            if (total := self.target.counts()["total"]) != seen:
                seen, since = total, time.monotonic()

    def wait_free(self, within_s: float = 60.0) -> None:
        """Until no worker holds a core of a job: a client may have its result before that."""
        until = time.monotonic() + within_s
        while True:
            used = [node for node in self.ask("nodes")["nodes"] if node["role"] == "worker"]
            if used and all(node["free"] == node["cores"] for node in used):
                return
            assert time.monotonic() < until, used
            time.sleep(0.1)

    def jobs(self) -> list[dict[str, Any]]:
        return self.ask("jobs")["jobs"]

    def _add_manager(self, number: int) -> None:
        name = f"m{number + 1}"
        ports = list(self._ports)
        if self.proxy is not None:
            # The worker behind the proxy learns this address from the manager, and no other.
            ports[0] = self.proxy.port
        members = ",".join(f"m{i + 1}=127.0.0.1:{port}" for i, port in enumerate(ports))
        self._add(
            name,
            "manager", "--dc", "lab", "--name", name,
            "--listen", f"127.0.0.1:{self._listens[number]}",
            "--members", members, "--timers", self.timers,
        )  # fmt: skip

    def _add_worker(self, number: int) -> None:
        name = f"w{number + 1}"
        ports = [self.proxy.port] if self.proxy is not None and number == 0 else self._ports
        self._add(
            name,
            "worker", "--dc", "lab", "--name", name,
            "--managers", ",".join(f"127.0.0.1:{port}" for port in ports),
            "--cores", str(self.cores), "--timers", self.timers,
        )  # fmt: skip

    def _add(self, name: str, *words: str) -> None:
        data = self.folder / name
        self.nodes[name] = Node(name, [*words, "--data", str(data)], self.folder / f"{name}.log")


def slower_timers(times: float) -> dict[str, str]:
    """The settings of the fast profile for a busy machine; none for an idle one."""
    if times == 1.0:
        return {}
    return {
        f"SQUALL_{name.replace('.', '__').upper()}": f"{cast('float', value) * times:g}"
        for profiles in (TIMER_PROFILES, JOB_PROFILES, MEMBERSHIP_PROFILES)
        for name, value in profiles["fast"].items()
    }


@contextlib.contextmanager
def cluster(folder: Path, target: TargetHandle, **options: Any) -> Generator[Cluster]:
    with Cluster(folder, target, **options) as made:
        yield made


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"
