"""Exit codes, and the one line that the user gets with each of them."""

from __future__ import annotations

import re

import pytest

from tests.runs.lab.command import GET, CommandLab

HOME = f"""
class Home(Workflow):
    @step()
    async def home(self, url: URL = "/") -> HTTPResponse:
        {GET}
"""


def test_a_run_that_passes_is_0(command: CommandLab) -> None:
    ended = command.load(command.write(HOME), "-i", "3", "--host", command.target.url)
    assert ended.code == 0
    assert ended.document["passed"] is True
    assert command.target.counts()["total"] == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run"], "FILE"),
        (["run", "nowhere.py"], "nowhere.py"),
        (["run", "127.0.0.1:8080/x"], "no such file; for a URL, write http://127.0.0.1:8080/x"),
        (["run", "http://127.0.0.1:1/", "--cacert", "flow.py"], "--cacert flow.py: not a PEM file"),
        (["run", "http://127.0.0.1:1/", "--data", "@nope"], "--data @nope: No such file"),
        (["run", "flow.py", "-u", "many"], '--vus "many" is not a count'),
        (["run", "flow.py", "-d", "1x"], '--duration "1x" is not a duration'),
        (["run", "flow.py", "-s", "1s:5", "-s", "1s:5/s"], "cannot be mixed"),
        (["run", "flow.py", "--columns", "p50,colour"], "colour"),
        (["run", "flow.py", "--json", "no/such/folder.json"], "no/such"),
        (["run", "flow.py", "--nonsense"], "--nonsense"),
        (["run", "flow.py", "--only", "Hom"], '"Home"'),
        (["blow"], "blow"),
    ],
)
def test_a_wrong_command_line_is_2_and_one_line(
    command: CommandLab, words: list[str], said: str
) -> None:
    command.write(HOME)
    ended = command.squall(*words)
    assert ended.code == 2
    assert len(ended.lines) == 1 and said in ended.err
    assert ended.out == ""
    assert command.target.counts()["total"] == 0


def test_a_name_that_does_not_resolve_is_104_and_said_of_the_url(command: CommandLab) -> None:
    ended = command.squall("run", "http://no-such-host.invalid/x", "--workers", "1", "-q")
    assert ended.code == 104
    assert ended.err.startswith("http://no-such-host.invalid/x: name does not resolve")


def test_a_proxy_that_does_not_resolve_is_104_and_said_of_the_proxy(command: CommandLab) -> None:
    words = ["--proxy", "no-such-host.invalid", "--workers", "1", "-q"]
    ended = command.squall("run", command.target.url, *words)
    assert ended.code == 104
    assert ended.err == "--proxy: name of the proxy does not resolve: no-such-host.invalid\n"
    refused = command.squall("run", command.target.url, "--proxy", "127.0.0.1:1", "-i", "1", "-q")
    assert "connection refused: proxy 127.0.0.1:1" in refused.out


def test_a_bare_load_over_several_workflows_is_2(command: CommandLab) -> None:
    command.write(HOME + HOME.replace("Home", "Away"))
    ended = command.squall("run", "flow.py", "-u", "5", "--host", command.target.url)
    assert ended.code == 2
    assert "2 test workflows" in ended.err and "-u Home=" in ended.err


def test_a_failed_threshold_is_99_and_exit_zero_makes_it_0(command: CommandLab) -> None:
    words = [command.write(HOME), "-i", "3", "--host", command.target.url]
    words += ["--threshold", "home.p(95) < 1us", "--threshold", "errors < 1%"]
    failed = command.load(*words)
    assert failed.code == 99
    assert "THRESHOLDS  1 passed, 1 failed" in failed.out
    assert re.search(r"^  x   home\.p\(95\) < 1us +[\d.]+ (us|ms)", failed.out, re.MULTILINE)
    assert [t["passed"] for t in failed.document["thresholds"] if not t["builtin"]] == [False, True]
    assert failed.document["exit_code"] == 99
    assert command.load(*words, "--exit-zero").code == 0


