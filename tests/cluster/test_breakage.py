"""Disks that are full, logs that are torn, clients that die, code that never returns.

Each time: one clear line about the cause, the datacenter unharmed, the sums exact.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.lab.nodes import Cluster, Ended, cluster
from tests.lab.exit_codes import INTERRUPTED, check_code, losses
from tests.lab.target import TargetHandle

GET = "return await self.client.http.get(url, headers=SENDER)"
LOAD = f"""
class Load(Workflow):
    vus = 2
    duration = "DURATION"

    @step()
    async def get(self, url: URL = "/?delay=10ms") -> HTTPResponse:
        {GET}
"""


def load(duration: str) -> str:
    return LOAD.replace("DURATION", duration)


def sent(document: dict[str, Any]) -> int:
    return sum(each["requests"]["sent"] for each in document["workflows"] if each["requests"])


def one_line(ended: Ended, code: int, *parts: str) -> None:
    assert ended.code == code, (ended.code, ended.err)
    lines = [line for line in ended.err.strip().splitlines() if line.strip()]
    assert len(lines) == 1, ended.err
    for part in parts:
        assert part in lines[0], lines[0]


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Generator[Path]:
    """A separate file system, so that filling it affects no other test."""
    folder.mkdir(exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Not a byte is left, not even in a page that a file has begun."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return filler


# Disks.


def test_a_full_disk_of_the_manager_is_said_and_the_job_goes_on_once_there_is_room(
    tmp_path: Path, cluster_target: TargetHandle
) -> None:
    cluster_target.reset()
    with (
        small_disk(tmp_path / "m1", "40m") as disk,
        cluster(tmp_path, cluster_target, workers=1) as dc,
    ):
        running = dc.run(dc.write(load("5s")))
        dc.wait_load(10)
        filler = fill(disk)
        words = ("submit", dc.write(load("1s"), "other.py"), "--to", dc.addresses)
        refused = dc.squall(*words, "--host", cluster_target.url, "--patience", "5s")
        one_line(refused, 3, "the manager cannot store the blob: No space left")
        # The load ends meanwhile, and its end cannot be stored either.
        dc.wait_quiet()
        filler.unlink()
        ended = running.end()
        check_code(ended)
        assert sent(ended.document) == cluster_target.counts()["total"]
        assert not losses(ended.document), ended.document["losses"]
        assert 1 <= dc.nodes["m1"].said().count("No space left") <= 3, dc.nodes["m1"].said()
        again = dc.squall(*words, "--host", cluster_target.url)
        assert again.code == 0, again.err


def test_a_full_disk_of_a_worker_costs_no_record(
    tmp_path: Path, cluster_target: TargetHandle
) -> None:
    cluster_target.reset()
    with (
        small_disk(tmp_path / "w1", "8m") as disk,
        cluster(tmp_path, cluster_target, workers=1) as dc,
    ):
        # The load ends when the disk is full, however long that takes.
        running = dc.run(dc.write(load("300s")))
        dc.wait_load(10)
        filler = fill(disk)
        (job,) = [each["job"] for each in dc.jobs()]
        dc.ask("cancel", job)
        ended = running.end()
        check_code(ended, INTERRUPTED)
        assert sent(ended.document) == cluster_target.counts()["total"]
        said = dc.nodes["w1"].said()
        assert said.count("record_not_stored") == 1 and "free some space" in said, said
        filler.unlink()
        cluster_target.reset()
        again = dc.run(dc.write(load("1s"))).end()
        check_code(again)
        assert sent(again.document) == cluster_target.counts()["total"]


# Logs.


def segments(dc: Cluster) -> list[Path]:
    return sorted((dc.folder / "m1" / "ledger" / "wal").iterdir())


def test_a_log_that_a_crash_tore_is_read_up_to_there_and_a_damaged_one_is_refused(
    tmp_path: Path, cluster_target: TargetHandle
) -> None:
    cluster_target.reset()
    with cluster(tmp_path, cluster_target, workers=1) as dc:
        job = submitted(dc, "1s")
        waited(dc, job, "completed")
        for damage in (unfinished_segment, torn_record):
            dc.kill("m1")
            damage(dc)
            dc.start("m1")
            dc.wait_ready()
            assert [each["job"] for each in dc.jobs()] == [job], damage.__name__
            assert dc.ask("status", job)["state"] == "completed"
        dc.kill("m1")
        damaged = next_segment(dc)
        damaged.touch()
        dc.start("m1")
        process = dc.nodes["m1"].process
        assert process is not None and process.wait(60.0) == 1
        last = dc.nodes["m1"].said().strip().splitlines()[-1]
        assert damaged.name in last and "corruption" in last, last
        damaged.unlink()
        dc.start("m1")
        dc.wait_ready()
        ended = dc.run(dc.write(load("1s"), "other.py")).end()
        check_code(ended)


def next_segment(dc: Cluster) -> Path:
    last = segments(dc)[-1]
    word, _, number = last.stem.partition("_")
    return last.with_name(f"{word}_{int(number) + 1:0{len(number)}}{last.suffix}")


def unfinished_segment(dc: Cluster) -> None:
    """A crash while a segment is made: it gets its name only when its head is durable."""
    following = next_segment(dc)
    following.with_name(f"{following.name}.new").touch()


def torn_record(dc: Cluster) -> None:
    """A crash in the middle of a write."""
    last = segments(dc)[-1]
    data = last.read_bytes().rstrip(b"\0")
    last.write_bytes(data + data[-64:-3])


# Clients.


def submitted(dc: Cluster, duration: str, *words: str) -> str:
    file = dc.write(load(duration))
    ended = dc.squall("submit", file, "--to", dc.addresses, "--host", dc.target.url, *words)
    assert ended.code == 0, ended.err
    return ended.out.split()[-1]


def waited(dc: Cluster, job: str, *states: str, within_s: float = 60.0) -> dict[str, Any]:
    until = time.monotonic() + within_s
    while (view := dc.ask("status", job))["state"] not in states:
        assert time.monotonic() < until, view
        time.sleep(0.1)
    return view


def test_the_same_command_after_a_killed_client_finds_its_job(dc: Cluster) -> None:
    file = dc.write(load("3s"))
    first = dc.run(file, "--key", "killed-client-1")
    dc.wait_load(10)
    first.process.kill()
    first.process.communicate()
    again = dc.run(file, "--key", "killed-client-1").end()
    check_code(again)
    assert "already submitted with this key" in again.err
    assert sent(again.document) == dc.target.counts()["total"]
    assert len([each for each in dc.jobs() if each["key"] == "killed-client-1"]) == 1


def test_a_killed_client_without_a_key_finds_its_job_by_its_journal(dc: Cluster) -> None:
    file = dc.write(load("3s").replace("vus = 2", "vus = 3"))
    first = dc.run(file)
    dc.wait_load(10)
    first.process.kill()
    first.process.communicate()
    again = dc.run(file).end()
    check_code(again)
    assert sent(again.document) == dc.target.counts()["total"]


def test_a_file_that_is_not_there_is_said_before_anyone_is_asked(dc: Cluster) -> None:
    ended = dc.squall("run", "nofile.py", "--to", "127.0.0.1:9", "--host", dc.target.url)
    one_line(ended, 2, "nofile.py", "no such file")


def test_a_job_that_can_never_fit_is_refused_with_the_reason(dc: Cluster) -> None:
    ended = dc.run(dc.write(load("1s").replace("vus = 2", "vus = 1_000_000"))).end()
    assert ended.code == 104, (ended.code, ended.err)
    assert "Load" in ended.err and "more connections than the workers allow" in ended.err, ended.err
    assert dc.target.counts()["total"] == 0
    check_code(dc.run(dc.write(load("1s"))).end())


# Code that never returns.


HOLDS = {
    "a loop": ("while True: pass", "Load.get holds its core process"),
    "a call into C": ('re.match(r"(a+)+$", "a" * 60 + "b")', "does not answer: held by flow.py:"),
}
"""How code keeps its core process; a call that keeps the interpreter's lock is found by the
worker's main process."""


