"""A run that is not what it claims to be is not green: verdict, exit code and the line that says
why."""

from __future__ import annotations

import asyncio
import json

import pytest

from squall.engine.run.local_run import run_local
from squall.engine.run_options import RunOptions
from tests.runs.lab.command import GET, CommandLab, Ended
from tests.runs.lab.in_process import in_process

SHOP = f"""
class Shop(Workflow):
    vus = 2
    iterations = 20

    @step()
    async def home(self, url: URL = "/") -> HTTPResponse:
        {GET}
"""
FEW_LOG_INS = f"""
class Shop(Workflow):
    vus = 5
    duration = "300ms"
    think = "10ms"

    @action(at="start")
    async def login(self, url: URL = "/?status=401") -> None:
        if self.vu.id > 1:
            (await self.client.http.get(url)).raise_for_status()

    @step()
    async def home(self, url: URL = "/") -> HTTPResponse:
        {GET}
"""
JOURNEY = f"""
class Shop(Workflow):
    iterations = 10

    @step()
    async def search(self, url: URL = "/") -> HTTPResponse:
        {GET}

    @then()
    async def item(self, search: HTTPResponse, url: URL = "/") -> HTTPResponse:
        search.jsonn()
        {GET}

    @then()
    async def pay(self, url: URL = "/") -> HTTPResponse:
        {GET}

    @check("search")
    def found(self, search: HTTPResponse) -> bool:
        return search.ok

    @check("item")
    def has_price(self, item: HTTPResponse) -> bool:
        return item.ok

    @check("pay")
    def is_paid(self, pay: HTTPResponse) -> bool:
        return pay.ok
"""


def run(command: CommandLab, text: str, *words: str) -> Ended:
    return command.load(command.write(text), "--host", command.target.url, *words)


def test_iterations_without_a_duration_run_to_their_end(command: CommandLab) -> None:
    ended = run(command, SHOP)
    assert ended.code == 0
    assert ended.document["verdict"]["state"] == "VALID"
    assert "20 iterations by 2 users, at most 24h" in ended.err
    assert command.target.counts()["total"] == 20


def test_iterations_that_a_duration_cuts_short_are_invalid(command: CommandLab) -> None:
    ended = run(command, SHOP.replace('"/"', '"/?delay=100ms"'), "-i", "1000", "-d", "500ms")
    made = ended.document["workflows"][0]["iteration"]["count"]
    assert ended.code == 98
    assert f"INVALID  Shop made {made} of 1000 iterations: its duration of 0.5 s" in ended.out


def test_a_run_that_was_stopped_is_not_blamed_for_missing_iterations(command: CommandLab) -> None:
    ended = run(command, SHOP, "-i", "1000k", "--threshold", "iterations < 5, abort")
    assert ended.code == 99
    assert ended.document["verdict"]["state"] == "VALID"


@pytest.mark.parametrize("workers", ["1", "2"])
def test_users_that_do_not_start_are_invalid_and_counted_once(
    command: CommandLab, workers: str
) -> None:
    ended = run(command, FEW_LOG_INS, "--workers", workers)
    assert ended.code == 98
    reason = "4 of 5 users of Shop did not start: 401 Unauthorized"
    assert ended.document["verdict"]["reasons"] == [reason]
    assert f"INVALID  {reason}" in ended.out


def test_a_feed_without_rows_is_said_once(command: CommandLab) -> None:
    (command.folder / "users.csv").write_text("name\nann\nbob\neve\nzoe\n", encoding="utf-8")
    text = SHOP.replace("iterations = 20", 'duration = "1m"').replace(
        "    @step", '    user = Feed("users.csv", per="iteration", take="once")\n\n    @step'
    )
    ended = run(command, text, "--workers", "2")
    assert ended.document["verdict"]["reasons"] == ["Shop ended early: no rows left in users.csv"]


def test_checks_that_were_never_made_fail_their_threshold(command: CommandLab) -> None:
    ended = run(command, JOURNEY, "--threshold", "checks == 100%", "--threshold", "errors < 99%")
    assert ended.code == 99
    result = ended.document["thresholds"][0]
    assert (result["passed"], result["value"]) == (False, None)
    assert result["note"] == "no samples of has_price, is_paid"
    assert "x   checks == 100%               no samples of has_price, is_paid" in ended.out
    assert "Shop: pay never ran" in ended.document["notes"]
    assert "Shop: pay never ran" in ended.out


