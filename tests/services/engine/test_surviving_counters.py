"""A core process that is killed leaves its counters, and its host reports them."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from time import perf_counter

from squall.engine.core_protocol import Load, ShareSpec
from squall.engine.process.attempt_events import HostReport, Refusal
from squall.engine.process.attempt_host import CoreHost
from squall.engine.process.counter_file import read_counters
from squall.engine.process.lease import boot_time
from squall.engine.run_options import RunOptions
from squall.stats.attempt_record import RecordEnd, SurvivingCounters
from squall.stats.manifest import Profile
from squall.stats.reports import WindowReport

PROFILE = Profile(model="open", vus=2, max_vus=4, duration_s=60.0, rate_per_s=50.0)
SPEC = ShareSpec(workflow="Url", share=0, shares=1, profile=PROFILE, users=2, users_max=4)


class Target:
    """Answers every request and counts it."""

    def __init__(self) -> None:
        self.served = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                self.served += 1
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


class Events:
    """Keeps what the host reports."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.over = asyncio.Event()
        self.reports: list[HostReport] = []
        self.end: RecordEnd | None = None

    @property
    def reported_sent(self) -> int:
        return sum(r.requests.sent for r in self.reports if isinstance(r, WindowReport))

    def on_loaded(self, key: str) -> None:
        pass

    def on_ready(self, key: str) -> None:
        self.ready.set()

    def on_refused(self, key: str, refusal: Refusal) -> None:
        raise AssertionError(refusal.text)

    def on_report(self, key: str, report: HostReport) -> None:
        self.reports.append(report)

    def on_held(self, key: str, why: str, silent_s: float) -> None: ...

    def on_ended(self, key: str, end: RecordEnd) -> None:
        self.end = end
        self.over.set()


def test_a_killed_core_process_leaves_its_counters(tmp_path: Path) -> None:
    asyncio.run(_play(str(tmp_path / "a.counts")))


def _core_processes() -> list[int]:
    """The children of this process that are core processes."""
    pid = os.getpid()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return [
        int(child)
        for child in children
        if b"squall.engine.process.core" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


async def _play(path: str) -> None:
    target, events = Target(), Events()
    server = await asyncio.start_server(target.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    host: CoreHost[str] = CoreHost(1, {})
    try:
        host.attach(events)
        load = Load(path="", options=RunOptions(url=f"http://127.0.0.1:{port}/"))
        host.start("a", "job", SPEC, load, path)
        host.set_lease("a", perf_counter() + 600.0, boot_time() + 600.0)
        async with asyncio.timeout(120.0):
            await events.ready.wait()
            host.go("a", 0.0, 0.0)
            # Some folds after the first report.
            while (
                (now := read_counters(path)) is None
                or now.at_s < 1.5
                or now.sent <= events.reported_sent
            ):
                await asyncio.sleep(0.02)
            [core] = _core_processes()
            os.kill(core, signal.SIGKILL)
            await events.over.wait()
    finally:
        await host.close()
        server.close()
    *_, last = events.reports
    assert isinstance(last, SurvivingCounters) and last.at_s >= now.at_s
    # Another report may have come between the look at its counters and its death.
    assert max(now.sent, events.reported_sent) <= last.sent <= target.served
    assert last.answered + last.failed <= last.sent == last.made
    assert events.end is not None and last.at_s <= events.end.elapsed_s
