"""A group of member processes, and the rules that their journals must satisfy."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Self

from squall.coordination.stores.open import make_store
from squall.runtime.real.runtime import RealClock
from tests.lab.machine import factor
from tests.lab.programs import ROOT, program
from tests.services.coordination import programs
from tests.services.coordination.programs.member import scaled

SLACK_S = 6.0
"""For a busy machine: processes start and are scheduled late."""
ENDS_WITHIN_S = 60.0
LOCKED_S = 0.3
"""No write of a member takes so long, if it goes on."""


class Lab:
    """Starts members, strikes them, reads their journals."""

    def __init__(
        self, url: str, prefix: str, folder: Path, members: list[str], scale: float = 1.0
    ) -> None:
        scale = max(scale, factor())
        self.timing = scaled(scale)
        self.failover_s = self.timing.failover + SLACK_S * scale
        self.death_s = self.timing.dead_after + self.failover_s
        self.patience_s = 60.0 * scale
        """For lines that no timing of the members bounds."""
        self.scale = scale
        self.url = url
        self.urls: dict[str, str] = {}
        """Of members that reach the store by a way of their own."""
        self.watched = False
        """Whether members note until when they led, and each time that they stand."""
        self.holds = ""
        """`aware` or `unaware`: whether a member that was held between a decision and its write
        can know by its clock how long it was."""
        self.profile = ""
        """`default`: the timing of members that are given none."""
        self.cold = False
        """Whether members observe for a while before they elect."""
        self.quiet = False
        """Whether members send no signals."""
        self.prefix = prefix
        self.folder = folder
        self.members = members
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, member: str, *, offset: float = 0.0) -> None:
        self.launch(
            "member",
            member,
            others=",".join(each for each in self.members if each != member),
            offset=str(offset),
            watched="yes" if self.watched else "",
            holds=self.holds,
            profile=self.profile,
            cold="yes" if self.cold else "",
            quiet="yes" if self.quiet else "",
        )

    def launch(self, kind: str, member: str, **options: str) -> None:
        """A member of the kind that one of `programs` is; `options` are those of its kind."""
        whole = {
            "url": self.urls.get(member, self.url),
            "prefix": self.prefix,
            "member": member,
            "journal": str(self.folder / f"{member}.jsonl"),
            "scale": str(self.scale),
            **options,
        }
        command = program(f"{programs.__name__}.{kind}", json.dumps(whole))
        with (self.folder / f"{member}.err").open("ab") as errors:
            self.processes[member] = subprocess.Popen(
                command, stderr=errors, stdout=errors, cwd=ROOT
            )

    def start_all(self) -> None:
        for member in self.members:
            self.start(member)
        self.until(
            lambda: len(self.lines("started")) == len(self.members),
            30.0 * self.scale,
            "all have started",
        )

    def kill(self, member: str) -> None:
        process = self.processes.pop(member)
        process.kill()
        process.wait()

    def pause(self, member: str) -> None:
        """Not in the middle of a write to a SQLite file: that would block all members."""
        process = self.processes[member]
        process.send_signal(signal.SIGSTOP)
        while self._is_locked():
            process.send_signal(signal.SIGCONT)
            time.sleep(0.01)
            process.send_signal(signal.SIGSTOP)

    def _is_locked(self) -> bool:
        """For so long that no other member is still writing."""
        if not self.url.startswith("sqlite:///"):
            return False
        path = self.url.removeprefix("sqlite:///")
        with closing(sqlite3.connect(path, timeout=LOCKED_S, isolation_level=None)) as db:
            try:
                db.execute("BEGIN IMMEDIATE")
                db.execute("ROLLBACK")
            except sqlite3.OperationalError:
                return True
        return False

    def resume(self, member: str) -> None:
        self.processes[member].send_signal(signal.SIGCONT)

    def close(self) -> list[int]:
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        codes: list[int] = []
        for process in self.processes.values():
            try:
                codes.append(process.wait(ENDS_WITHIN_S))
            except subprocess.TimeoutExpired:
                process.kill()
                codes.append(process.wait())
        return codes

    # Without blocking this process, which may serve S3.

    async def __aenter__(self) -> Self:
        self.folder.mkdir()
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.close)

    async def told(self, what: str, count: int = 1) -> list[dict[str, Any]]:
        """The lines of a kind, once there are so many."""
        await asyncio.to_thread(
            self.until,
            lambda: len(self.lines(what)) >= count,
            self.patience_s,
            f"{count} times {what!r}",
        )
        return self.lines(what)

    # What they wrote.

    def lines(self, *what: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for path in self.folder.glob("*.jsonl"):
            # The last line may be half written.
            for line in path.read_bytes().split(b"\n")[:-1]:
                record = json.loads(line)
                if not what or record["what"] in what:
                    found.append(record)
        return sorted(found, key=lambda record: record["at"])

    def leader(self) -> str:
        """The member that acted last."""
        return self.lines("acts")[-1]["member"]

    def until(self, condition: Callable[[], object], within_s: float, what: str) -> float:
        begun = time.monotonic()
        while not condition():
            if time.monotonic() - begun > within_s:
                errors = "".join(
                    path.read_text()[-2000:] for path in sorted(self.folder.glob("*.err"))
                )
                raise AssertionError(f"not within {within_s:.1f} s: {what}\n{errors}")
            time.sleep(0.05)
        return time.monotonic() - begun

    def until_acts(self, since: float, *, by: list[str] | None = None, within_s: float) -> float:
        return self.until(
            lambda: any(
                line["at"] > since and (by is None or line["member"] in by)
                for line in self.lines("acts")
            ),
            within_s,
            f"somebody of {by or 'all'} acts",
        )

    def until_written(self, since: float, by: list[str]) -> None:
        """Who acts has not yet written, and may be stopped before it has."""
        self.until(
            lambda: any(
                line["at"] > since and line["member"] in by for line in self.lines("wrote")
            ),
            2 * self.failover_s,
            f"somebody of {by} has written",
        )

    def until_acked(self, since: float) -> None:
        self.until(
            lambda: any(line["at"] > since for line in self.lines("acked")),
            20.0 * self.scale,
            "a signal is acknowledged",
        )

    async def check_written(self) -> list[int]:
        """What leaders wrote stands in the store by epoch; returns the epochs."""
        store = make_store(self.url, RealClock(), random.Random(), prefix=self.prefix)
        epochs: list[int] = []
        cursor = ""
        try:
            while items := await store.read("journal", after=cursor, limit=1000):
                epochs += [int(item.value) for item in items]
                cursor = items[-1].cursor
        finally:
            await store.close()
        assert epochs == sorted(epochs), f"effects of epochs {epochs}"
        return epochs

    def check(self) -> None:
        """The promises, over the whole time."""
        epoch, holder = 0, ""
        for line in self.lines("acts"):
            assert line["epoch"] >= epoch, f"{line} after epoch {epoch} of {holder}"
            if line["epoch"] > epoch:
                epoch, holder = line["epoch"], line["boot"]
            assert line["boot"] == holder, f"{line}: epoch {epoch} belongs to {holder}"
        # In this order: members may still run, and acknowledge what they handled.
        acked = {line["text"] for line in self.lines("acked")}
        handled = {line["text"] for line in self.lines("handled")}
        assert acked <= handled
        twice: set[tuple[str, str]] = set()
        for line in self.lines("handled"):
            key = (line["boot"], line["text"])
            assert key not in twice, f"{line} again"
            twice.add(key)
        # A leader that loses the lead between reporting a death and noting it leaves it to the
        # next one, under the same id; no leader reports one twice.
        deaths = [(line["boot"], line["death"]) for line in self.lines("dead")]
        assert len(deaths) == len(set(deaths)), deaths