def test_k6_spelling_of_a_threshold_is_accepted(command: CommandLab) -> None:
    words = [command.write(HOME), "-i", "3", "--host", command.target.url]
    for text in (
        "http_req_duration{step:home}: p(95)<60000",
        "http_req_failed: rate<0.01",
        "http_req_duration: p(95)<0.001",
    ):
        words += ["--threshold", text]
    ended = command.load(*words)
    assert ended.code == 99
    judged = [t["passed"] for t in ended.document["thresholds"] if not t["builtin"]]
    assert judged == [True, True, False]


@pytest.mark.parametrize("host", ["target", "nobody"])
def test_a_run_in_which_every_request_failed_is_99(command: CommandLab, host: str) -> None:
    url = f"{command.target.url}/?status=503" if host == "target" else "http://127.0.0.1:1/"
    ended = command.load(url, "-u", "2", "-i", "4")
    assert ended.code == 99
    assert re.search(r"^  x   errors < 100% +100 %", ended.out, re.MULTILINE)
    assert ("503 Service Unavailable" if host == "target" else "connection refused") in ended.out


STEP = f"""
    @step()
    async def cart(self, url: URL = "/") -> HTTPResponse:
        {GET}
"""
STEPS_AND_NAMES = f"""
class Empty(Workflow):
    vus = 1

class Untyped(Workflow):
    @step()
    async def cart(self): ...

class Plain(Workflow):
    @step()
    def cart(self) -> None: ...

class Typo(Workflow):{STEP}
    @step("crat")
    async def pay(self) -> None: ...

@depends("Emtpy")
class Lost(Workflow):{STEP}
class Taken(Workflow):
    @step()
    async def pause(self) -> None: ...
"""
LOAD_AND_TYPES = f"""
class Unlike(Workflow):{STEP}
    @then()
    async def pay(self, cart: int) -> None: ...

class Both(Workflow):
    rate = "5/s"
    iterations = 5
{STEP}
class Endless(Workflow):
    duration = "ten"
{STEP}
class Mixed(Workflow):
    stages = ["1s:4", "2s:5/s"]
{STEP}
"""
TOGETHER = [
    (
        STEPS_AND_NAMES,
        [
            ("class Empty", "Empty: has no steps"),
            ("async def cart(self): ...", "Untyped.cart needs a return type"),
            ("  def cart", "Plain.cart: a step must be an async def"),
            ("async def pay", 'Typo.pay: no step "crat"; did you mean "cart"?'),
            ("class Lost", 'Lost: no workflow "Emtpy"; did you mean "Empty"?'),
            ("async def pause", 'Taken.pause: "pause" is reserved'),
        ],
    ),
    (
        LOAD_AND_TYPES,
        [
            ("async def pay", "Unlike.pay: argument cart is declared as int, but cart returns"),
            ('rate = "5/s"', "Both: rate and iterations contradict each other"),
            ('duration = "ten"', 'Endless: duration "ten" is not a duration'),
            ("stages = ", "Mixed: stages mix units"),
        ],
    ),
]


@pytest.mark.parametrize(("text", "told"), TOGETHER, ids=["steps and names", "load and types"])
def test_mistakes_in_a_file_are_reported_together_with_file_and_line(
    command: CommandLab, text: str, told: list[tuple[str, str]]
) -> None:
    words = ["--host", command.target.url, "--workers", "1", "-q"]
    ended = command.squall("run", command.write(text), *words)
    assert ended.code == 104
    assert ended.without_traceback() and ended.out == ""
    written = (command.folder / "flow.py").read_text(encoding="utf-8").splitlines()
    for at, said in told:
        line = next(number for number, each in enumerate(written, 1) if at in each)
        assert f"flow.py:{line}  {said}" in ended.err, ended.err
    assert len(ended.lines) == len(told)
    assert command.target.counts()["total"] == 0


