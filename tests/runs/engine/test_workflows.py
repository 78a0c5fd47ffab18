"""Several workflows of one file: layers, skipping, hand-over of values, overlap."""

from __future__ import annotations

import asyncio

import pytest

from squall.engine.run.local_run import run_local
from squall.engine.run_options import RunOptions
from squall.stats.snapshot import Snapshot
from tests.runs.lab.in_process import in_process
from tests.runs.lab.run import Lab, check_counts

LAYERS = """
class Setup(Workflow):
    @step()
    async def prepare(self, url: URL = "/setup") -> None:
        await self.client.http.get(url)

class LoadTest(Workflow):
    vus = 2
    duration = "400ms"

    @step()
    async def load(self, url: URL = "/load?delay=5ms") -> HTTPResponse:
        return await self.client.http.get(url)

@depends("LoadTest")
class Validate(Workflow):
    duration = "300ms"

    @step()
    async def validate(self, url: URL = "/validate?delay=5ms") -> HTTPResponse:
        return await self.client.http.get(url)

@depends("Validate", "LoadTest")
class Report(Workflow):
    @step()
    async def report(self, url: URL = "/report") -> None:
        await self.client.http.get(url)
"""


def test_layers_run_one_after_the_other(lab: Lab) -> None:
    result = lab.run(LAYERS, workers=2)
    counts = lab.target.counts()
    check_counts(result, counts)
    when = {each.name: each for each in result.outcome.workflows}
    assert when["Setup"].started_at_s == when["LoadTest"].started_at_s == 0.0
    ended = {name: each.started_at_s + each.elapsed_s for name, each in when.items()}
    assert when["Validate"].started_at_s >= ended["LoadTest"] > 0.3
    assert when["Report"].started_at_s >= ended["Validate"]
    assert counts["paths"]["/setup"] == counts["paths"]["/report"] == 1
    assert {each.status for each in when.values()} == {"completed"}


BLOCKING_SETUP = """
class Setup(Workflow):
    @step()
    async def prepare(self) -> str:
        time.sleep(1.2)
        return "ready"

@depends("Setup")
class Shop(Workflow):
    rate = "50/s"
    duration = "1s"

    @step()
    async def home(self, prepare: str, url: URL = "/") -> HTTPResponse:
        return await self.client.http.get(url)
"""


def test_the_generator_is_judged_only_while_a_test_runs(lab: Lab) -> None:
    result = lab.run(BLOCKING_SETUP, workers=1)
    [process] = result.outcome.stats.health.processes.values()
    # The code of the set-up blocks the loop, and spoils no number.
    assert not process.blocked_s
    assert not [reason for reason in result.reasons if "blocked" in reason]


