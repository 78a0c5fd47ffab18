"""What a run prints and writes: streams, colour, the summary and the results document."""

from __future__ import annotations

import errno
import json
import os
import pty
import re
import subprocess
import termios
from importlib.resources import files
from typing import Any
from unittest.mock import patch

import pytest
from jsonschema import Draft202012Validator

from squall.engine.load import drivers
from tests.lab.target import TargetHandle
from tests.runs.lab.command import (
    GET,
    SQUALL,
    CommandLab,
    Ended,
    clean_environment,
    milliseconds,
    sent,
)

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
ESCAPE = "\x1b"


@pytest.fixture(scope="module")
def shop_run(tmp_path_factory: pytest.TempPathFactory, one_target: TargetHandle) -> Ended:
    """One run that several tests share; the target saw what its document says."""
    command = CommandLab(tmp_path_factory.mktemp("shop"), one_target)
    one_target.reset()
    file = command.write(SHOP)
    # However long this machine stands still.
    with patch.object(drivers, "DROP_AFTER_S", 60.0):
        ended = command.load(
            file, "--host", one_target.url, "-r", "40/s", "-d", "2s", "--workers", "2"
        )
    assert ended.code == 0, ended.err
    assert sent(ended.document) == one_target.counts()["total"]
    return ended


def test_results_go_to_stdout_and_progress_to_stderr_without_colour(shop_run: Ended) -> None:
    # A little longer than its plan if the last answer was slow.
    assert re.match(r"flow\.py  Shop  open 40/s  [\d.]+s  run ", shop_run.first_line)
    assert shop_run.lines[0].startswith("flow.py  Shop  open 40/s for 2s  home -> pay")
    assert re.match(r"00:0[12]/00:02  [\d.]+/s of 40  users \d+  failed [\d.]+%", shop_run.lines[1])
    assert ESCAPE not in shop_run.out + shop_run.err
    assert "STEPS" not in shop_run.err and "00:01" not in shop_run.out


def test_the_document_fits_the_schema_in_the_package(shop_run: Ended) -> None:
    schema = json.loads(
        files("squall.reporting").joinpath("schema/results-1.json").read_text(encoding="utf-8")
    )
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(shop_run.document)


def test_the_numbers_of_the_summary_are_those_of_the_document(shop_run: Ended) -> None:
    document = shop_run.document
    workflow = document["workflows"][0]
    rows = {row["name"]: row for row in [*workflow["steps"], workflow["iteration"] | _NAMED]}
    shown = step_table(shop_run.out)
    assert set(shown) == set(rows) == {"home", "pay", "iteration"}
    for name, cells in shown.items():
        row = rows[name]
        assert int(cells["count"]) == row["count"]
        failed = 0.0 if cells["failed"] == "0" else float(cells["failed"].removesuffix(" %"))
        assert failed == pytest.approx(row["failed"] / row["count"] * 100, rel=0.01)
        for column, key in (("p50", "p50"), ("p99", "p99"), ("p99.9", "p999"), ("max", "max")):
            assert milliseconds(cells[column]) == pytest.approx(row["latency_ms"][key], rel=0.006)
    requests = workflow["requests"]
    assert f"HTTP        {requests['sent']} sent, " in shop_run.out
    assert requests["sent"] == requests["answered"]
    planned = workflow["starts"]["planned"]
    assert planned == 80 and f"LOAD        {planned} starts planned, " in shop_run.out
    check = document["checks"][0]
    assert check["passed"] + check["failed"] == rows["pay"]["count"]
    assert document["run"]["id"] in shop_run.first_line
    assert shop_run.first_line.split()[-1] == document["verdict"]["state"]
    last = shop_run.out.rstrip().splitlines()[-1]
    assert float(last.removeprefix("Requests/sec: ")) == pytest.approx(
        requests["answered"] / workflow["measured_s"], rel=0.01
    )


_NAMED = {"name": "iteration"}


def step_table(summary: str) -> dict[str, dict[str, str]]:
    """Rows of the step table by name; a cell is a number and perhaps its unit."""
    lines = summary.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("STEPS"))
    columns = lines[begin].split()[1:]
    found: dict[str, dict[str, str]] = {}
    for line in lines[begin + 1 :]:
        if not re.match(r"  \w+ +\d+ ", line):
            break
        name, *cells = re.findall(r"[\d.]+ (?:us|ms|s|%)(?= |$)|\S+", line)
        found[name] = dict(zip(columns, cells, strict=True))
    return found


