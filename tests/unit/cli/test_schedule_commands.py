"""`squall schedule`: what it writes without a running agent, and one clear line for mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from squall.cli.main import build_parser, main
from squall.cli.shared.run_options import run_options
from squall.cli.store.schedule import name_of, remark, times_text
from squall.cluster.wire.seal.secrets import client_credential
from squall.coordination.scheduler.records import JobRecord
from squall.engine.run_options import RunOptions
from squall.reporting.number_format import moment
from squall.store_mode.schedules.client import ScheduleEntry
from squall.store_mode.schedules.records import (
    ChangeNote,
    RunComparison,
    Schedule,
    ScheduledRun,
    new_progress,
)

SECRET = "a secret of the schedule tests"
HUSH = "never-in-the-file"
SHOP = """
from squall import HTTPResponse, URL, Workflow, step

class Shop(Workflow):
    vus = 1
    duration = "5s"
    host = "http://127.0.0.1:1"

    @step()
    async def home(self, url: URL = "/") -> HTTPResponse:
        return await self.client.http.get(url)
"""


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("TO", "STORE", "STORE_PREFIX", "SECRET_FILE", "CLUSTER_ID", "CLUSTER_SECRET_FILE"):
        monkeypatch.delenv(f"SQUALL_{name}", raising=False)
    monkeypatch.setenv("SQUALL_SECRET", SECRET)
    monkeypatch.setenv("SQUALL_USER", "ann")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


def store(folder: Path) -> tuple[str, str]:
    return "--store", f"sqlite:///{folder}/store.db"


def answered(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line on stderr of a command that was typed wrong."""
    assert main(list(words)) == 2
    said = capsys.readouterr()
    lines = said.err.strip().splitlines()
    assert len(lines) == 1 and said.out == "", said
    return lines[0]