@pytest.mark.parametrize("how", HOLDS)
def test_a_step_that_holds_its_core_for_ever_is_told_and_hides_little(
    dc: Cluster, how: str
) -> None:
    code, told = HOLDS[how]
    text = f"""
import re, time
BEGAN = []

class Load(Workflow):
    vus = 2
    duration = "4s"
    grace = "0s"

    @step()
    async def get(self, url: URL = "/?delay=10ms") -> HTTPResponse:
        answer = await self.client.http.get(url, headers=SENDER)
        BEGAN.append(time.monotonic())
        if time.monotonic() - BEGAN[0] > 1.0:
            {code}
        return answer
"""
    ended = dc.run(dc.write(text)).end()
    assert told in ended.out + ended.err, ended.out + ended.err
    lost = losses(ended.document)
    assert lost and all(told in loss["reason"] for loss in lost)
    assert ended.code == 98 and all(loss["below_target_s"] > 0.0 for loss in lost), lost
    counted, total = sent(ended.document), dc.target.counts()["total"]
    unknown = sum(loss["unknown_requests"] for loss in lost)
    assert counted <= total <= counted + unknown
    assert unknown < 2_000, lost
    check_code(dc.run(dc.write(load("1s"))).end())


def test_the_last_words_of_a_short_workflow_are_shown(dc: Cluster) -> None:
    text = f"""
class Load(Workflow):
    iterations = 2

    @step()
    async def get(self, url: URL = "/") -> HTTPResponse:
        print("all is said and done")
        {GET}
"""
    ended = dc.run(dc.write(text)).end()
    check_code(ended)
    assert (ended.out + ended.err).count("all is said and done") == 2, ended.err