def test_columns_picks_the_columns_in_this_order(command: CommandLab) -> None:
    ended = command.load(command.target.url, "-i", "3", "--columns", "max,p50,p99.99")
    assert re.search(r"^STEPS +count +rate +failed +max +p50 +p99\.99$", ended.out, re.MULTILINE)


def test_quiet_is_silent_on_stderr(command: CommandLab) -> None:
    ended = command.load(command.target.url, "-i", "3", "-q")
    assert ended.code == 0
    assert ended.err == ""
    assert "STEPS" in ended.out


def test_every_spaces_the_progress_lines(command: CommandLab) -> None:
    ended = command.load(command.target.url, "-r", "10/s", "-d", "3s", "--every", "1m")
    assert len([line for line in ended.lines if re.match(r"00:0\d/00:03  \d", line)]) == 1


def test_once_prints_every_exchange_and_makes_one_iteration(command: CommandLab) -> None:
    ended = command.load(command.write(SHOP), "--host", command.target.url, "--once")
    assert command.target.counts()["total"] == 2
    assert re.search(r"Shop\.home  GET http://127\.0\.0\.1:\d+/\?delay=1ms", ended.out)
    assert "> GET /?delay=1ms HTTP/1.1" in ended.out
    assert "> Host: 127.0.0.1" in ended.out
    assert "< HTTP/1.1 200 OK" in ended.out
    assert "< hello world" in ended.out
    assert ended.out.index("Shop.home") < ended.out.index("Shop.pay")
    assert ended.document["workflows"][0]["iteration"]["started"] == 1


def test_once_judges_and_shows_no_rates(command: CommandLab) -> None:
    unjudged = ["home.rps > 500", "iterations > 100"]
    judged = ["home.p(95) < 10s", "errors.count < 1"]
    words = [word for text in (*unjudged, *judged) for word in ("--threshold", text)]
    file = command.write(SHOP.replace("status=200:1,503:1&", ""))
    ended = command.load(file, "--host", command.target.url, "--once", *words)
    assert ended.code == 0
    assert [each["expression"] for each in ended.document["thresholds"]][2:] == judged
    assert ended.document["notes"] == ["--once does not judge home.rps > 500, iterations > 100"]
    assert ended.out.splitlines()[-2:] == ["Transfer/sec: -", "Requests/sec: -"]
    assert re.search(r"home +1 +- +0 ", ended.out)


def test_print_and_logging_reach_stderr_with_workflow_and_user(command: CommandLab) -> None:
    text = """
    import logging

    class Talk(Workflow):
        @step()
        async def say(self) -> None:
            print("hello")
            logging.getLogger("shop").warning("careful")
    """
    ended = command.squall("run", command.write(text))
    assert "[Talk 1] hello" in ended.lines
    assert "[Talk 1] WARNING shop: careful" in ended.lines
    assert "hello" not in ended.out


def test_a_reader_that_goes_away_costs_neither_code_nor_document(command: CommandLab) -> None:
    line = f"{SQUALL} run {command.target.url} -i 3 -q --workers 1 --exit-zero --json results.json"
    line += " | head -1; "
    line += 'echo "${PIPESTATUS[0]}"'
    ended = subprocess.run(
        ["bash", "-c", line], cwd=command.folder, capture_output=True, text=True, timeout=60
    )
    assert ended.stdout.splitlines()[-1] == "0"
    assert ended.stderr == ""
    document = json.loads((command.folder / "results.json").read_text(encoding="utf-8"))
    assert document["workflows"][0]["requests"]["sent"] == 3


def test_a_document_that_cannot_be_written_does_not_cost_the_summary(command: CommandLab) -> None:
    ended = command.squall("run", command.target.url, "-i", "3", "-q", "--json", "/dev/full")
    assert ended.code == 0, "the run itself passed"
    assert "--json /dev/full: could not be written" in ended.err
    assert "STEPS" in ended.out


def test_the_document_may_go_to_a_pipe(command: CommandLab) -> None:
    words = ["run", command.target.url, "-i", "3", "-q", "--json", "/dev/stdout"]
    document, length = json.JSONDecoder().raw_decode(out := command.process(*words).out)
    assert document["schema"] == "squall.results/1"
    assert "STEPS" in out[length:]