WRONG = {
    "cycle": (
        """
        @depends("Beta")
        class Alpha(Workflow):
            @step()
            async def a(self, url: URL = "/") -> HTTPResponse:
                return await self.client.http.get(url)

        @depends("Alpha")
        class Beta(Workflow):
            @step()
            async def b(self, url: URL = "/") -> HTTPResponse:
                return await self.client.http.get(url)
        """,
        ["flow.py:3", "Alpha -> Beta -> Alpha"],
    ),
    "self": (
        """
        @depends("Alone")
        class Alone(Workflow):
            @step()
            async def a(self, url: URL = "/") -> HTTPResponse:
                return await self.client.http.get(url)
        """,
        ["flow.py:3", "Alone: depends on itself"],
    ),
    "unknown": (
        """
        @depends("Setpu")
        class Load(Workflow):
            @step()
            async def a(self, url: URL = "/") -> HTTPResponse:
                return await self.client.http.get(url)

        class Setup(Workflow):
            @step()
            async def a(self) -> None: ...
        """,
        ["flow.py:3", 'Load: no workflow "Setpu"; did you mean "Setup"?'],
    ),
    "duplicate": (
        """
        class Shop(Workflow):
            @step()
            async def a(self, url: URL = "/") -> HTTPResponse:
                return await self.client.http.get(url)

        @depends("Other")
        class Shop(Workflow):
            @step()
            async def b(self, url: URL = "/") -> HTTPResponse:
                return await self.client.http.get(url)
        """,
        ["flow.py:8  Shop: a second class of this name replaces the workflow of line 2"],
    ),
    "step of another class": (
        """
        class One(Workflow):
            @step()
            async def login(self, url: URL = "/") -> HTTPResponse:
                return await self.client.http.get(url)

        class Two(Workflow):
            @step("login")
            async def cart(self, url: URL = "/") -> HTTPResponse:
                return await self.client.http.get(url)
        """,
        ["flow.py:9", 'Two.cart: no step "login"'],
    ),
    "step cycle": (
        """
        class Round(Workflow):
            @step("c")
            async def a(self, url: URL = "/") -> HTTPResponse:
                return await self.client.http.get(url)

            @step("a")
            async def c(self, url: URL = "/") -> HTTPResponse:
                return await self.client.http.get(url)
        """,
        ["flow.py:2", "Round", "a -> c -> a"],
    ),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_wrong_dependencies_are_refused_before_any_request(lab: Lab, mistake: str) -> None:
    text, expected = WRONG[mistake]
    error = lab.refusal(text)
    assert error.exit_code == 104
    for part in expected:
        assert part in str(error), str(error)


CHAIN = """
class A(Workflow):
    @step()
    async def a(self, url: URL = "/a") -> None:
        {a_body}

@depends("A")
class B(Workflow):
    iterations = 2
    @step()
    async def b(self, url: URL = "/b") -> HTTPResponse:
        return await self.client.http.get(url)

@depends("B")
class BB(Workflow):
    iterations = 2
    @step()
    async def bb(self, url: URL = "/bb") -> HTTPResponse:
        return await self.client.http.get(url)
"""
OTHERS = """
class C(Workflow):
    iterations = 3
    @step()
    async def c(self, url: URL = "/c") -> HTTPResponse:
        return await self.client.http.get(url)

@depends("C")
class D(Workflow):
    iterations = 4
    @step()
    async def d(self, url: URL = "/d") -> HTTPResponse:
        return await self.client.http.get(url)

@depends("A", "D", when="always")
class Teardown(Workflow):
    @step()
    async def clean(self, url: URL = "/clean") -> None:
        await self.client.http.delete(url)
"""


def test_a_failed_workflow_skips_only_its_dependents(lab: Lab) -> None:
    result = lab.run(CHAIN.format(a_body='raise RuntimeError("no tenant")') + OTHERS)
    check_counts(result, lab.target.counts())
    assert lab.target.counts()["paths"] == {"/c": 3, "/d": 4, "/clean": 1}
    outcome = {each.name: (each.status, each.error) for each in result.outcome.workflows}
    assert outcome["A"] == ("failed", "A.a: RuntimeError: no tenant")
    assert outcome["B"] == ("skipped", "A failed")
    assert outcome["BB"] == ("skipped", "B was skipped")
    assert outcome["C"] == outcome["D"] == outcome["Teardown"] == ("completed", "")
    assert result.outcome.status == "partial"
    assert not result.passed and result.exit_code == 107


def test_nothing_completed_is_failed_and_all_completed_is_completed(lab: Lab) -> None:
    failed = lab.run(CHAIN.format(a_body='raise RuntimeError("no tenant")'))
    assert failed.outcome.status == "failed"
    assert lab.target.counts()["total"] == 0
    passed = lab.run(CHAIN.format(a_body="await self.client.http.get(url)") + OTHERS)
    check_counts(passed, lab.target.counts())
    assert passed.outcome.status == "completed"
    assert passed.passed and passed.exit_code == 0


HAND_OVER = """
class Setup(Workflow):
    @step()
    async def tenant(self, url: URL = "/tenants") -> str:
        return str((await self.client.http.post(url)).json()["id"])

    @then()
    async def note(self) -> None:
        self.context["region"] = "north"

@depends("Setup")
class Shop(Workflow):
    vus = 3
    iterations = 9

    @step()
    async def order(
        self, tenant: str, region: str = "none", url: URL = "/echo"
    ) -> HTTPResponse:
        self.check("tenant", tenant.startswith("t"))
        self.check("context of a set-up", region == "north")
        return await self.client.http.post(url, json={"tenant": tenant})

    @state("Audit")
    def last_order(self) -> Provide[dict]:
        return {"path": self.order.response.json()["path"]}

    @state("Audit")
    async def answer(self) -> Provide[int]:
        return 42

    @state("Stranger")
    def not_for_audit(self) -> Provide[int]:
        return 1

    @state("Stranger")
    def one_sided(self) -> Provide[int]:
        return 5

@depends("Shop")
class Audit(Workflow):
    vus = 2
    iterations = 4

    @state("Shop")
    def used(self, last_order: dict | None = None, anwser: int = -1) -> Use[dict]:
        return last_order, anwser

    @state("Shop")
    def missing(self, not_for_audit: int = -7) -> Use[int]:
        return not_for_audit

    @step()
    async def audit(self, tenant: str, answer: int = 0, url: URL = "/") -> HTTPResponse:
        self.check("by hook", self.used()[0] == {"path": "/echo"})
        self.check("mismatched name keeps the default", self.used()[1] == -1)
        self.check("named by one side only", self.missing() == -7)
        self.check("nothing arrived", "not_for_audit" not in self.context)
        self.check("by keyword of a step", answer == 42)
        self.check("in the context", self.context.get("last_order") == {"path": "/echo"})
        self.check("of a set-up further back", tenant.startswith("t"))
        return await self.client.http.get(url)

@depends("Shop")
class Stranger(Workflow):
    iterations = 1

    @step()
    async def nothing(self, url: URL = "/") -> HTTPResponse:
        self.check("nobody asked", "one_sided" not in self.context)
        return await self.client.http.get(url)
"""


def test_values_are_handed_over_by_name(lab: Lab) -> None:
    result = lab.run(HAND_OVER, workers=2)
    check_counts(result, lab.target.counts())
    assert {each.status for each in result.outcome.workflows} == {"completed"}
    for name, check in result.checks.items():
        assert check.passed > 0 and check.failed == 0, name


COLLECT = """
class Shop(Workflow):
    vus = 2
    iterations = 2

    @step()
    async def order(self, url: URL = "/echo") -> HTTPResponse:
        return await self.client.http.post(url, json={})

    @state("Audit")
    def users(self) -> Provide[int]:
        return 7

@depends(Shop)
class Audit(Workflow):
    iterations = 1

    @state(Shop)
    def seen(self, users: All[int] = ()) -> Use[list[int]]:
        return list(users)

    @step()
    async def audit(self, url: URL = "/") -> HTTPResponse:
        self.check("one of each process", self.seen() == [7, 7])
        return await self.client.http.get(url)
"""


def test_all_values_of_a_state_hook_can_be_collected(lab: Lab) -> None:
    result = lab.run(COLLECT, workers=2)
    assert result.checks["one of each process"].passed == 1


def test_a_file_with_state_hooks_runs_in_part(lab: Lab) -> None:
    """Values from and to workflows that are left out have no other end: the default is used."""
    result = lab.run(COLLECT, workers=1, only=("Shop",))
    assert [each.name for each in result.outcome.workflows] == ["Shop"]
    result = lab.run(COLLECT, workers=1, skip=("Shop",))
    assert result.checks["one of each process"].failed == 1


def test_a_hand_over_that_is_too_large_fails_with_its_name(lab: Lab) -> None:
    text = """
    class Setup(Workflow):
        @step()
        async def rows(self) -> bytes:
            return bytes(150 << 20)

    @depends("Setup")
    class Load(Workflow):
        iterations = 1
        @step()
        async def use(self, rows: bytes, url: URL = "/") -> HTTPResponse:
            return await self.client.http.get(url)
    """
    result = lab.run(text)
    outcome = {each.name: each for each in result.outcome.workflows}
    assert outcome["Setup"].error.startswith("Setup.rows has 150.0 MiB; a workflow hands over at")
    assert outcome["Load"].status == "skipped"


def test_a_value_that_cannot_travel_fails_on_the_laptop(lab: Lab) -> None:
    text = """
    class Setup(Workflow):
        @step()
        async def token(self) -> object:
            return object()

    @depends("Setup")
    class Load(Workflow):
        iterations = 1
        @step()
        async def use(self, token: object, url: URL = "/") -> HTTPResponse:
            return await self.client.http.get(url)
    """
    result = lab.run(text)
    assert lab.target.counts()["total"] == 0
    outcome = {each.name: each for each in result.outcome.workflows}
    assert outcome["Setup"].status == "failed"
    assert "Setup.token is a object" in outcome["Setup"].error
    assert outcome["Load"].status == "skipped"


def test_workflows_of_a_layer_overlap_on_one_worker_and_exclusive_waits(lab: Lab) -> None:
    text = """
    class _Home(Workflow):
        vus = 2
        duration = "400ms"

        @step()
        async def home(self, url: URL = "/?delay=5ms") -> HTTPResponse:
            return await self.client.http.get(url)

    class Browse(_Home): ...
    class Buy(_Home): ...
    class Alone(_Home):
        priority = "exclusive"
    """
    result = lab.run(text, workers=1)
    check_counts(result, lab.target.counts())
    when = {each.name: each for each in result.outcome.workflows}
    assert set(when) == {"Browse", "Buy", "Alone"}
    assert when["Browse"].started_at_s == when["Buy"].started_at_s
    spans = {name: (w.started_at_s, w.started_at_s + w.elapsed_s) for name, w in when.items()}
    for name in ("Browse", "Buy"):
        assert spans["Alone"][1] <= spans[name][0] or spans["Alone"][0] >= spans[name][1]
    windows = result.outcome.stats.workflows
    assert windows["Browse"].rows["home"].count >= 2
    assert windows["Buy"].rows["home"].count >= 2


def test_a_workflow_of_start_actions_alone_runs_once(lab: Lab) -> None:
    text = """
    class Seed(Workflow):
        @action()
        async def seed(self, url: URL = "/seed") -> str:
            await self.client.http.post(url)
            return "rows"

    @depends("Seed")
    class Load(Workflow):
        iterations = 2

        @step()
        async def use(self, seed: str = "none", url: URL = "/") -> HTTPResponse:
            self.check("seeded", seed == "rows")
            return await self.client.http.get(url)
    """
    result = lab.run(text)
    check_counts(result, lab.target.counts())
    assert lab.target.counts()["paths"] == {"/seed": 1, "/": 2}
    assert result.checks["seeded"].passed == 2


def test_arguments_are_prepared_once_and_sent_as_prepared(lab: Lab) -> None:
    host = lab.target.url.replace("127.0.0.1", "localhost")
    text = """
    class Calls(Workflow):
        vus = 4
        iterations = 40

        @step()
        async def everything(
            self,
            url: URL = "/echo",
            headers: Headers = {"Accept": "a/b", "X-N": "1"},
            params: Params = {"q": "a b", "n": 20, "ok": True},
            cookies: Cookies = {"sid": "s1", "lang": "en"},
            auth: Auth = bearer("t0ken"),
            data: Data = {"sku": 7, "opts": {"gift": True}},
        ) -> HTTPResponse:
            response = await self.client.http.post(
                url, headers=headers, params=params, cookies=cookies, auth=auth, data=data
            )
            echo = response.json()
            sent = {name.lower(): value for name, value in echo["headers"].items()}
            self.check("query", echo["query"] in ("q=a%20b&n=20&ok=true", "q=a+b&n=20&ok=true"))
            self.check("headers", (sent["accept"], sent["x-n"]) == ("a/b", "1"))
            self.check("cookies", sent["cookie"] == "sid=s1; lang=en")
            self.check("auth", sent["authorization"] == "Bearer t0ken")
            self.check("body", echo["body"] == '{"sku":7,"opts":{"gift":true}}')
            self.check("length", sent["content-length"] == str(len(echo["body"])))
            self.check("type", sent["content-type"] == "application/json")
            return response

        @then()
        async def form(
            self, url: URL = "/echo", login: Form = {"user": "ada", "n": 1}
        ) -> HTTPResponse:
            self.context["url"] = "/elsewhere"
            response = await self.client.http.post(url, form=login)
            self.check("form", response.json()["body"] == "user=ada&n=1")
            return response

        @then()
        async def same_name(self, url: URL = "/echo") -> HTTPResponse:
            self.check("prepared wins over the context", str(url) == "/echo")
            return await self.client.http.get(url)
    """
    result = lab.run(text, workers=2, host=host)
    check_counts(result, lab.target.counts())
    assert len([name for name in result.checks if "." not in name]) == 9
    for name, check in result.checks.items():
        assert (check.passed, check.failed) == (40, 0), name
    assert result.outcome.stats.workflows["Calls"].dns.count <= 2, "a lookup per process at most"


def test_a_slow_resolver_is_asked_once_per_process_and_in_no_latency(lab: Lab) -> None:
    host = lab.target.url.replace("127.0.0.1", "localhost")
    text = """
    import asyncio
    from pathlib import Path
    from squall.clients.http import origin
    lookup = origin._lookup

    async def slow(what, name, port):
        with Path("LOOKUPS").open("a") as file:
            file.write(f"{os.getpid()} {name}\\n")
        await asyncio.sleep(0.2)
        return await lookup(what, name, port)

    origin._lookup = slow

    class Load(Workflow):
        vus = 20
        iterations = 400

        @step()
        async def get(self, url: URL = "/") -> HTTPResponse:
            return await self.client.http.get(url)
    """
    lookups = lab.folder / "lookups"
    result = lab.run_processes(text.replace("LOOKUPS", str(lookups)), workers=2, host=host)
    check_counts(result, lab.target.counts())
    made = lookups.read_text().splitlines()
    assert len(made) == len(set(made)) and 1 <= len(made) <= 2, "one per process"
    assert {line.split()[1] for line in made} == {"localhost"}
    step = result.step("get")
    assert step.count == 400 and step.min < 0.1 and step.p(50) < 0.2


def test_a_host_that_does_not_resolve_is_told_before_any_request(lab: Lab) -> None:
    text = """
    class Lost(Workflow):
        iterations = 1

        @step()
        async def first(self, url: URL = "/") -> HTTPResponse:
            return await self.client.http.get(url)

        @then()
        async def second(self, there: URL = "http://no-such-host.invalid/") -> HTTPResponse:
            return await self.client.http.get(there)
    """
    error = lab.refusal(text)
    assert error.exit_code == 104
    assert "flow.py:10" in str(error)
    assert "Lost.second there" in str(error)
    assert "no-such-host.invalid" in str(error)


def test_a_workflow_that_ended_is_not_shown_as_alive_while_another_runs(lab: Lab) -> None:
    path = lab.write(
        """
    class Short(Workflow):
        rate = "20/s"
        duration = "1s"

        @step()
        async def home(self, url: URL = "/") -> HTTPResponse:
            return await self.client.http.get(url)

    class Long(Short):
        duration = "4s"
    """
    )
    shown: list[Snapshot] = []
    options = RunOptions(file=str(path), host=lab.target.url, workers=1)
    with in_process(lab.folder):
        asyncio.run(run_local(options, on_snapshot=shown.append))
    last = {workflow.name: workflow for workflow in shown[-1].workflows}
    assert last["Short"].ended and not last["Long"].ended
    assert (last["Short"].rate_now_per_s, last["Short"].target_per_s) == (0.0, None)
    assert last["Long"].target_per_s == 20.0
