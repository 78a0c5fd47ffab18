"""Load against targets that are slow, dead or frozen, and whether the numbers are true."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest
from run_lab import Lab, check_counts, check_identities

from target_fixture import TargetHandle, running_target, start_target


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_a_dead_target_does_not_spin(lab: Lab) -> None:
    text = """
    class Dead(Workflow):
        vus = 10
        duration = "1.5s"

        @step()
        async def home(self, url: URL = "/") -> HTTPResponse:
            return await self.client.http.get(url)
    """
    result = lab.run(text, host=f"http://127.0.0.1:{free_port()}")
    check_identities(result)
    step = result.step("home")
    assert step.ok == 0
    # Rests double from 10 ms: seven tries in a second and a half, ten in no case.
    assert 10 <= step.count <= 100
    assert result.exit_code == 99
    assert "refused" in next(iter(step.errors))


def test_a_target_that_comes_back_is_used_again(tmp_path: Path) -> None:
    port = free_port()
    text = """
    class Patient(Workflow):
        vus = 4
        duration = "3s"

        @step()
        async def home(self, url: URL = "/?delay=5ms") -> HTTPResponse:
            return await self.client.http.get(url)
    """
    started: list[TargetHandle] = []

    def come_back() -> None:
        started.append(start_target("--port", str(port)))

    timer = threading.Timer(1.0, come_back)
    timer.start()
    try:
        nowhere = TargetHandle(f"http://127.0.0.1:{port}", None)  # type: ignore[arg-type]
        result = Lab(tmp_path, nowhere).run(text)
        timer.join()
        counts = started[0].counts()
    finally:
        timer.join()
        for handle in started:
            handle.stop()
    check_counts(result, counts)
    step = result.step("home")
    assert step.failed >= 4
    assert step.ok == counts["total"] > 20


def test_too_few_users_make_starts_late_and_then_drop_them(lab: Lab) -> None:
    text = """
    class Slow(Workflow):
        rate = "50/s"
        duration = "2s"
        max_vus = 2

        @step()
        async def home(self, url: URL = "/?delay=100ms") -> HTTPResponse:
            return await self.client.http.get(url)
    """
    result = lab.run(text)
    check_counts(result, lab.target.counts())
    starts = result.outcome.stats.workflows["Slow"].starts
    assert starts.planned == 100
    assert starts.late > 0
    assert starts.dropped > 20
    assert starts.late_max_s > 0.5
    assert result.verdict == "INVALID"
    assert any("raise max_vus above 2" in reason for reason in result.reasons)
    assert any("planned starts" in reason for reason in result.reasons)
    step = result.step("home")
    assert step.p(99) > 0.5, "response time counts from the plan"
    assert step.service_p(50) < 0.3


def test_a_freeze_shows_in_response_time_and_not_in_the_median(tmp_path: Path) -> None:
    text = """
    class Steady(Workflow):
        rate = "100/s"
        duration = "3s"
        vus = 20
        max_vus = 300

        @step()
        async def home(self, url: URL = "/") -> HTTPResponse:
            return await self.client.http.get(url)
    """
    with running_target() as target:
        timer = threading.Timer(1.5, target.freeze, [1.0])
        timer.start()
        result = Lab(tmp_path, target).run(text)
        timer.join()
        counts = target.counts()
    check_counts(result, counts)
    step = result.step("home")
    assert step.count == 300
    assert step.p(99) > 0.8
    assert step.p(75) > 0.1, "a third of the starts fell into the freeze"
    assert step.service_p(50) < 0.2


def test_percentiles_are_those_of_the_target(tmp_path: Path) -> None:
    """Within 2 % and 0.5 ms, which other work on this machine can spoil for a moment; so
    the whole measurement may be repeated, three times in all."""
    text = """
    class Truth(Workflow):
        rate = "100/s"
        duration = "4s"
        vus = 10

        @step()
        async def home(self, url: URL = "/?delay=lognormal:20ms,0.3") -> HTTPResponse:
            return await self.client.http.get(url)
    """
    differences: list[str] = []
    with running_target() as target:
        for _ in range(3):
            target.reset()
            result = Lab(tmp_path, target).run(text)
            counts = target.counts()
            check_counts(result, counts)
            told = counts["delays"]["/"]
            assert told["count"] == result.step("home").count == 400
            wrong = [
                f"p{p}: {seen_ms:.2f} ms for {true_ms:.2f} ms"
                for p in (50, 95, 99)
                for seen_ms, true_ms in [
                    (result.step("home").service_p(p) * 1000, told[f"p{p}_ms"])
                ]
                if abs(seen_ms - true_ms) > 0.02 * true_ms + 0.5
            ]
            if not wrong:
                return
            differences += wrong
    pytest.fail("; ".join(differences))


def test_response_and_service_time_agree_when_nobody_waits(lab: Lab) -> None:
    text = """
    class Easy(Workflow):
        rate = "50/s"
        duration = "1s"
        vus = 10

        @step()
        async def root(self, url: URL = "/?delay=20ms") -> HTTPResponse:
            return await self.client.http.get(url)

        @then()
        async def later(self, url: URL = "/?delay=20ms") -> HTTPResponse:
            return await self.client.http.get(url)
    """
    result = lab.run(text)
    check_counts(result, lab.target.counts())
    rows = result.outcome.stats.workflows["Easy"].rows
    assert rows["root"].has_response and not rows["later"].has_response
    assert rows["root"].latency.count == rows["root"].count == 50
    iteration = result.outcome.stats.workflows["Easy"].iteration
    assert iteration.latency.count == iteration.count == 50
    # From the plan to the answer: never less than the exchange itself.
    assert rows["root"].latency.min_s >= 0.018
    assert rows["root"].latency.mean >= rows["root"].service.mean


def test_users_of_an_open_model_grow_with_need_only(lab: Lab) -> None:
    text = """
    class Grows(Workflow):
        rate = "100/s"
        duration = "1s"

        @step()
        async def home(self, url: URL = "/?delay=100ms") -> HTTPResponse:
            return await self.client.http.get(url)
    """
    result = lab.run(text)
    counts = lab.target.counts()
    check_counts(result, counts)
    assert result.step("home").count == 100
    # Ten run at any moment by Little's law; the rest is the slack of a noisy machine.
    assert 10 <= counts["connections"]["opened"] <= 60