ALONE = [
    ("x = 1\n", r"flow\.py: no workflow in this file"),
    (f"class A(Workflow):\n    token = env('NOT_SET')\n{STEP}", r"flow\.py:3  .*NOT_SET"),
    (
        f"class A(Workflow):\n    user = Feed('gone.csv')\n{STEP}",
        r"flow\.py:3  A\.user: .*gone\.csv",
    ),
    (f"class A(Workflow):\n    thresholds = ['crat.p(95) < 1s']\n{STEP}", r"flow\.py:3  A: .*crat"),
    (
        f"class A(Workflow):{STEP}".replace("@step()", "@step"),
        r"flow\.py:\d  A\.\w+: write @step\(\)",
    ),
    (
        f"class A(Workflow):{STEP}".replace('"/"', '"cart"'),
        r"flow\.py:\d  A\.cart url: .*start with http",
    ),
]


@pytest.mark.parametrize(("text", "said"), ALONE, ids=[said for _, said in ALONE])
def test_a_mistake_in_the_file_is_104_with_file_and_line(
    command: CommandLab, text: str, said: str
) -> None:
    words = ["--host", command.target.url, "--workers", "1", "-q"]
    ended = command.squall("run", command.write(text), *words)
    assert ended.code == 104
    lines = [line for line in ended.lines if not line.startswith("warning:")]
    assert len(lines) == 1 and ended.out == ""
    assert re.match(said, lines[0]), ended.err
    assert command.target.counts()["total"] == 0


@pytest.mark.parametrize("name", ["run", "explain"])
def test_a_second_workflow_of_one_name_is_104(command: CommandLab, name: str) -> None:
    text = f"class A(Workflow):{STEP}\nclass A(Workflow):{STEP}"
    second = text[: text.rindex("class A")].count("\n") + 2
    ended = command.squall(name, command.write(text), "--host", command.target.url)
    assert ended.code == 104
    assert ended.lines == [
        f"flow.py:{second}  A: a second class of this name replaces the workflow of line 2; "
        "give one of them another name"
    ]
    assert ended.out == ""
    assert command.target.counts()["total"] == 0


def test_a_relative_url_without_a_host_is_104(command: CommandLab) -> None:
    ended = command.squall("run", command.write(HOME))
    assert ended.code == 104
    assert ended.lines[-1].startswith("flow.py:4  Home.home")
    assert "--host" in ended.err


def test_an_unknown_subject_of_a_threshold_is_104_before_the_start(command: CommandLab) -> None:
    words = ["run", command.write(HOME), "--host", command.target.url]
    ended = command.squall(*words, "--threshold", "hmoe.p(95) < 1s")
    assert ended.code == 104
    assert 'did you mean "home"?' in ended.err
    assert command.target.counts()["total"] == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import nosuchmodule\n", "flow.py:2  ModuleNotFoundError: No module named 'nosuchmodule'"),
        ("def f():\n    return undefined\nf()\n", "flow.py:3  NameError: name 'undefined'"),
        ("class A(:\n", "flow.py:2  SyntaxError"),
        ("sys.exit(3)\n", "flow.py:2  SystemExit: 3"),
    ],
)
def test_a_file_that_cannot_be_imported_is_107_with_the_authors_line(
    command: CommandLab, text: str, said: str
) -> None:
    call = command.process if "sys.exit" in text else command.squall
    ended = call("run", command.write(text), "--workers", "1")
    assert ended.code == 107
    assert ended.lines[-1].startswith(said)
    assert ended.without_traceback() and "squall/engine" not in ended.err


def test_a_call_that_blocks_the_loop_is_98_and_named_with_its_line(command: CommandLab) -> None:
    text = f"""
    class Home(Workflow):
        vus = 2
        duration = "2s"

        @step()
        async def home(self, url: URL = "/") -> HTTPResponse:
            time.sleep(0.2)
            {GET}
    """
    words = ["run", command.write(text), "--host", command.target.url, "--json", "results.json"]
    ended = command.process(*words)
    assert ended.code == 98
    verdict = ended.document["verdict"]
    assert verdict["state"] == "INVALID"
    assert verdict["reasons"][0].startswith("Home.home blocked the loop for ")
    assert verdict["reasons"][0].endswith(" at flow.py:8 (time.sleep)")
    assert ended.out.splitlines()[1] == f"INVALID  {verdict['reasons'][0]}"
