"""The target's own count against what a run reports, for every load model and fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from squall.engine.load.schedule import StartSchedule
from tests.lab.target import running_target
from tests.runs.lab.run import Lab, check_counts, check_identities


def home(profile: str, url: str = "/") -> str:
    return f"""
class Home(Workflow):
    {profile}

    @step()
    async def home(self, url: URL = "{url}") -> HTTPResponse:
        return await self.client.http.get(url)
"""


@pytest.mark.parametrize(
    ("profile", "workers"),
    [
        ("vus = 5; duration = '500ms'", 1),
        ("vus = 5; duration = '500ms'", 2),
        ("stages = ['300ms:6', '200ms:6', '300ms:0']", 1),
        ("stages = ['200ms:2', '300ms:8']; vus = 4", 2),
    ],
)
def test_closed_runs_count_what_the_target_counts(lab: Lab, profile: str, workers: int) -> None:
    result = lab.run(home(profile, "/?delay=2ms"), workers=workers)
    counts = lab.target.counts()
    check_counts(result, counts)
    # Each user makes an iteration, however late it begins.
    assert counts["total"] == result.step("home").count >= 4
    assert result.step("home").interrupted == 0
    assert result.passed


def test_the_iterations_model_makes_exactly_so_many_over_processes(lab: Lab) -> None:
    result = lab.run_processes(home("vus = 3; iterations = 1001"), workers=2)
    counts = lab.target.counts()
    check_counts(result, counts)
    assert counts["total"] == 1001
    assert result.workflow("Home").iteration.count == 1001


@pytest.mark.parametrize(
    ("profile", "workers"),
    [
        ("rate = '333/s'; duration = '600ms'", 1),
        ("rate = '333/s'; duration = '600ms'", 2),
        ("stages = ['300ms:400/s', '200ms:0/s', '200ms:101/s']", 2),
    ],
)
@pytest.mark.usefixtures("no_start_is_dropped")
def test_open_runs_make_every_planned_start(lab: Lab, profile: str, workers: int) -> None:
    result = lab.run(home(profile), workers=workers)
    counts = lab.target.counts()
    check_counts(result, counts)
    starts = result.outcome.stats.workflows["Home"].starts
    schedule = StartSchedule(result.outcome.manifest.workflow("Home").profile)
    assert starts.planned == schedule.total
    assert starts.dropped == 0
    assert counts["total"] == schedule.total


@pytest.mark.usefixtures("no_start_is_dropped")
def test_two_workflows_of_a_layer_count_apart_and_together(lab: Lab) -> None:
    text = """
    class One(Workflow):
        vus = 3; duration = "1s"

        @step()
        async def one(self, url: URL = "/one?delay=2ms") -> HTTPResponse:
            return await self.client.http.get(url)

    class Two(Workflow):
        rate = "100/s"; duration = "1s"

        @step()
        async def two(self, url: URL = "/two") -> HTTPResponse:
            return await self.client.http.get(url)
    """
    result = lab.run(text)
    counts = lab.target.counts()
    check_counts(result, counts)
    assert counts["paths"]["/one"] == result.step("one").count
    assert counts["paths"]["/two"] == result.step("two").count == 100


FAULTS = {
    "Errors": "/errors?errors=0.3&delay=1ms",
    "Resets": "/resets?resets=0.3&delay=1ms",
    "Cut": "/cut?cut=1&size=100&delay=1ms",
    "Closing": "/closing?close=1",
    "Moving": "/moving?redirects=2",
    "Chunks": "/chunks?chunked=5&size=50000",
}


def test_faults_of_the_target_do_not_lose_a_count(lab: Lab) -> None:
    files = [
        home("vus = 4; duration = '1s'; think = '5ms'", url).replace("Home", name)
        for name, url in FAULTS.items()
    ]
    result = lab.run("\n".join(files), workers=2)
    counts = lab.target.counts()
    check_counts(result, counts)
    for name, url in FAULTS.items():
        requests = result.workflow(name).requests
        step = result.workflow(name).step("home")
        seen = counts["paths"][url.partition("?")[0]]
        assert step.count + requests["redirects"] + requests["reconnects"] == seen > 10, name
    errors = result.workflow("Errors").step("home")
    assert errors.failed == errors.statuses["500"] == errors.count - errors.statuses["200"] > 0
    assert result.workflow("Cut").step("home").ok == 0
    for name in ("Closing", "Moving", "Chunks"):
        assert result.workflow(name).step("home").failed == 0
    assert result.workflow("Resets").step("home").failed > 0


def test_a_target_that_hangs_is_counted_by_timeouts_and_interruptions(lab: Lab) -> None:
    text = """
    class Stuck(Workflow):
        vus = 4; duration = "1s"; grace = "100ms"

        @step(timeout="200ms")
        async def slow(self, url: URL = "/slow?hang=1") -> HTTPResponse:
            return await self.client.http.get(url)
    """
    result = lab.run(text)
    check_counts(result, lab.target.counts())
    step = result.step("slow")
    assert step.failed == step.count >= 4
    assert any("timeout" in reason or "timed out" in reason for reason in step.errors), step.errors
    requests = result.workflow("Stuck").requests
    assert requests["answered"] == 0
    assert requests["sent"] == step.count + step.interrupted


def test_hanging_steps_are_interrupted_after_the_grace_time(lab: Lab) -> None:
    text = """
    class Stuck(Workflow):
        vus = 3; duration = "500ms"; grace = "300ms"

        @step()
        async def slow(self, url: URL = "/slow?hang=1") -> HTTPResponse:
            return await self.client.http.get(url)
    """
    result = lab.run(text)
    counts = lab.target.counts()
    check_counts(result, counts)
    step, iteration = result.step("slow"), result.workflow("Stuck").iteration
    assert (step.count, step.interrupted) == (0, 3)
    assert (iteration.count, iteration.interrupted) == (0, 3)
    assert result.workflow("Stuck").requests["sent"] == counts["total"] == 3


def test_no_iteration_starts_after_the_duration(lab: Lab) -> None:
    """A third iteration of a user would begin after 600 ms, or later on a busy machine."""
    result = lab.run(home("vus = 4; duration = '500ms'", "/?delay=300ms"))
    counts = lab.target.counts()
    check_counts(result, counts)
    assert 4 <= counts["total"] <= 8


def test_one_user_two_workers_more_workers_than_users(lab: Lab) -> None:
    result = lab.run(home("vus = 1; iterations = 7"), workers=2)
    check_counts(result, lab.target.counts())
    assert result.step("home").count == 7
    assert result.outcome.stats.workflows["Home"].users.max <= 1


def test_fewer_iterations_than_users(lab: Lab) -> None:
    result = lab.run(home("vus = 20; iterations = 3"), workers=2)
    check_counts(result, lab.target.counts())
    assert result.step("home").count == 3


def test_an_open_run_with_one_user_on_two_workers_keeps_its_limit(lab: Lab) -> None:
    result = lab.run(home("rate = '40/s'; duration = '1s'; max_vus = 1"), workers=2)
    check_counts(result, lab.target.counts())
    assert lab.target.counts()["connections"]["max_open"] == 1


def test_the_number_of_connections_is_the_number_of_users(tmp_path: Path) -> None:
    with running_target() as target:
        result = Lab(tmp_path, target).interrupt(
            home("vus = 47; duration = '10m'", "/?delay=10ms"),
            workers=2,
            when=lambda: target.counts()["connections"]["max_open"] >= 47,
        )
        connections = target.counts()["connections"]
    assert connections["opened"] == connections["max_open"] == 47
    assert result.workflow("Home").requests["connections"] == 47
    check_identities(result)


def test_a_run_in_which_every_request_failed_is_a_failed_run(lab: Lab) -> None:
    result = lab.run(home("vus = 2; iterations = 20", "/?status=503"))
    assert not result.passed
    assert result.exit_code == 99
    assert result.step("home").errors == {"503 Service Unavailable": 20}


def test_requests_after_the_load_are_counted_or_not_sent(lab: Lab) -> None:
    text = """
    second_begins = asyncio.Event()

    class First(Workflow):
        iterations = 3

        @step()
        async def one(self, url: URL = "/one") -> HTTPResponse:
            self.left_behind = asyncio.create_task(self.later(url))
            return await self.client.http.get(url)

        async def later(self, url):
            await second_begins.wait()
            return await self.client.http.get(url)

        @state("Second")
        async def given(self) -> Provide[int]:
            return (await self.client.http.get("/given")).status_code

    @depends("First")
    class Second(Workflow):
        iterations = 10

        @step()
        async def two(self, given: int, url: URL = "/two?delay=20ms") -> HTTPResponse:
            second_begins.set()
            self.check("given", given == 200)
            return await self.client.http.get(url)
    """
    result = lab.run(text)
    counts = lab.target.counts()
    check_counts(result, counts)
    assert (counts["paths"]["/one"], counts["paths"]["/given"]) == (3, 1)
    assert result.workflow("First").requests["sent"] == 4
    assert result.checks["given"].failed == 0
