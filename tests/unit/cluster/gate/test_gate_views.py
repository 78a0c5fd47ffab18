"""What `squall why` and `squall nodes` show of the gates' jobs and datacenters."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from squall.cli.cluster.nodes import datacenter_lines
from squall.cluster.assignments.records import GateJobRecord, PartRecord, PartTry
from squall.cluster.gate.clients.job_views import why
from squall.cluster.gate.clients.node_lists import NodeLists
from squall.cluster.gate.routing.known_datacenters import KnownDatacenters
from squall.cluster.gate.routing.settings import RoutingSettings
from squall.cluster.protocol.gates.handover_keys import HandoverNumber
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.messages import ListNodes, NodeList, NodeView
from squall.cluster.protocol.submission import BundleManifest, Submission
from squall.cluster.wire.errors import RemoteError, WireError
from squall.engine.run_options import RunOptions
from squall.stats.manifest import FileManifest
from tests.unit.cluster.gate.lab import report

WHY = """chosen of ap, us for 40 %
  us  healthy  score 170 = (92 ms + 50) x 1.2 load x 1.0   chosen
  ap  healthy  score 390   refused: needs 8 cores, 0 are free"""


def gate_job(*tries: PartTry) -> GateJobRecord:
    return GateJobRecord(
        job=JobId("g7a1-1042"),
        op=1042,
        principal="ann",
        key="k",
        fingerprint="",
        submission=Submission(
            bundle="",
            bundle_size=0,
            contents=BundleManifest(entry="", python="3.11"),
            manifest=FileManifest(path="shop.py", workflows=[]),
            options=RunOptions(url="http://target/"),
        ),
        created_ms=0,
        state="running",
        parts=(PartRecord(index=0, weight=0.4, tries=tries),),
    )


def test_why_shows_every_try_with_the_numbers_of_its_choice() -> None:
    refused = PartTry(
        datacenter="ap",
        handover=HandoverNumber(1),
        state="refused",
        assigned_ms=0,
        reason="needs 8 cores, 0 are free",
    )
    started = PartTry(
        datacenter="us", handover=HandoverNumber(2), state="started", assigned_ms=0, why=WHY
    )
    assert why(gate_job(refused, started), 0, None) == [
        "g7a1-1042 is running",
        "ap part, try 1, refused: needs 8 cores, 0 are free",
        "us part, try 2, started: chosen of ap, us for 40 %",
        *WHY.splitlines()[1:],
    ]


# The nodes.


def node(name: str, role: str = "gate", state: str = "follows", region: str = "") -> NodeView:
    return NodeView(
        name=name,
        role=role,  # pyright: ignore[reportArgumentType]
        address=f"{name}:7400",
        pid=1,
        state=state,
        boot="b",
        region=region,
    )


def known() -> KnownDatacenters:
    """Three datacenters: one is well, one busy for 14 s, one was never heard."""
    found = KnownDatacenters(
        {"eu": ["e:1"], "us": ["u:1"], "ap": ["a:1", "a:2", "a:3"]}, RoutingSettings()
    )
    for second in range(0, 16, 2):
        found["eu"].answered(report(datacenter="eu"), 8.0, second, second)
        busy = report(datacenter="us", cores=16, free=0, queued=3, workers=2, healthy=2)
        found["us"].answered(busy, 92.0, second, second)
        found.asked("ap", second)
        found.missed("ap", second, second + 0.1, "a:1: connection refused")
    return found


def lists(answer: NodeList | WireError | None = None) -> NodeLists:
    async def ask(datacenter: str, message: msgspec.Struct) -> NodeList:
        assert message == ListNodes()
        if isinstance(answer, WireError):
            raise answer
        assert answer is not None
        return answer

    gates = [node("g1", state="leads", region="eu"), node("g2", region="us")]
    return NodeLists(known(), lambda: 14.0, lambda: gates, ask)


def test_a_gate_shows_its_datacenters_and_the_gates() -> None:
    lines = datacenter_lines(asyncio.run(lists().nodes("")))
    assert [line.split() for line in lines[:4]] == [
        ["DC", "STATE", "MANAGERS", "WORKERS", "CORES", "FREE", "QUEUE", "RTT", "WHY"],
        [
            *("ap", "unreachable", "0/3", "-", "-", "-", "-", "-"),
            *["no", "manager", "answered", "in", "14", "s:", "a:1:", "connection", "refused"],
        ],
        ["eu", "healthy", "3/3", "4", "32", "12", "0", "8", "+-1", "ms"],
        [
            *("us", "busy", "3/3", "2", "16", "0", "3", "92", "+-6", "ms"),
            *["no", "core", "free", "for", "14", "s"],
        ],
    ]
    assert lines[4:] == [
        "gates: g1 leads, g2 follows (regions eu, us)",
        "squall nodes --dc ap lists its nodes",
    ]


def test_the_nodes_of_a_datacenter_come_from_itself_with_its_name() -> None:
    theirs = NodeList("eu", [node("m1", "manager"), node("w1", "worker")])
    answer = asyncio.run(lists(theirs).nodes("eu"))
    assert answer.datacenter == "eu"
    assert [each.name for each in answer.nodes] == ["eu/m1", "eu/w1"]


@pytest.mark.parametrize(
    ("datacenter", "text"),
    [
        ("mars", "no datacenter mars; there are ap, eu, us"),
        ("ap", "ap does not answer: no manager answered in 14 s: a:1: connection refused"),
        ("eu", "eu does not answer: the link broke"),
    ],
)
def test_a_datacenter_that_cannot_be_asked_is_one_clear_line(datacenter: str, text: str) -> None:
    with pytest.raises(RemoteError) as refused:
        asyncio.run(lists(WireError("the link broke")).nodes(datacenter))
    assert refused.value.text == text
