"""Several attempts in one core process: each with its own lease, counters and end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import textwrap
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from squall.engine.core_protocol import Load, ShareSpec
from squall.engine.load.schedule import StartSchedule
from squall.engine.process.attempt_events import HostReport, Refusal
from squall.engine.process.attempt_host import CoreHost
from squall.engine.process.lease import boot_time
from squall.engine.run_options import RunOptions
from squall.stats.attempt_record import RecordEnd, SurvivingCounters
from squall.stats.manifest import Profile
from squall.stats.reports import HealthReport, WindowReport
from tests.lab.machine import factor

OPEN = Profile(model="open", vus=2, max_vus=4, duration_s=600.0, rate_per_s=50.0)
CLOSED = Profile(model="closed", vus=2, max_vus=2, duration_s=600.0)
LONG_S = 600.0
WAITS_S = 120.0
FLOWS = """
    import asyncio, time
    from squall import URL, Counter, HTTPResponse, Workflow, step

    class Calm(Workflow):
        @step()
        async def get(self, url: URL = "/Calm") -> HTTPResponse:
            return await self.client.http.get(url)

    class Counted(Workflow):
        calls = Counter()

        @step()
        async def get(self, url: URL = "/Counted") -> HTTPResponse:
            self.calls.add()
            return await self.client.http.get(url)

    class Other(Workflow):
        @step()
        async def get(self, url: URL = "/Other") -> HTTPResponse:
            return await self.client.http.get(url)

    class Stubborn(Workflow):
        @step()
        async def get(self, url: URL = "/Stubborn") -> HTTPResponse:
            answer = await self.client.http.get(url)
            while True:
                try:
                    await asyncio.sleep(0.05)
                    await self.client.http.get("/Stubborn/again")
                except BaseException:
                    pass

    class Blocking(Workflow):
        @step()
        async def get(self, url: URL = "/Blocking") -> HTTPResponse:
            answer = await self.client.http.get(url)
            time.sleep(600)
            return answer