def test_a_check_of_a_step_that_was_not_drawn_does_not_fail(command: CommandLab) -> None:
    text = f"""
    class Shop(Workflow):
        iterations = 10

        @step(weight=1000000)
        async def often(self, url: URL = "/") -> HTTPResponse:
            {GET}

        @step(weight=1)
        async def rarely(self, url: URL = "/") -> HTTPResponse:
            {GET}

        @check("often")
        def one(self, often: HTTPResponse) -> bool:
            return often.ok

        @check("rarely")
        def two(self, rarely: HTTPResponse) -> bool:
            return rarely.ok
    """
    ended = run(command, text, "--threshold", "checks == 100%", "--seed", "1")
    assert ended.code == 0
    assert ended.document["notes"] == ["Shop: rarely never ran"]


def test_a_step_that_always_raises_fails_the_run_and_is_named_first(command: CommandLab) -> None:
    ended = run(command, JOURNEY)
    said = "item raised in all 10 executions: AttributeError: 'HTTPResponse' object has no "
    assert ended.code == 99
    assert ended.out.splitlines()[1].startswith(f"RAISED  {said}")
    failed = [each for each in ended.document["thresholds"] if not each["passed"]]
    assert [(each["expression"], each["row"]) for each in failed] == [
        ("item.errors < 100%", "item")
    ]
    again = command.squall("report", "results.json")
    assert again.out.splitlines()[1] == ended.out.splitlines()[1]


def test_a_threshold_on_errors_of_its_own_decides_instead(command: CommandLab) -> None:
    ended = run(command, JOURNEY, "--threshold", "errors < 80%")
    assert ended.code == 0
    assert ended.out.splitlines()[1].startswith("RAISED  item raised in all 10 executions")


HOOKS = f"""
class Shop(Workflow):
    iterations = 6

    @step()
    async def home(self, url: URL = "/") -> HTTPResponse:
        {GET}

    @check("home")
    def fine(self, home: HTTPResponse) -> bool:
        assert CHECK, "no"
        return home.nope if CHECK == 2 else True

    @metric("home")
    def size(self, home: HTTPResponse) -> float | None:
        return home.nope if METRIC or self.vu.iteration == 2 else None

    @action(at="end")
    async def bye(self) -> None:
        if END:
            raise ValueError("no")
"""


@pytest.mark.parametrize(
    ("check", "metric", "end", "said"),
    [
        (2, 0, 0, "fine raised in all 6 executions: AttributeError: "),
        (0, 1, 0, "size raised in all 6 executions: AttributeError: "),
        (1, 0, 1, "bye raised in its only execution: ValueError: no at flow.py:21 in bye"),
        (1, 0, 0, ""),
        # A failed assertion is a failed check, which fails no run.
        (0, 0, 0, ""),
    ],
)
def test_a_hook_that_always_raises_fails_the_run_as_a_step_does(
    command: CommandLab, check: int, metric: int, end: int, said: str
) -> None:
    text = HOOKS.replace("CHECK", str(check)).replace("METRIC", str(metric))
    text = text.replace("END", str(end))
    ended = run(command, text)
    assert ended.code == (99 if said else 0)
    failed = [each["expression"] for each in ended.document["thresholds"] if not each["passed"]]
    assert failed == ([f"{said.split()[0]}.errors < 100%"] if said else [])
    lines = [line for line in ended.out.splitlines() if line.startswith("RAISED")]
    assert len(lines) == bool(said)
    if said:
        assert ended.out.splitlines()[1].startswith(f"RAISED  {said}")
        again = command.squall("report", "results.json")
        assert again.out.splitlines()[1] == ended.out.splitlines()[1]
        # `errors` counts executions of steps.
        assert run(command, text, "--threshold", "errors < 1%").code == 99
    if said.startswith("fine"):
        assert run(command, text, "--threshold", "checks >= 0%").code == 0


