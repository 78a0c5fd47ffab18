"""The job API of real managers is linearizable while their processes are killed and stopped.

The clients, the model and the checker are those of the simulation (`lab/histories`). There are no
workers: a job waits until a client cancels it, so every answer is known exactly.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from pathlib import Path
from typing import cast

import pytest

from lab.histories.job_api import JobModel, counted, problem_of
from lab.histories.job_clients import CAP_MS, JobClient, JobHistory, small_submission
from squall.api.errors import SquallError
from squall.cluster.client.access import address_of
from squall.cluster.client.cluster_client import ClusterClient
from squall.cluster.client.submission_journal import SubmissionJournal
from squall.cluster.protocol.timeouts import RequestTimeouts
from squall.cluster.wire.seal.secrets import Secrets, client_credential
from squall.runtime.interfaces import Runtime
from squall.runtime.real.runtime import RealRuntime
from squall.runtime.tasks import TaskRunner
from tests.cluster.lab.group import states, until
from tests.cluster.lab.nodes import SECRET, Cluster
from tests.lab.machine import factor
from tests.lab.target import TargetHandle

CLIENTS = 4
FAULTY_S = 30.0
HITS_MIN = 4
"""A slow machine continues until it has hit so many."""
THINK_S = 0.03
GIVES_UP_S = 2.0
"""Shorter than some failovers, so that operations without an answer are part of the history."""
AFTERWARDS = 5
"""Operations of each client when all managers are well again."""


class Clients:
    """Four clients, each in a thread with a loop of its own."""

    def __init__(self, made: Cluster) -> None:
        self._made = made
        self.history = JobHistory(time.monotonic)
        self._calm = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(f"c{number + 1}",), daemon=True)
            for number in range(CLIENTS)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """All managers are well: the clients do their last operations."""
        self._calm.set()
        for thread in self._threads:
            thread.join(60.0 * factor())
            assert not thread.is_alive(), "a client did not end"
        assert self._failures == []

    def _run(self, name: str) -> None:
        try:
            asyncio.run(self._operate(name))
        except BaseException as error:
            self._failures.append(error)

    async def _operate(self, name: str) -> None:
        real = RealRuntime(name, data_dir=self._made.folder / f"client-{name}")
        runtime = cast("Runtime", real)
        tasks = TaskRunner(runtime.clock, runtime.random)
        seconds = RequestTimeouts(connect_s=1.0, answer_s=GIVES_UP_S * factor())
        client = ClusterClient(
            runtime,
            tasks,
            addresses=[address_of(each, "--to") for each in self._made.addresses.split(",")],
            secrets=Secrets.of_credential(client_credential(SECRET, "team"), []),
            cluster="lab",
            reconnect_timeout_s=GIVES_UP_S * factor(),
            timeouts=seconds,
        )
        journal = SubmissionJournal(runtime, name, lambda owner: False)
        draw = random.Random(name)
        me = JobClient(
            name,
            client,
            journal,
            self.history,
            draw,
            lambda content: small_submission(content, 60.0, "http://127.0.0.1:9/"),
        )
        left = AFTERWARDS
        try:
            while left:
                left -= self._calm.is_set()
                await asyncio.sleep(draw.expovariate(1.0 / THINK_S))
                await me.operate()
            await me.list_jobs()
        finally:
            await client.close()
            await tasks.shutdown(2.0)
            await real.close()


def hit_primaries(made: Cluster, draw: random.Random) -> int:
    """Kills or stops the manager that leads, again and again; returns how often."""
    end, hits = time.monotonic() + FAULTY_S, 0
    while time.monotonic() < end or hits < HITS_MIN:
        leads: list[str] = []
        with contextlib.suppress(SquallError):
            leads = [name for name, state in states(made).items() if state == "leads"]
        if not leads:
            continue
        name = leads[0]
        hits += 1
        if draw.random() < 0.7:
            made.kill(name)
            time.sleep(draw.uniform(0.0, 1.5))
            made.start(name)
        else:
            made.pause(name)
            time.sleep(draw.uniform(0.2, 2.0) * factor())
            made.resume(name)
        time.sleep(draw.uniform(0.5, 2.0) * factor())
    return hits


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_one_order_explains_every_answer_of_managers_that_are_killed(
    tmp_path: Path, cluster_target: TargetHandle
) -> None:
    with Cluster(tmp_path, cluster_target, managers=3, workers=0) as made:
        clients = Clients(made)
        clients.start()
        hits = hit_primaries(made, random.Random(18))
        well = {"leads", "follows"}
        until(lambda: len(states(made)) == 3 and set(states(made).values()) == well, "all well")
        clients.end()
        recorded = clients.history.recorded
        problem = problem_of(recorded, JobModel(runs=False, cap_ms=CAP_MS))
        assert not problem, problem
        counts = counted(recorded)
        print(f"{hits} primaries hit, {dict(counts)}")
        for kind in ("submit", "cancel", "adjust", "extend", "look"):
            assert counts[kind] > 0, counts
