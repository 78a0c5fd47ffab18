"""An answer takes the link of its request, so the request needs the size class of its answer."""

from __future__ import annotations

import inspect
from typing import Any, get_type_hints

import pytest

from squall.cluster.gate.clients.api import GateClientApi
from squall.cluster.gate.reports import PartReports
from squall.cluster.group.clients.job_changes import JobChanges
from squall.cluster.group.clients.job_requests import JobRequests
from squall.cluster.group.clients.operator_api import OperatorApi
from squall.cluster.group.clients.relay import ClientRelay
from squall.cluster.group.job_leaders.report_copies import MemberCopies
from squall.cluster.group.job_leaders.rpc import JobLeaderRpc
from squall.cluster.manager.clients.api import ClientApi
from squall.cluster.manager.clients.datacenter_state import DatacenterStateApi
from squall.cluster.manager.gates.part_api import PartApi
from squall.cluster.manager.worker_api import WorkerApi
from squall.cluster.wire.catalogue import CATALOGUE, MessageType


def handlers(owner: type) -> dict[str, tuple[MessageType, MessageType]]:
    """Request and answer of each handler: a method with the signature (message, incoming)."""
    found: dict[str, tuple[MessageType, MessageType]] = {}
    for name, method in inspect.getmembers(owner, inspect.isfunction):
        if list(inspect.signature(method).parameters) != ["self", "message", "incoming"]:
            continue
        hints: dict[str, Any] = get_type_hints(method)
        request = CATALOGUE.by_struct.get(hints["message"])
        answer = CATALOGUE.by_struct.get(hints.get("return"))
        if request is not None and answer is not None:
            found[f"{owner.__name__}.{name}"] = (request, answer)
    return found


OWNERS = (
    *(ClientApi, OperatorApi, WorkerApi, ClientRelay, MemberCopies, JobRequests, JobLeaderRpc),
    *(DatacenterStateApi, GateClientApi, JobChanges, PartApi, PartReports),
)
PAIRS = {name: pair for owner in OWNERS for name, pair in handlers(owner).items()}


def test_the_handlers_are_found() -> None:
    assert {
        "JobChanges.adjust",
        "JobRequests.follow",
        "JobRequests.list_jobs",
        "GateClientApi.list_datacenters",
        "DatacenterStateApi.answer",
    } <= PAIRS.keys(), sorted(PAIRS)


@pytest.mark.parametrize("name", PAIRS)
def test_the_link_of_a_request_carries_the_largest_answer(name: str) -> None:
    request, answer = PAIRS[name]
    assert request.size.value >= answer.size.value, (request.name, answer.name)