@pytest.mark.parametrize(
    ("words", "environment", "colour"),
    [([], {}, True), (["--no-color"], {}, False), ([], {"NO_COLOR": "1"}, False)],
)
def test_colour_is_for_terminals_and_can_be_turned_off(
    command: CommandLab, words: list[str], environment: dict[str, str], colour: bool
) -> None:
    run = ["run", command.target.url, "-i", "3", "--workers", "1", "--exit-zero", *words]
    shown = on_a_terminal(command, run, environment)
    assert "STEPS" in shown
    assert (ESCAPE in shown) is colour
    table = shown[shown.index("STEPS") :].splitlines()[:3]
    assert all(len(re.sub(r"\x1b\[\d*m", "", line)) <= 80 for line in table)


def on_a_terminal(command: CommandLab, words: list[str], environment: dict[str, str]) -> str:
    """What a terminal receives, stdout and stderr together."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    process = subprocess.Popen(
        [str(SQUALL), *words],
        cwd=command.folder,
        env=clean_environment({"TERM": "xterm"} | environment),
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    while chunk := _read(ours):
        shown += chunk
    os.close(ours)
    assert process.wait(timeout=60) == 0
    return shown.decode()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError as error:
        # Linux says so when the last writer of a terminal is gone.
        if error.errno == errno.EIO:
            return b""
        raise


def test_tags_seed_and_command_are_in_the_document(command: CommandLab) -> None:
    words = ["-i", "2", "--tag", "branch=main", "--tag", "team=a=b", "--seed", "7"]
    run: dict[str, Any] = command.load(command.target.url, *words).document["run"]
    assert run["tags"] == {"branch": "main", "team": "a=b"}
    assert run["seed"] == 7
    assert run["command"][:3] == ["run", command.target.url, "-i"]


def test_a_reader_that_goes_away_neither_stops_a_run_nor_keeps_it_from_ending(
    command: CommandLab,
) -> None:
    file = command.write(
        """
        class Talks(Workflow):
            @step()
            async def say(self) -> None:
                for _ in range(2000):
                    print("x" * 200)
        """
    )
    process = subprocess.Popen(
        [str(SQUALL), "run", file, "--workers", "1", "--exit-zero", "--json", "results.json"],
        cwd=command.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=clean_environment({}),
    )
    assert process.stderr is not None
    process.stderr.read(100)
    process.stderr.close()
    assert process.wait(60) == 0
    document = json.loads((command.folder / "results.json").read_text(encoding="utf-8"))
    assert document["status"] == "completed"


def test_once_shows_results_of_the_authors_own_protocols(command: CommandLab) -> None:
    text = """
    import asyncio
    from squall import CustomResult, Timed

    class Sale(CustomResult):
        amount: int

    class Own(Workflow):
        @step()
        async def wait(self) -> Timed[str]:
            return await self.timed(asyncio.sleep(0.001, "forty-two"))

        @then()
        async def sale(self) -> Sale:
            return Sale(timings={"total": 0.25}, amount=17)

        @then()
        async def refused(self) -> Sale:
            return Sale(timings={"total": 0.25}, error="sold out", amount=0)

        @then()
        async def broken(self) -> Sale:
            raise OSError("no line")
    """
    ended = command.squall("run", command.write(text), "--once")
    shown = ended.err + ended.out
    parts = ("Own.wait  custom Timed", "forty-two", "{'amount': 17}", "! sold out after 250")
    for part in (*parts, "! OSError: no line"):
        assert part in shown, shown


def test_error_samples_name_the_request_and_timeouts_have_one(command: CommandLab) -> None:
    text = """
    class Slow(Workflow):
        iterations = 1
        on_failure = "continue"

        @step()
        async def failing(self, url: URL = "/orders?status=500") -> HTTPResponse:
            return await self.client.http.post(url, json={})

        @then()
        async def slow(self, url: URL = "/slow?delay=30s") -> HTTPResponse:
            return await self.client.http.put(url, json={}, timeout="50ms")
    """
    ended = command.load(command.write(text), "--host", command.target.url)
    rows = ended.document["workflows"][0]["steps"]
    samples = {row["name"]: row["errors"][0]["sample"]["request"] for row in rows}
    assert samples == {
        "failing": f"POST {command.target.url}/orders?status=500",
        "slow": f"PUT {command.target.url}/slow?delay=30s",
    }