"""


class Attempts:
    """Starts attempts in one host and keeps what it reports; a key is the name of a workflow, and
    of a share if it is not the first: `Calm#1`."""

    def __init__(self, folder: Path, port: int) -> None:
        file = folder / "flows.py"
        file.write_text(textwrap.dedent(FLOWS))
        self._folder = folder
        options = RunOptions(file="flows.py", host=f"http://127.0.0.1:{port}")
        self._load = Load(path=str(file), options=options)
        self.host: CoreHost[str] = CoreHost(1, {})
        self.host.attach(self)
        self.ready: set[str] = set()
        self.reports: dict[str, list[HostReport]] = {}
        self.ends: dict[str, RecordEnd] = {}

    async def begin(
        self, *names: str, profile: Profile = OPEN, leases: dict[str, float] | None = None
    ) -> None:
        for name in names:
            workflow, _, share = name.partition("#")
            spec = ShareSpec(
                workflow=workflow,
                share=int(share or 0),
                shares=2 if share else 1,
                profile=profile,
                users=2,
                users_max=4,
            )
            lease_s = (leases or {}).get(name, LONG_S)
            self.host.start(name, "job", spec, self._load, str(self._folder / name))
            self.host.set_lease(name, perf_counter() + lease_s, boot_time() + lease_s)
        await until(lambda: self.ready >= set(names))
        for name in names:
            self.host.go(name, 0.0, 0.0)

    def windows(self, name: str) -> list[WindowReport]:
        return [each for each in self.reports[name] if isinstance(each, WindowReport)]

    def sent(self, name: str) -> int:
        return sum(each.requests.sent for each in self.windows(name))

    def calls(self, name: str) -> float:
        return sum(each.sum for window in self.windows(name) for each in window.metrics)

    # `AttemptEvents`.

    def on_loaded(self, key: str) -> None:
        pass

    def on_ready(self, key: str) -> None:
        self.ready.add(key)

    def on_refused(self, key: str, refusal: Refusal) -> None:
        raise AssertionError(refusal.text)

    def on_report(self, key: str, report: HostReport) -> None:
        self.reports.setdefault(key, []).append(report)

    def on_held(self, key: str, why: str, silent_s: float) -> None: ...

    def on_ended(self, key: str, end: RecordEnd) -> None:
        assert key not in self.ends, "an end is reported once"
        self.ends[key] = end


async def until(what: Callable[[], Any]) -> None:
    async with asyncio.timeout(WAITS_S):
        while not what():
            await asyncio.sleep(0.02)


def core_processes() -> list[int]:
    pid = os.getpid()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return [
        int(child)
        for child in children
        if b"squall.engine.process.core" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


@contextlib.asynccontextmanager
async def hosted(folder: Path) -> AsyncIterator[tuple[Attempts, Counter[str]]]:
    """Attempts, and the requests of each workflow that their target has served."""
    served: Counter[str] = Counter()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                served[head.split()[1].decode().strip("/")] += 1
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    attempts = Attempts(folder, server.sockets[0].getsockname()[1])
    try:
        yield attempts, served
    finally:
        await attempts.host.close()
        server.close()


@pytest.mark.asyncio
async def test_attempts_of_a_group_run_in_one_process_and_end_one_by_one(tmp_path: Path) -> None:
    async with hosted(tmp_path) as (attempts, served):
        await attempts.begin("Calm", "Other")
        await until(lambda: served["Calm"] > 20 and served["Other"] > 20)
        assert len(core_processes()) == 1
        attempts.host.stop("Calm", now=True, cut="cancelled")
        await until(lambda: "Calm" in attempts.ends)
        assert attempts.ends["Calm"].cut == "cancelled"
        assert attempts.sent("Calm") == served["Calm"]
        seen = served["Other"]
        await until(lambda: served["Other"] > seen + 20)
        attempts.host.stop("Other", now=True, cut="cancelled")
        await until(lambda: "Other" in attempts.ends)
        assert attempts.sent("Other") == served["Other"]
        health = [
            each for name in attempts.reports for each in attempts.reports[name]
            if isinstance(each, HealthReport)
        ]  # fmt: skip
        moments = [each.at_s for each in health]
        assert health and len(moments) == len(set(moments)), "reported once for the process"


@pytest.mark.asyncio
async def test_two_shares_of_a_workflow_do_not_mix_what_its_class_holds(tmp_path: Path) -> None:
    """An author's metrics are attributes of the class, so each process can count one share."""
    async with hosted(tmp_path) as (attempts, served):
        await attempts.begin("Counted#0")
        await until(lambda: served["Counted"] > 20)
        await attempts.begin("Counted#1")
        await until(lambda: attempts.reports.get("Counted#1") and attempts.sent("Counted#1") > 20)
        attempts.host.stop("Counted#1", now=True, cut="cancelled")
        await until(lambda: "Counted#1" in attempts.ends)
        seen = served["Counted"]
        await until(lambda: served["Counted"] > seen + 50)
        attempts.host.stop("Counted#0", now=True, cut="cancelled")
        await until(lambda: "Counted#0" in attempts.ends)
        counted = [(attempts.calls(name), attempts.sent(name)) for name in attempts.ends]
        assert [calls for calls, _ in counted] == [sent for _, sent in counted]


@pytest.mark.asyncio
async def test_the_death_of_a_process_leaves_the_counters_of_each_attempt(tmp_path: Path) -> None:
    async with hosted(tmp_path) as (attempts, served):
        await attempts.begin("Calm", "Other")
        await until(lambda: served["Calm"] > 80 and served["Other"] > 80)
        [core] = core_processes()
        os.kill(core, signal.SIGKILL)
        await until(lambda: attempts.ends.keys() == {"Calm", "Other"})
        for name, end in attempts.ends.items():
            *_, last = attempts.reports[name]
            assert isinstance(last, SurvivingCounters) and 0 < last.sent <= served[name]
            assert "SIGKILL" in end.cut and not end.reported_by_process