def test_a_schedule_is_added_listed_and_removed_without_an_agent(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = store(folder)
    words = ("schedule", "add", "shop.py", "--cron", "*/15 * * * *", "--compare-to", "last")
    assert main([*words, "--secret", f"TOKEN={HUSH}", "--rate", "5/s", *at]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("schedule shop: */15 * * * *, next ")
    assert "no agent coordinates" in said.err

    (found,) = answered(capsys, "schedule", "list", *at)["schedules"]
    assert (found["name"], found["file"], found["by"]) == ("shop", "shop.py", "ann")
    assert (found["cron"], found["compare_to"], found["catch_up"]) == (
        "*/15 * * * *",
        "last",
        "skip",
    )
    assert found["keep_s"] == 7 * 86_400.0
    assert found["next"][14:16] in ("00", "15", "30", "45")
    assert answered(capsys, "schedule", "history", "shop", *at)["runs"] == []
    assert main(["schedule", "list", *at]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("shop  */15 * * * *  shop.py  ann")
    for file in folder.glob("store.db*"):
        assert HUSH.encode() not in file.read_bytes()

    assert main(["schedule", "remove", "shop", *at]) == 0
    assert capsys.readouterr().out == "removed schedule shop and its history\n"
    assert answered(capsys, "schedule", "list", *at) == {"schedules": []}


def test_a_credential_is_enough_and_names_its_owner(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQUALL_SECRET", client_credential(SECRET, "ci"))
    made = answered(
        capsys, "schedule", "add", "shop.py", "--every", "1h", "--name", "nightly", *store(folder)
    )
    assert (made["name"], made["by"], made["every_s"]) == ("nightly", "ci", 3600.0)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--cron", "61 * * * *"), "cron is '61 * * * *': '61' as minute: "),
        (("--cron", "whenever"), "cron is 'whenever': it needs five fields"),
        (("--cron", "0 3 * * *", "--zone", "Mars/Base"), "zone is 'Mars/Base': "),
        ((), "say when to run: either --cron "),
        (("--cron", "0 3 * * *", "--every", "5m"), "say when to run: either --cron "),
        (("--every", "soon"), "--every "),
        (("--every", "100ms"), "--every 100ms: at least 1s"),
        (("--every", "1h", "--zone", "UTC"), "--zone needs --cron"),
        (("--every", "1h", "--keep", "forever"), "--keep "),
        (("--every", "1h", "--name", "a/b"), "--name 'a/b': "),
        (("--every", "1h", "--compare-to", "first"), "argument --compare-to: "),
    ],
)
def test_what_was_typed_wrong_is_one_line_and_nothing_is_stored(
    words: tuple[str, ...], line: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, "schedule", "add", "shop.py", *words, *store(folder))
    assert said.startswith(f"squall schedule: {line}")
    assert not (folder / "store.db").exists()


def test_a_file_that_cannot_be_run_is_not_scheduled(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = store(folder)
    line = refused(capsys, "schedule", "add", "gone.py", "--every", "1h", *at)
    assert line == "squall schedule: gone.py  no such file"
    assert not (folder / "store.db").exists()
    (folder / "bad.py").write_text("import nowhere_at_all")
    line = refused(capsys, "schedule", "add", "bad.py", "--every", "1h", *at)
    assert line == (
        "squall schedule: bad.py:1  ModuleNotFoundError: No module named 'nowhere_at_all'"
    )
    assert answered(capsys, "schedule", "list", *at) == {"schedules": []}


def test_a_name_twice_and_an_unknown_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = store(folder)
    answered(capsys, "schedule", "add", "shop.py", "--every", "1h", *at)
    again = refused(capsys, "schedule", "add", "shop.py", "--every", "2h", *at)
    assert again == (
        "squall schedule: schedule shop already exists: choose another --name, or remove it "
        "first (squall schedule remove shop)"
    )
    for word in ("remove", "history", "result"):
        line = refused(capsys, "schedule", word, "other", *at)
        assert line == "squall schedule: there is no schedule other; schedules here: shop"
    assert refused(capsys, "schedule", "result", "shop", *at).endswith("has no result yet")


def test_a_store_is_needed_and_never_made_by_a_question(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "--store URL or SQUALL_STORE" in refused(capsys, "schedule", "list")
    assert "no such file" in refused(capsys, "schedule", "list", *store(folder))
    assert not (folder / "store.db").exists()


def test_the_flags_of_a_run_are_understood() -> None:
    words = ("schedule", "add", "f.py", "--every", "1h", "-u", "Shop=5", "-d", "10s", "-e", "A=1")
    options = run_options(build_parser().parse_args(words))
    assert options.profiles["Shop"].vus == 5 and options.profiles[""].duration == 10.0
    assert options.env == {"A": "1"}


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (RunOptions(file="tests/load shop.py"), "load-shop"),
        (RunOptions(url="https://shop.example.com/x"), "shop.example.com"),
        (RunOptions(file="ä.py"), "load"),
    ],
)
def test_a_schedule_is_named_after_its_file(options: RunOptions, name: str) -> None:
    assert name_of(options) == name


@pytest.mark.parametrize(
    ("times", "text"),
    [
        (JobRecord(cron="0 3 * * *"), "0 3 * * *"),
        (JobRecord(cron="0 3 * * *", zone="Europe/Berlin"), "0 3 * * * (Europe/Berlin)"),
        (JobRecord(every=900.0), "every 15m"),
    ],
)
def test_times_are_shown_as_they_were_written(times: JobRecord, text: str) -> None:
    made = Schedule(name="s", id="1", principal="ann", file="f.py", times=times, added_at=0.0)
    assert times_text(ScheduleEntry(made, new_progress(made), 0.0)) == text


def test_a_run_is_remarked_on() -> None:
    worse = ChangeNote(
        step="pay", column="p99", judgement="worse", before=0.1, after=0.123, low=0.1, high=0.3
    )
    compared = RunComparison(to="j-1", text="1 worse, 0 better, 3 no difference", changes=(worse,))
    run = ScheduledRun(slot="1", due=1.0, reason="errors < 1% failed", comparison=compared)
    assert remark(run) == (
        "errors < 1% failed; 1 worse, 0 better, 3 no difference: pay p99 worse +23 %"
    )
    assert remark(ScheduledRun(slot="1", due=1.0)) == ""
    assert moment(1_700_000_000.9) == "2023-11-14T22:13:20Z"
