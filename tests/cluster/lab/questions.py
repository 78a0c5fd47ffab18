"""Asks a cluster as the commands do, from this process: a command takes a core of the machine for
half a second, which the nodes of a test need."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import msgspec

from squall.cluster.client.access import address_of
from squall.cluster.client.cluster_client import ClusterClient
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.timeouts import RequestTimeouts
from squall.cluster.wire.links.switchboard import LinkTLS
from squall.cluster.wire.seal.secrets import Secrets, client_credential
from squall.reporting.text.standard_streams import value_of
from squall.runtime.interfaces import Runtime
from squall.runtime.real.runtime import RealRuntime
from squall.runtime.tasks import TaskRunner

ANSWER_WITHIN_S = 60.0
"""A group of a busy machine may be without a primary for long; the test has limits of its own."""
Question = Callable[[ClusterClient], Awaitable[Any]]


def question_of(words: Sequence[str]) -> Question | None:
    """What these words ask as a command, for a client in this process; None if only the command
    can ask it."""
    match words:
        case ["nodes"]:
            return lambda client: client.nodes()
        case ["jobs"]:
            return _all_jobs
        case ["status", job]:
            return lambda client: client.status(JobId(job))
        case ["why", job]:
            return lambda client: client.why(JobId(job))
        case ["cancel", job]:
            return lambda client: client.cancel(JobId(job))
        case ["cancel", job, "--now"]:
            return lambda client: client.cancel(JobId(job), now=True)
        case _:
            return None


async def _all_jobs(client: ClusterClient) -> dict[str, Any]:
    return {"jobs": await client.jobs()}


def as_json(answer: Any) -> Any:
    """As the commands print it with `--json`."""
    return json.loads(msgspec.json.encode(value_of(answer)))


async def answer_to(
    question: Question, addresses: Sequence[str], secret: str, tls: LinkTLS | None = None
) -> Any:
    runtime = RealRuntime("tester")
    tasks = TaskRunner(runtime.clock, runtime.random)
    client = ClusterClient(
        cast("Runtime", runtime),
        tasks,
        addresses=[address_of(each, "--to") for each in addresses],
        secrets=Secrets.of_credential(client_credential(secret, "tester", operator=True), []),
        cluster="lab",
        tls=tls,
        reconnect_timeout_s=ANSWER_WITHIN_S,
        timeouts=RequestTimeouts(query_s=ANSWER_WITHIN_S),
    )
    try:
        return await question(client)
    finally:
        await client.close()
        await tasks.shutdown(2.0)
        await runtime.close()