@pytest.mark.asyncio
async def test_the_lease_of_one_attempt_ends_it_alone(tmp_path: Path) -> None:
    async with hosted(tmp_path) as (attempts, served):
        await attempts.begin("Calm", "Other", leases={"Calm": 8.0 * factor()})
        await until(lambda: "Calm" in attempts.ends)
        assert attempts.ends["Calm"].cut == "lease ended"
        assert attempts.sent("Calm") == served["Calm"]
        seen = served["Other"]
        await until(lambda: served["Other"] > seen + 50)
        assert "Other" not in attempts.ends


@pytest.mark.asyncio
async def test_an_attempt_that_ignores_its_stop_is_given_up_and_the_others_go_on(
    tmp_path: Path,
) -> None:
    async with hosted(tmp_path) as (attempts, served):
        await attempts.begin("Stubborn", "Other")
        await until(lambda: served["Stubborn/again"] > 5 and served["Other"] > 20)
        attempts.host.stop("Stubborn", now=True, cut="cancelled")
        attempts.host.kill("Stubborn", "cancelled")
        await until(lambda: "Stubborn" in attempts.ends)
        assert attempts.ends["Stubborn"].cut == "cancelled"
        made = served["Stubborn"] + served["Stubborn/again"]
        assert attempts.sent("Stubborn") == made
        seen = served["Other"]
        await until(lambda: served["Other"] > seen + 50)
        assert "Other" not in attempts.ends
        assert served["Stubborn"] + served["Stubborn/again"] == made, "it sends nothing any more"


@pytest.mark.asyncio
async def test_an_attempt_that_blocks_the_loop_takes_the_others_with_it(tmp_path: Path) -> None:
    async with hosted(tmp_path) as (attempts, served):
        await attempts.begin("Other", "Blocking")
        await until(lambda: served["Blocking"] > 0)
        attempts.host.stop("Blocking", now=True, cut="cancelled")
        attempts.host.kill("Blocking", "cancelled")
        await until(lambda: attempts.ends.keys() == {"Blocking", "Other"})
        assert attempts.ends["Blocking"].cut == "cancelled"
        why = "its core process was killed with Blocking: cancelled"
        assert attempts.ends["Other"].cut == why
        assert served["Other"] >= attempts.sent("Other")


@pytest.mark.asyncio
@pytest.mark.parametrize("profile", [OPEN, CLOSED], ids=["open", "closed"])
async def test_an_attempt_that_stood_still_beyond_its_lease_ended_with_it(
    tmp_path: Path, profile: Profile
) -> None:
    lease_s = 10.0 * factor()
    async with hosted(tmp_path) as (attempts, served):
        granted = perf_counter()
        await attempts.begin("Calm", profile=profile, leases={"Calm": lease_s})
        began = perf_counter()
        await until(lambda: served["Calm"] > 20)
        [core] = core_processes()
        os.kill(core, signal.SIGSTOP)
        await until(lambda: perf_counter() > granted + lease_s + 4.0)
        os.kill(core, signal.SIGCONT)
        await until(lambda: "Calm" in attempts.ends)
        end, windows = attempts.ends["Calm"], attempts.windows("Calm")
        assert end.cut == "lease ended" and end.reported_by_process
        # The lease was granted a little after `granted` was read.
        assert end.elapsed_s == pytest.approx(granted + lease_s - began, abs=1.0)
        assert all(each.window <= end.elapsed_s for each in windows)
        assert attempts.sent("Calm") == served["Calm"]
        if profile.is_open:
            planned = sum(each.starts.planned for each in windows)
            done = sum(each.starts.made + each.starts.dropped for each in windows)
            assert planned == done == StartSchedule(profile).planned_until(end.elapsed_s)