HAND_OVER = f"""
class Prepare(Workflow):
    @step()
    async def tenant(self) -> None: ...

    @state("Shop")
    def tenant_id(self) -> Provide[int]:
        return GIVEN


@depends("Prepare")
class Shop(Workflow):
    iterations = 6

    @step()
    async def home(self, url: URL = "/", tenant_id: int = 0) -> HTTPResponse:
        {GET}

    @state("Later")
    def last(self) -> Provide[int]:
        return PROVIDED


@depends("Shop")
class Later(Workflow):
    iterations = 1

    @state("Shop")
    def received(self, last: int = 5) -> Use[int]:
        return last

    @step()
    async def end(self, url: URL = "/") -> HTTPResponse:
        assert self.received()
        {GET}
"""


@pytest.mark.parametrize(
    ("given", "provided", "said"),
    [
        ("1", "1 / 0", "Shop.last raised in all 2 executions: ZeroDivisionError: "),
        ("1 / 0", "1", "Prepare.tenant_id raised in its only execution: ZeroDivisionError: "),
        # Too large to hand over.
        ("1", '"x" * 9_000_000', "Shop.last raised in all 2 executions: HandOverTooLarge: "),
        ("1", "1", ""),
    ],
)
def test_a_provider_that_always_raises_fails_the_run(
    command: CommandLab, given: str, provided: str, said: str
) -> None:
    text = HAND_OVER.replace("GIVEN", given).replace("PROVIDED", provided)
    ended = run(command, text, "--workers", "2", "-u", "Shop=2")
    assert ended.code == (99 if said else 0)
    lines = [line for line in ended.out.splitlines() if line.startswith("RAISED")]
    assert [line.startswith(f"RAISED  {said}") for line in lines] == [True] * bool(said)


def test_a_failing_action_fails_the_run_only_if_it_always_does(command: CommandLab) -> None:
    text = f"""
    class Shop(Workflow):
        iterations = 10

        @step()
        async def prepare(self) -> None:
            if self.vu.iteration > LIMIT:
                raise ValueError("no")

        @then()
        async def home(self, url: URL = "/") -> HTTPResponse:
            {GET}
    """
    assert run(command, text.replace("LIMIT", "0")).code == 99
    assert run(command, text.replace("LIMIT", "8")).code == 0


def test_statuses_add_up_to_the_answers(command: CommandLab) -> None:
    text = f"""
    class Shop(Workflow):
        iterations = 5

        @action(at="start")
        async def login(self, url: URL = "/?status=201") -> None:
            {GET}

        @step()
        async def home(self, url: URL = "/") -> HTTPResponse:
            await self.client.http.get("/?status=404")
            {GET}

        @then()
        async def item(self, url: URL = "/?status=202") -> HTTPResponse:
            response = await self.client.http.get(url)
            assert self.vu.iteration > 3
            return response
    """
    ended = run(command, text)
    requests = ended.document["workflows"][0]["requests"]
    assert requests["statuses"] == {"200": 5, "201": 1, "202": 5, "404": 5}
    assert sum(requests["statuses"].values()) == requests["answered"] == requests["sent"]
    assert requests["failed"] == 0
    assert "200: 5  201: 1  202: 5  404: 5" in ended.out


def test_statuses_of_steps_include_those_of_executions_that_raised(command: CommandLab) -> None:
    text = f"""
    class Shop(Workflow):
        iterations = 6

        @step(expect=[200, 404])
        async def home(self, url: URL = "/?status=404") -> HTTPResponse:
            response = await self.client.http.get(url)
            if self.vu.iteration % 2:
                raise KeyError("id")
            return response

        @step()
        async def odd(self, url: URL = "/") -> HTTPResponse:
            return (await self.client.http.get(url)).text

        @step()
        async def before(self, url: URL = "/") -> HTTPResponse:
            assert self.vu.iteration > 3
            {GET}
    """
    ended = run(command, text)
    workflow = ended.document["workflows"][0]
    steps = {each["name"]: each["statuses"] for each in workflow["steps"]}
    assert steps == {"home": {"404": 6}, "odd": {"200": 6}, "before": {"200": 3}}
    assert workflow["requests"]["statuses"] == {"200": 9, "404": 6}
    assert command.squall("report", "results.json", "--json", "again.json").code == 0
    again = json.loads((command.folder / "again.json").read_text())["workflows"][0]
    assert {each["name"]: each["statuses"] for each in again["steps"]} == steps


