"""Outputs are checked before a run and delivered one by one after it; results are never lost."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from squall.api.errors import UsageError
from squall.api.reporting import RunReporter, is_reporter
from squall.engine.run_options import RunOptions
from squall.reporting.document.build import build_document
from squall.reporting.outputs.blocking_calls import in_thread
from squall.reporting.outputs.delivery import Output, PreparedOutput, deliver, parse_output, prepare
from squall.reporting.outputs.output_error import OutputError
from squall.reporting.outputs.user_reporters import load_reporter, reporters_of_file
from squall.stats.manifest import FileManifest, WorkflowManifest

OWN = """
from dataclasses import dataclass
import msgspec
from squall import Reporter

class Config(msgspec.Struct):
    url: str
    batch: int = 10
    verify: bool = True

@dataclass
class Place:
    name: str
    port: int = 1

class Influx(Reporter):
    def __init__(self, config: Config) -> None:
        self.config = config
    async def submit(self, document):
        self.document = document

class Plain:
    def __init__(self, target: str) -> None:
        self.target = target
    async def connect(self): pass
    async def submit(self, document): pass
    async def close(self): pass

class Data(Plain):
    def __init__(self, place: Place) -> None:
        self.place = place

class Bare(Reporter):
    async def submit(self, document): pass

class NoReporter:
    async def submit(self, document): pass

number = 3
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


@pytest.fixture
def document(make_outcome: Any) -> dict[str, Any]:
    return build_document(make_outcome())


class Recording:
    """Records the calls; raises where the test says so."""

    def __init__(self, raises_in: str = "", error: Exception | None = None) -> None:
        self.calls: list[str] = []
        self._raises_in = raises_in
        self._error = error or OSError("down")

    def _note(self, name: str) -> None:
        self.calls.append(name)
        if name == self._raises_in:
            raise self._error

    async def connect(self) -> None:
        self._note("connect")

    async def submit(self, document: dict[str, Any]) -> None:
        self._note("submit")

    async def close(self) -> None:
        self._note("close")


def all_kinds(folder: Path) -> list[Output]:
    kinds = ("json", "csv", "junit", "markdown", "xml")
    return [parse_output(f"{kind}={folder / kind}") for kind in kinds]


def test_every_file_is_written_whole(folder: Path, document: dict[str, Any]) -> None:
    assert deliver(document, prepare(all_kinds(folder))) == []
    names = {path.name for path in folder.iterdir()} - {"own.py"}
    csv = {f"csv_{table}.csv" for table in ("steps", "windows", "errors")}
    assert names == {"json", "junit", "markdown", "xml"} | csv
    assert json.loads((folder / "json").read_text())["schema"] == "squall.results/1"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("json", "write KIND=TARGET"),
        ("=x", "write KIND=TARGET"),
        ("json=", "write a target after the =, as results.json"),
        ("jsn=x", "there is no output jsn; known: json, csv"),
    ],
)
def test_an_output_that_is_none_is_refused(text: str, part: str) -> None:
    with pytest.raises(UsageError, match=part):
        parse_output(text)


@pytest.mark.parametrize("kind", ["json", "csv", "junit", "markdown", "xml", "html"])
def test_a_place_that_cannot_be_written_is_found_before_the_run(kind: str) -> None:
    with pytest.raises(UsageError, match=f"^-o {kind} no/such/file.*there is no directory"):
        prepare([parse_output(f"{kind}=no/such/file")])


def test_one_of_the_three_csv_files_that_is_a_folder_is_found_too(folder: Path) -> None:
    (folder / "a_windows.csv").mkdir()
    with pytest.raises(UsageError, match=r"a_windows\.csv: is a directory"):
        prepare([Output("csv", "a", "--csv")])


def test_two_outputs_into_one_file_are_refused(folder: Path) -> None:
    outputs = [Output("json", "r", "--json"), Output("xml", str(folder / "r"), "--xml")]
    with pytest.raises(UsageError, match="--json writes the same file"):
        prepare(outputs)


def test_a_reporter_is_connected_given_the_document_and_closed(document: dict[str, Any]) -> None:
    recording = Recording()
    assert deliver(document, [PreparedOutput("-o x", recording)]) == []
    assert recording.calls == ["connect", "submit", "close"]


