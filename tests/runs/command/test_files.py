"""The files of a run, `squall report` and `squall compare` as a person uses them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from unittest.mock import patch
from xml.etree import ElementTree as Xml

import pytest

from squall.engine.load import drivers
from tests.lab.target import TargetHandle
from tests.runs.lab.command import GET, CommandLab, Ended

SHOP = f"""
    class Shop(Workflow):
        thresholds = ["pay.p(95) < 10s", "errors < 60%"]

        @step()
        async def home(self, url: URL = "/?delay=1ms") -> HTTPResponse:
            {GET}

        @then()
        async def pay(self, url: URL = "/?status=200:1,503:1&delay=3ms") -> HTTPResponse:
            {GET}

        @check("pay")
        def paid(self, pay: HTTPResponse) -> bool:
            return pay.ok
"""
REPORTER = """
    class Mine:
        def __init__(self, path: str = "mine.txt") -> None:
            self.path = path

        async def connect(self) -> None:
            open(self.path, "x").close()

        async def submit(self, document) -> None:
            open(self.path, "a").write(f"{document['schema']} {os.environ.get('TOKEN', '-')} ")

        async def close(self) -> None:
            open(self.path, "a").write("closed")


    class Broken(Mine):
        async def submit(self, document) -> None:
            raise ConnectionError("the database is down")
