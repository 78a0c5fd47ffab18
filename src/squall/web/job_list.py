"""The jobs of a cluster as `squall web` lists them: running, waiting and past ones with results.

It asks the cluster for the list at most once a second, whatever the number of viewers. The result
of a job never changes, so it reads each once, one after the other, the newest first.
"""

from __future__ import annotations

import asyncio
from typing import Any

from squall.api.errors import SquallError
from squall.cluster.client.cluster_client import TERMINAL, ClusterClient, outcome_from
from squall.cluster.protocol.messages import JobView
from squall.engine.outcome import RunOutcome
from squall.runtime.interfaces import Clock

JOBS_SHOWN = 100
RESULTS_READ = 40
"""Results that are read for the trend; the others show only their state."""
FRESH_S = 1.0


class ListedJobs:
    """The known jobs of one cluster and their results."""

    def __init__(self, client: ClusterClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._jobs: list[JobView] = []
        self._asked_at = -FRESH_S
        self._asking = asyncio.Lock()
        self._results: dict[str, dict[str, Any]] = {}
        self._reading: asyncio.Task[None] | None = None

    async def entries(self) -> list[dict[str, Any]]:
        """All jobs, the newest first. Raises `SquallError` if the cluster does not answer."""
        async with self._asking:
            if self._clock.now() - self._asked_at >= FRESH_S:
                self._jobs = await self._client.jobs(JOBS_SHOWN)
                self._asked_at = self._clock.now()
                self._read_results()
        return [self._entry(job) for job in self._jobs]

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    def _entry(self, job: JobView) -> dict[str, Any]:
        return {
            "job": job.job,
            "state": job.state,
            "over": job.state in TERMINAL,
            "file": job.file,
            "by": job.principal,
            "age_s": round(job.age_s, 1),
            "elapsed_s": round(job.elapsed_s, 1),
            "remark": f"place {job.position} in the queue" if job.position else job.reason,
            "result": self._results.get(job.job),
        }

    def _read_results(self) -> None:
        over = [job for job in self._jobs if job.state in TERMINAL and job.result]
        missing = [job for job in over[:RESULTS_READ] if job.job not in self._results]
        shown = {job.job for job in self._jobs}
        for gone in [job for job in self._results if job not in shown]:
            del self._results[gone]
        if missing and (self._reading is None or self._reading.done()):
            self._reading = asyncio.create_task(self._read(missing))

    async def _read(self, jobs: list[JobView]) -> None:
        for job in jobs:
            try:
                outcome = outcome_from(await self._client.result(job.job))
                self._results[job.job] = result_entry(outcome)
            except SquallError as error:
                self._results[job.job] = {"error": str(error)}


def result_entry(outcome: RunOutcome) -> dict[str, Any]:
    """The history's entry for a result. The percentile is that of the first test's iterations."""
    test = next((w for w in outcome.manifest.workflows if w.is_test), None)
    entry: dict[str, Any] = {
        "verdict": outcome.verdict.state,
        "passed": outcome.passed,
        "started_at": outcome.info.started_at.timestamp(),
        "p95_ms": None,
        "rate": None,
        "failed": None,
    }
    if test is None:
        return entry
    stats = outcome.stats.workflows[test.name]
    if stats.iteration.count:
        entry["p95_ms"] = round(stats.iteration.quantile(0.95) * 1e3, 3)
        entry["rate"] = round(stats.iteration.count / stats.rated_s, 2) if stats.rated_s else None
    if stats.count:
        entry["failed"] = stats.failed / stats.count
    return entry
