"""Real agents run scheduled load tests on time and once each, also when an agent dies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from squall.cluster.wire.seal.secrets import Secrets, client_credential
from squall.runtime.interfaces import Runtime
from squall.runtime.real.runtime import RealRuntime
from squall.store_mode.open_store import DEFAULT_PREFIX, opened_store
from squall.store_mode.schedules.client import ScheduleClient
from squall.store_mode.schedules.records import ScheduledRun
from tests.cluster.lab.nodes import SECRET
from tests.lab.target import TargetHandle
from tests.store_mode.lab.agents import SqlitePlace, StoreLab

WITHIN_S = 120.0
FLOW = """
class Load(Workflow):
    vus = 1
    iterations = 5

    @step()
    async def get(self, url: URL = "/") -> HTTPResponse:
        assert os.environ["TOKEN"] == "hush"
        return await self.client.http.get(url, headers=SENDER)
"""


def until(lab: StoreLab, holds: Callable[[list[ScheduledRun]], bool]) -> list[ScheduledRun]:
    """The runs of the schedule, when this holds of them."""

    async def looked() -> list[ScheduledRun]:
        runtime = cast("Runtime", RealRuntime("looks"))
        secrets = Secrets.of_credential(client_credential(SECRET, "lab"))
        end = time.monotonic() + WITHIN_S
        async with opened_store(lab.place.url, DEFAULT_PREFIX, runtime) as store:
            book = ScheduleClient(store, runtime, secrets, "squall")
            while True:
                progress = (await book.entry("nightly")).progress
                runs = [*progress.runs, *([progress.under_way] if progress.under_way else [])]
                if holds(runs):
                    return runs
                assert time.monotonic() < end, f"{runs}\n{lab.logs()}"
                await asyncio.sleep(0.1)

    return asyncio.run(looked())


def completed(runs: list[ScheduledRun]) -> list[ScheduledRun]:
    """A busy machine may make a generator that is too slow for its result to be valid."""
    return [run for run in runs if run.state == "completed" and run.exit_code == 0]


def test_a_schedule_runs_at_its_times_once_each_and_goes_on_after_its_agent(
    tmp_path: Path, counting: TargetHandle
) -> None:
    with StoreLab(tmp_path, counting, SqlitePlace(tmp_path), agents=1) as lab:
        file = lab.write(FLOW)
        added = lab.squall(
            "schedule", "add", file, *lab.reach, "--every", "3s", "--name", "nightly",
            "--compare-to", "last", "--host", counting.url, "--secret", "TOKEN=hush",
        )  # fmt: skip
        assert added.code == 0, added.err
        first, second = completed(until(lab, lambda runs: len(completed(runs)) >= 2))[:2]
        assert first.verdict in ("VALID", "DEGRADED") and first.comparison is None
        assert second.comparison is not None and second.comparison.to == first.job
        assert counting.counts()["total"] >= 10

        # Another agent comes, and finds everything in the store.
        lab.kill("a1")
        (*_, last) = until(lab, bool)
        lab.add_agent("a2")
        lab.start("a2")
        until(lab, lambda runs: any(run.due > last.due for run in completed(runs)))

        # Every job is that of one due time: none was made twice, none came from elsewhere.
        jobs = {job["job"] for job in lab.jobs()}
        until(lab, lambda runs: jobs <= {run.job for run in runs})
        runs: list[dict[str, Any]] = lab.ask("schedule", "history", "nightly")["runs"]
        due, made = [run["time"] for run in runs], [run["job"] for run in runs if run["job"]]
        assert len(set(due)) == len(due) and len(set(made)) == len(made)
        assert jobs <= set(made)
        removed = lab.squall("schedule", "remove", "nightly", *lab.reach)
        assert removed.code == 0 and removed.out.startswith("removed schedule nightly")
