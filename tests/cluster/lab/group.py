"""What tests of a group of managers share: to ask it, to wait for it, to add to it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from squall.api.errors import SquallError
from squall.cluster.protocol.group_messages import AskGroup, GroupView
from squall.cluster.protocol.messages import ListJobs
from tests.cluster.lab.judge import holes
from tests.cluster.lab.nodes import Cluster, Ended, Node
from tests.lab.machine import factor
from tests.lab.ports import free_ports

STOOD_STILL_S = 1.0
"""Some of what is missing after a standstill is made up for, so it may look longer than it was."""


def group(made: Cluster, *words: str) -> Ended:
    return made.squall("group", *words, "--to", made.addresses, within_s=90.0)


def asked(made: Cluster, message: Any, *, of: Sequence[str] = ()) -> Any:
    """As a command would ask, without the cost of a process; `of` these managers only."""
    return made.asked(
        lambda client: client.managers.ask(message, timeout_s=5.0, reconnect_timeout_s=20.0), of=of
    )


def status(made: Cluster, *, of: Sequence[str] = ()) -> GroupView:
    return asked(made, AskGroup(), of=of)


def states(made: Cluster) -> dict[str, str]:
    return {member.name: member.state for member in status(made).members}


def leader(made: Cluster, *, of: Sequence[str] = ()) -> str:
    """The member that leads; during an election there is none, and it is waited for."""
    found = [""]

    def known() -> bool:
        found[0] = status(made, of=of).leader
        return found[0] in (of or made.nodes)

    until(known, "no member leads")
    return found[0]


def jobs(made: Cluster) -> list[str]:
    return [view.job for view in asked(made, ListJobs()).jobs]


def until(holds: Callable[[], bool], what: str, within_s: float = 60.0) -> None:
    end = time.monotonic() + within_s * factor()
    while not _holds(holds):
        assert time.monotonic() < end, what
        time.sleep(0.1)


def _holds(holds: Callable[[], bool]) -> bool:
    """Between two leaders a group may not answer; then it does not hold yet."""
    with contextlib.suppress(SquallError):
        return holds()
    return False


def add_manager(made: Cluster, name: str, near: str, *, data: str = "") -> str:
    """Starts a manager as an operator would, beside the managers that `near` names; its
    address."""
    port = free_ports(1)[0]
    address = f"127.0.0.1:{port}"
    made.nodes[name] = Node(
        name,
        [
            "manager", "--dc", "lab", "--name", name, "--listen", address,
            "--members", f"{near},{name}={address}", "--timers", made.timers,
            "--data", str(made.folder / (data or name)), "--join",
        ],
        made.folder / f"{data or name}.log",
    )  # fmt: skip
    made.start(name)
    return address


def listed(made: Cluster, *names: str) -> str:
    words = made.nodes[names[0]].words
    every = dict(each.split("=") for each in words[words.index("--members") + 1].split(","))
    return ",".join(f"{name}={every[name]}" for name in names)


def pauses(document: dict[str, Any], counts: dict[str, Any]) -> list[str]:
    """`holes`, except for a while without starts in which the machine stood still. The document
    shows that: the loops of all generators were late, or a response took as long."""
    lags = [each.get("loop_lag_ms") or {"max": 0.0} for each in document["generator"]["processes"]]
    steps = [step for each in document["workflows"] for step in each["steps"]]
    slowest_ms = max(step["service_ms"]["max"] for step in steps)
    stood_s = max(slowest_ms, min(lag["max"] for lag in lags)) / 1000.0
    return [] if stood_s > STOOD_STILL_S else holes(document, counts)