@pytest.mark.parametrize(
    ("where", "calls"),
    [
        ("connect", ["connect", "close"]),
        ("submit", ["connect", "submit", "close"]),
        ("close", ["connect", "submit", "close"]),
    ],
)
def test_one_that_fails_costs_no_other_and_the_document_is_kept(
    where: str, calls: list[str], folder: Path, document: dict[str, Any]
) -> None:
    bad, good = Recording(where), Recording()
    lines = deliver(document, [PreparedOutput("-o bad", bad), PreparedOutput("-o good", good)])
    assert bad.calls == calls
    assert good.calls == ["connect", "submit", "close"]
    kept = folder / "squall-results-01J9Z4.json"
    again = f"to write it again: squall report {kept} -o bad=..."
    assert lines == [f"-o bad: OSError: down; {again}"]
    assert json.loads(kept.read_text())["run"]["id"] == "01J9Z4"


def test_the_first_error_is_reported_and_an_exit_is_no_exit(document: dict[str, Any]) -> None:
    class Leaving(Recording):
        async def submit(self, document: dict[str, Any]) -> None:
            raise SystemExit(3)

        async def close(self) -> None:
            raise OSError("closed already")

    good = Recording()
    [line] = deliver(
        document, [PreparedOutput("-o exit", Leaving()), PreparedOutput("-o good", good)]
    )
    assert line.startswith("-o exit: SystemExit: 3; to write it again: ")
    assert good.calls == ["connect", "submit", "close"]


def test_with_a_written_document_no_second_one_is_made(
    folder: Path, document: dict[str, Any]
) -> None:
    prepared = [
        *prepare([Output("json", "r.json", "--json")]),
        PreparedOutput("-o bad", Recording("submit")),
    ]
    [line] = deliver(document, prepared)
    assert line.endswith("; to write it again: squall report r.json -o bad=...")
    assert not list(folder.glob("squall-results-*"))


def test_a_disk_that_fills_up_during_the_run_costs_one_file(
    folder: Path, document: dict[str, Any]
) -> None:
    (folder / "gone").mkdir()
    prepared = prepare([Output("json", "gone/r.json", "--json"), Output("xml", "r.xml", "--xml")])
    (folder / "gone").rmdir()
    [line] = deliver(document, prepared)
    assert line.startswith("--json gone/r.json: could not be written")
    kept = folder / "squall-results-01J9Z4.json"
    assert line.endswith(f"; to write it again: squall report {kept} --json ...")
    assert (folder / "r.xml").exists()
    assert (folder / "squall-results-01J9Z4.json").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_where_nothing_may_be_written_here_the_document_goes_elsewhere(
    folder: Path, document: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    monkeypatch.chdir(closed)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(elsewhere))
    [line] = deliver(document, [PreparedOutput("reporting Own", Recording("submit"))])
    assert line.endswith(f"; the results are in {elsewhere}/squall-results-01J9Z4.json")


def test_markdown_is_appended_to_the_step_summary(
    folder: Path, document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "step.md").write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(folder / "step.md"))
    assert deliver(document, prepare([Output("markdown", "r.md", "--markdown")])) == []
    text = (folder / "step.md").read_text()
    assert text.startswith("before\n**")
    assert (folder / "r.md").read_text() in text


def test_a_class_of_ones_own_gets_its_typed_configuration() -> None:
    made: Any = load_reporter("own.py:Influx", "url=http://db:8086,batch=5,verify=false").made
    assert (made.config.url, made.config.batch, made.config.verify) == ("http://db:8086", 5, False)
    short: Any = load_reporter("own.py:Influx", "http://db:8086?a=1").made
    assert short.config.url == "http://db:8086?a=1"
    plain: Any = load_reporter("own.py:Plain", "anything=at,all").made
    assert plain.target == "anything=at,all"
    data: Any = load_reporter("own.py:Data", "here,port=7").made
    assert (data.place.name, data.place.port) == ("here", 7)
    assert is_reporter(load_reporter("own.py:Bare", "").made)


def test_a_module_beside_the_command_can_be_named(folder: Path) -> None:
    (folder / "my_module_of_reports.py").write_text(OWN)
    try:
        assert is_reporter(load_reporter("my_module_of_reports:Plain", "x").made)
    finally:
        del sys.modules["my_module_of_reports"]
    assert str(folder) not in sys.path