def test_failed_requests_are_those_without_an_answer_everywhere(command: CommandLab) -> None:
    text = f"""
    class Shop(Workflow):
        iterations = 4

        @step()
        async def home(self, url: URL = "/?status=500") -> HTTPResponse:
            {GET}

        @then()
        async def gone(self) -> HTTPResponse:
            return await self.client.http.get("http://127.0.0.1:1/")
    """
    ended = run(command, text)
    requests = ended.document["workflows"][0]["requests"]
    assert (requests["answered"], requests["failed"]) == (4, 4)
    assert "4 sent, 4 failed, " in ended.out


@pytest.mark.parametrize("words", [["-q"], ["--ui", "none"], ["--ui", "ci"]])
def test_warnings_are_on_stderr_and_in_the_notes(command: CommandLab, words: list[str]) -> None:
    ended = run(command, SHOP + '    tresholds = ["errors < 1%"]\n', *words)
    said = [line for line in ended.lines if line.startswith("warning:")]
    assert len(said) == 1 and "tresholds" in said[0]
    assert [f"warning: {note}" for note in ended.document["notes"]] == said


def test_a_timeout_is_invalid_as_on_a_cluster(command: CommandLab) -> None:
    file = command.write(SHOP.replace("iterations = 20", 'duration = "10m"\n    think = "10ms"'))
    options = RunOptions(
        file=str(command.folder / file), host=command.target.url, workers=1, timeout_s=0.5
    )
    with in_process(command.folder):
        outcome = asyncio.run(run_local(options))
    assert (outcome.status, outcome.workflows[0].status) == ("timeout", "timeout")
    assert (outcome.verdict.state, outcome.exit_code) == ("INVALID", 98)
    assert outcome.verdict.reasons == ["timeout after 0.5 s"]


def test_five_requests_are_no_thousands_a_second(command: CommandLab) -> None:
    ended = run(command, SHOP, "-i", "5")
    assert ended.out.splitlines()[-1] == "Requests/sec: 5.0"
    assert ended.document["workflows"][0]["steps"][0]["rps"] == 5.0
    assert ended.document["workflows"][0]["measured_s"] < 1.0


def test_the_answer_to_a_failure_is_in_the_summary(command: CommandLab) -> None:
    text = """
    class Shop(Workflow):
        iterations = 3

        @step()
        async def pay(self, url: URL = "/echo?status=500") -> HTTPResponse:
            return await self.client.http.post(url)

        @then()
        async def page(self, url: URL = "/") -> HTTPResponse:
            response = await self.client.http.get(url)
            response.json()
            return response
    """
    ended = run(command, text)
    lines = [line.strip() for line in ended.out.splitlines()]
    at = lines.index(f"first answer 500 in pay: POST {command.target.url}/echo?status=500")
    assert lines[at + 1] == "500 Internal Server Error"
    assert any(line.startswith("the body starts with '") for line in lines)
    reasons = [error["reason"] for error in ended.document["workflows"][0]["steps"][1]["errors"]]
    assert len(reasons) == 1 and "starts with" not in reasons[0]


def test_calls_that_are_never_awaited_are_noted_once_per_place(command: CommandLab) -> None:
    text = f"""
    class Shop(Workflow):
        vus = 4
        iterations = 12

        @step()
        async def home(self, url: URL = "/") -> HTTPResponse:
            self.client.http.post("/basket")
            self.pause("1s")
            {GET}
    """
    words = ("--host", command.target.url, "--workers", "2", "--json", "results.json")
    ended = command.process("run", command.write(text), *words)
    notes = [note.partition("py:")[2] for note in ended.document["notes"]]
    first = int(notes[0].partition(" ")[0])
    assert notes == [
        f"{first} (HTTPClient.post); write await",
        f"{first + 1} (Workflow.pause); write await",
    ]
    assert "NOTES       never awaited, so it did nothing: " in ended.out
    assert "RuntimeWarning" not in ended.err