"""
FILES = ("--csv", "all", "--junit", "j.xml", "--markdown", "m.md", "--xml", "x.xml")


@pytest.fixture(scope="module")
def shop_run(tmp_path_factory: pytest.TempPathFactory, one_target: TargetHandle) -> Ended:
    """One run with all outputs, shared by several tests."""
    command = CommandLab(tmp_path_factory.mktemp("files"), one_target)
    one_target.reset()
    summary = command.folder / "step.md"
    file = command.write(SHOP)
    words = (file, "--host", one_target.url, "-r", "40/s", "-d", "2s", *FILES, "-o", "html=h.html")
    # However long this machine stands still.
    with patch.object(drivers, "DROP_AFTER_S", 60.0):
        ended = command.load(*words, GITHUB_STEP_SUMMARY=str(summary))
    assert ended.code == 0, ended.err
    return ended


def again(ended: Ended, target: TargetHandle, *words: str) -> Ended:
    return CommandLab(ended.folder, target).squall(*words)


def test_every_file_tells_the_count_of_the_document(shop_run: Ended) -> None:
    folder = shop_run.folder
    pay = shop_run.document["workflows"][0]["steps"][1]
    with open(folder / "all_steps.csv", newline="") as file:
        rows = {row["step"]: row for row in csv.DictReader(file)}
    assert int(rows["pay"]["count"]) == pay["count"] > 0
    with open(folder / "all_windows.csv", newline="") as file:
        windows = [row for row in csv.DictReader(file) if row["step"] == "pay"]
    assert sum(int(row["count"]) for row in windows) == pay["count"]
    with open(folder / "all_errors.csv", newline="") as file:
        (error,) = csv.DictReader(file)
    assert int(error["count"]) == pay["failed"]
    step = Xml.parse(folder / "x.xml").find("workflows/workflow/steps/step[@name='pay']")
    assert step is not None and step.get("count") == str(pay["count"])
    assert f"| pay | {pay['count']} |" in (folder / "m.md").read_text(encoding="utf-8")
    suite = Xml.parse(folder / "j.xml").find("testsuite[@name='Shop']")
    assert suite is not None and suite.get("tests") == "3"
    assert (folder / "step.md").read_bytes() == (folder / "m.md").read_bytes() + b"\n"
    assert "pay" in (folder / "h.html").read_text(encoding="utf-8")


def test_report_prints_the_summary_of_the_run(shop_run: Ended, one_target: TargetHandle) -> None:
    reported = again(shop_run, one_target, "report", "results.json")
    assert (reported.code, reported.err) == (0, "")
    assert reported.out == shop_run.out


def test_report_writes_the_same_files_as_the_run(shop_run: Ended, one_target: TargetHandle) -> None:
    files = ("--csv", "b", "--junit", "b.junit", "--markdown", "b.md", "--xml", "b.xml")
    reported = again(shop_run, one_target, "report", "results.json", *files, "--json", "b.json")
    assert (reported.code, reported.out, reported.err) == (0, "", "")
    folder = shop_run.folder
    pairs = {"b.junit": "j.xml", "b.md": "m.md", "b.xml": "x.xml", "b.json": "results.json"}
    pairs |= {f"b_{name}.csv": f"all_{name}.csv" for name in ("steps", "windows", "errors")}
    for new, old in pairs.items():
        assert (folder / new).read_bytes() == (folder / old).read_bytes(), new


def test_report_of_two_adds_them_up(shop_run: Ended, one_target: TargetHandle) -> None:
    words = ("report", "results.json", "results.json", "--json", "two.json")
    assert again(shop_run, one_target, *words).code == 0
    whole = json.loads((shop_run.folder / "two.json").read_text(encoding="utf-8"))
    one = shop_run.document["workflows"][0]
    two = whole["workflows"][0]
    assert [step["count"] for step in two["steps"]] == [2 * step["count"] for step in one["steps"]]
    # The same values twice: a rank may fall on the neighbouring bucket, not further.
    assert two["steps"][1]["latency_ms"] == pytest.approx(one["steps"][1]["latency_ms"], rel=0.02)
    assert two["steps"][1]["rps"] == pytest.approx(2 * one["steps"][1]["rps"], rel=1e-3)


def test_compare_of_a_short_run_with_itself_judges_nothing(
    shop_run: Ended, one_target: TargetHandle
) -> None:
    compared = again(shop_run, one_target, "compare", "results.json", "--", "results.json")
    assert compared.code == 0
    assert "0 worse, 0 better, 0 no difference, 8 with too few samples" in compared.out


def test_a_reporter_by_flag_and_one_in_the_file_get_the_document(command: CommandLab) -> None:
    command.write(REPORTER, "mine.py")
    file = command.write(SHOP.replace("thresholds", "reporting = Mine()\n        thresholds"))
    text = (command.folder / file).read_text(encoding="utf-8")
    (command.folder / file).write_text("from mine import Mine\n" + text, encoding="utf-8")
    words = ("run", file, "--host", command.target.url, "-i", "2", "--workers", "1", "--exit-zero")
    # In a process: what -e sets belongs to the workflow, not to the command.
    ended = command.process(*words, "-o", "mine.py:Mine=flag.txt", "-e", "TOKEN=abc")
    assert ended.code == 0, ended.err
    assert (command.folder / "flag.txt").read_text() == "squall.results/1 - closed"
    assert (command.folder / "mine.txt").read_text().startswith("squall.results/1")


def test_a_reporter_that_fails_costs_neither_the_others_nor_the_results(
    command: CommandLab,
) -> None:
    command.write(REPORTER, "mine.py")
    file = command.write(SHOP)
    own = ("-o", "mine.py:Broken=b.txt", "-o", "xml=x.xml")
    words = ("run", file, "--host", command.target.url, "-i", "2", "--workers", "1", "-q", *own)
    ended = command.squall(*words)
    assert ended.code == 0, "the run passed: that its output failed changes nothing of it"
    assert ended.without_traceback()
    [failed] = ended.lines
    assert failed.startswith("squall run: -o mine.py:Broken: ConnectionError: the database is down")
    again = failed.partition("; to write it again: squall report ")[2]
    kept = again.removesuffix(" -o mine.py:Broken=...")
    assert json.loads(Path(kept).read_text(encoding="utf-8"))["schema"] == "squall.results/1"
    assert (command.folder / "x.xml").exists()
    assert (command.folder / "b.txt").read_text() == "closed"
    assert "STEPS" in ended.out
    required = (*words, "--require-outputs", "-o", "json=r.json")
    assert command.squall(*required).code == 1
    failing = command.squall(*required, "--threshold", "iterations > 1000")
    assert failing.code == 99, "the code of the run says more"
    assert failing.lines[-1].endswith("squall report r.json -o mine.py:Broken=...")
    written = command.squall("report", "r.json", "-o", "mine.py:Mine=flag.txt")
    assert written.code == 0 and (command.folder / "flag.txt").exists(), written.err
    unwritten = command.squall("report", "r.json", "-o", "mine.py:Broken=b.txt")
    assert unwritten.code == 1, "writing is all that it was asked for"
    assert unwritten.lines[0].endswith("squall report r.json -o mine.py:Broken=...")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--junit", "no/j.xml"), "--junit no/j.xml: there is no directory"),
        (("--csv", "no/a"), "--csv no/a_steps.csv: there is no directory"),
        (("--html", "."), "--html .: is a directory"),
        (("-o", "pdf=x"), "-o pdf=x: there is no output pdf"),
        (("-o", "mine.py:Mine=x"), "mine.py  no such file"),
        (("--json", "a", "--xml", "a"), "--xml a: --json writes the same file"),
    ],
)
def test_an_output_that_cannot_work_is_found_before_the_first_request(
    words: tuple[str, ...], part: str, command: CommandLab
) -> None:
    file = command.write(SHOP)
    ended = command.squall("run", file, "--host", command.target.url, "-i", "2", *words)
    assert ended.code == 2
    assert len(ended.lines) == 1 and part in ended.lines[0]
    assert command.target.counts()["total"] == 0
    assert ended.out == ""


def test_what_is_no_reporter_in_the_file_is_a_mistake_in_the_file(command: CommandLab) -> None:
    file = command.write(SHOP.replace("thresholds", "reporting = 3\n        thresholds"))
    ended = command.squall("run", file, "--host", command.target.url, "-i", "2")
    assert ended.code == 104
    assert "reporting 3 is not a reporter; a reporter has connect, submit, close" in ended.err
    assert command.target.counts()["total"] == 0