@pytest.mark.parametrize(
    ("where", "target", "part"),
    [
        ("own.py:Missing", "", "own.py has no class Missing"),
        ("own.py:number", "", "own.py has no class number"),
        ("own.py:NoReporter", "", "lacks connect, close"),
        ("own.py:Influx", "", "cannot be created: Object missing required field `url`"),
        ("own.py:Influx", "u,batch=many", "cannot be created: Expected `int`"),
        ("own.py:Influx", "u,btch=3", "btch=...: write NAME=VALUE; names are url, batch"),
        ("own.py:Bare", "x", "takes no configuration"),
        ("none.py:X", "", "no such file"),
        ("no_such_module:X", "", "cannot be imported"),
        (":X", "", "write module:Class"),
    ],
)
def test_a_class_that_cannot_be_used_is_one_line(where: str, target: str, part: str) -> None:
    with pytest.raises(UsageError, match=part) as caught:
        load_reporter(where, target)
    assert "\n" not in str(caught.value)


def test_reporters_in_the_file_are_found_once_with_the_environment_of_the_run(
    folder: Path,
) -> None:
    (folder / "flow.py").write_text(
        OWN
        + """
from squall import Workflow, env
shared = Plain(env("PLACE"))
class A(Workflow):
    reporting = shared
class B(Workflow):
    reporting = [shared, Bare()]
class C(Workflow):
    reporting = Plain("not asked for")
"""
    )
    manifest = FileManifest(
        path="flow.py",
        workflows=[WorkflowManifest(name=name, reporting=True) for name in ("A", "B")],
    )
    options = RunOptions(file="flow.py", env={"PLACE": "here"})
    found, failures = reporters_of_file(manifest, options)
    assert failures == []
    reporters: list[Any] = [each.reporter for each in found]
    assert [type(each).__name__ for each in reporters] == ["Plain", "Bare"]
    assert reporters[0].target == "here"
    assert "PLACE" not in os.environ and "SQUALL_LOADING" not in os.environ


def test_a_file_that_fails_to_load_again_is_a_line_and_no_traceback(folder: Path) -> None:
    (folder / "flow.py").write_text("raise RuntimeError('second time')")
    manifest = FileManifest(path="flow.py", workflows=[WorkflowManifest(name="A", reporting=True)])
    found, failures = reporters_of_file(manifest, RunOptions(file="flow.py"))
    assert found == []
    assert failures == ["reporting: flow.py:1  RuntimeError: second time"]


def test_anything_with_the_three_methods_is_a_reporter() -> None:
    assert is_reporter(Recording()) and isinstance(Recording(), RunReporter)
    assert not is_reporter(Recording) and not is_reporter(3)


class Hanging(Recording):
    """Like a server that takes a connection and never answers."""

    timeout_s = 0.2

    async def connect(self) -> None:
        self._note("connect")
        await asyncio.sleep(3600.0)

    async def close(self) -> None:
        self._note("close")
        await asyncio.sleep(3600.0)


def test_one_that_hangs_is_given_up_after_its_own_limit(
    document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("squall.reporting.outputs.delivery._CLOSES_WITHIN_S", 0.1)
    hanging, good = Hanging(), Recording()
    [line] = deliver(
        document, [PreparedOutput("-o hanging", hanging), PreparedOutput("-o good", good)]
    )
    assert line.startswith("-o hanging: took longer than 0.2 s; ")
    assert hanging.calls == ["connect", "close"]
    assert good.calls == ["connect", "submit", "close"]


def test_all_that_are_no_files_get_the_document_at_the_same_time(document: dict[str, Any]) -> None:
    class Meeting(Recording):
        """Ends when all of them have begun."""

        begun: list[Meeting] = []
        all_begun = asyncio.Event()

        async def submit(self, document: dict[str, Any]) -> None:
            self.begun.append(self)
            if len(self.begun) == 3:
                self.all_begun.set()
            await self.all_begun.wait()

    outputs = [PreparedOutput(f"-o {number}", Meeting()) for number in range(3)]
    assert deliver(document, outputs) == []


def test_a_failure_in_words_is_shown_without_its_type_and_a_long_one_is_cut(
    document: dict[str, Any],
) -> None:
    refused = Recording("submit", OutputError("the tables are of tomorrow"))
    endless = Recording("connect", OSError("<html> " * 1000))
    prepared = [PreparedOutput("-o a", refused), PreparedOutput("-o b", endless)]
    first, second = deliver(document, prepared, saved="r.json")
    assert first.startswith("-o a: the tables are of tomorrow; ")
    assert second.startswith("-o b: OSError: <html>") and len(second) < 500


def test_a_call_that_blocks_is_given_up_with_its_thread() -> None:
    let_go = threading.Event()

    async def wait() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await in_thread(let_go.wait)
        assert await in_thread(lambda: 3) == 3
        with pytest.raises(OSError, match="down"):
            await in_thread(_raise, OSError("down"))

    asyncio.run(wait())
    let_go.set()


def _raise(error: Exception) -> None:
    raise error
