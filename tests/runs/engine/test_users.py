"""A user from its resources and start actions to its end: lifetimes, cookies, feeds."""

from __future__ import annotations

import csv
import json
from time import monotonic

import pytest

from tests.lab.target import running_target
from tests.runs.lab.run import Lab, check_counts, check_identities


def lines_of(lab: Lab, name: str) -> list[str]:
    """What the author's file wrote beside itself; several processes append to it."""
    path = lab.folder / name
    return path.read_text().split() if path.exists() else []


NOTE = """
def note(name, text):
    with open(os.path.join(os.path.dirname(__file__), name), "a") as file:
        file.write(f"{text}\\n")
"""


def test_ids_are_unique_over_processes_and_randomness_follows_the_seed(lab: Lab) -> None:
    text = (
        NOTE
        + """
class Who(Workflow):
    vus = 9
    iterations = 60

    @action()
    async def hello(self) -> None:
        note("ids.txt", self.vu.id)
        note(os.environ["FILE"], f"{self.vu.id}:{self.vu.random.random()}")

    @step()
    async def one(self, url: URL = "/?delay=5ms") -> HTTPResponse:
        return await self.client.http.get(url)
"""
    )
    for run, seed in (("first", 7), ("again", 7), ("other", 8)):
        result = lab.run(text, workers=2, seed=seed, env={"FILE": run})
        check_identities(result)
    ids = lines_of(lab, "ids.txt")
    assert len(ids) == 27 and len(set(ids)) == 9
    first, again, other = (sorted(lines_of(lab, run)) for run in ("first", "again", "other"))
    assert first == again
    assert first != other


def test_ids_are_unique_over_the_workflows_of_a_test(lab: Lab) -> None:
    text = (
        NOTE
        + """
class _Base(Workflow):
    vus = 5
    iterations = 20

    @action()
    async def hello(self) -> None:
        note("ids.txt", self.vu.id)

    @step()
    async def one(self, url: URL = "/") -> HTTPResponse:
        return await self.client.http.get(url)

class Left(_Base):
    pass

class Right(_Base):
    pass
"""
    )
    lab.run(text, workers=2)
    ids = lines_of(lab, "ids.txt")
    assert len(ids) == 10 and len(set(ids)) == 10


def test_resources_open_before_the_clock_and_close_after_it(lab: Lab) -> None:
    text = (
        NOTE
        + """
class Thing:
    def __init__(self, kind):
        self.kind = kind
        self.used = 0

    async def call(self):
        self.used += 1
        await asyncio.sleep(0.001)
        return self.used

    async def aclose(self):
        note("closed.txt", self.kind)

async def slow_own():
    await asyncio.sleep(1.5)
    note("opened.txt", "own")
    return Thing("own")

async def shared():
    note("opened.txt", "shared")
    return Thing("shared")

class Uses(Workflow):
    vus = 3
    iterations = 30
    own = Resource(slow_own, per="vu")
    pool = Resource(shared)

    @step()
    async def call(self) -> Timed[int]:
        self.check("own is mine", self.own.used == self.vu.iteration - 1)
        await self.pool.call()
        return await self.timed(self.own.call())
"""
    )
    began = monotonic()
    result = lab.run(text)
    whole_s = monotonic() - began
    check_identities(result)
    assert sorted(lines_of(lab, "opened.txt")) == ["own"] * 3 + ["shared"]
    assert sorted(lines_of(lab, "closed.txt")) == ["own"] * 3 + ["shared"]
    assert result.step("call").ok == 30
    assert result.checks["own is mine"].failed == 0
    # Opening takes 1.5 s, and the load a few milliseconds.
    assert result.step("call").p(99) < whole_s - 1.5
    assert result.outcome.workflows[0].elapsed_s < whole_s - 1.5, "opening is part of the load"


def test_users_whose_start_action_fails_do_not_start(lab: Lab) -> None:
    text = (
        NOTE
        + """
class Members(Workflow):
    vus = 8
    iterations = 20

    @action()
    async def sign_in(self, url: URL = "/login") -> None:
        (await self.client.http.post(url)).raise_for_status()
        if self.vu.id % 4 == 0:
            raise RuntimeError("wrong password")

    @step()
    async def inbox(self, url: URL = "/inbox?strict=1") -> HTTPResponse:
        return await self.client.http.get(url)

    @action(at="end")
    async def sign_out(self, url: URL = "/logout") -> None:
        note("ended.txt", self.vu.id)
        await self.client.http.post(url)
"""
    )
    result = lab.run(text, workers=2)
    counts = lab.target.counts()
    check_counts(result, counts)
    assert counts["paths"]["/login"] == 8
    assert counts["paths"]["/logout"] == 6
    assert not {int(user) % 4 == 0 for user in lines_of(lab, "ended.txt")} - {False}
    assert result.step("inbox").ok == 20
    assert result.verdict == "INVALID"
    # One reason, although each process has one of them.
    assert result.reasons == ["2 of 8 users of Members did not start: RuntimeError: wrong password"]


@pytest.mark.parametrize(
    "profile",
    [
        "rate = '200/s'; max_vus = 20; vus = 2",
        "stages = ['200ms:20', '300ms:20']",
        "vus = 20",
    ],
)
def test_a_target_that_refuses_log_ins_is_not_asked_again_and_again(lab: Lab, profile: str) -> None:
    text = f"""
class Locked(Workflow):
    {profile}
    {"" if "stages" in profile else "duration = '500ms'"}

    @action()
    async def sign_in(self, url: URL = "/login?status=403") -> None:
        (await self.client.http.post(url)).raise_for_status()

    @step()
    async def home(self, url: URL = "/") -> HTTPResponse:
        return await self.client.http.get(url)

    @action(at="end")
    async def sign_out(self, url: URL = "/logout") -> None:
        await self.client.http.post(url)
"""
    result = lab.run(text)
    counts = lab.target.counts()
    check_counts(result, counts)
    assert counts["paths"] == {"/login": 20}
    assert any("20 of 20 users of Locked did not start" in reason for reason in result.reasons)
    assert result.verdict == "INVALID"


COOKIES = """
class {name}(Workflow):
    vus = 5
    iterations = 50
    {session}

    @action()
    async def sign_in(self, url: URL = "/login") -> None:
        response = await self.client.http.post(url)
        self.token = response.json()["token"]

    @step()
    async def first_look(self, url: URL = "/headers") -> HTTPResponse:
        response = await self.client.http.get(url)
        self.check("{name} kept", "extra=1" in response.text)
        return response

    @then()
    async def whose(self, url: URL = "/session") -> HTTPResponse:
        response = await self.client.http.get(url)
        self.check("{name} mine", response.json()["session"] == self.token)
        return response

    @then()
    async def change(self, url: URL = "/?cookie=extra:1") -> HTTPResponse:
        return await self.client.http.get(url)

    @then()
    async def look(self, url: URL = "/headers") -> HTTPResponse:
        response = await self.client.http.get(url)
        self.check("{name} within", "extra=1" in response.text and self.token in response.text)
        return response
"""


def test_cookies_reach_their_own_user_and_last_as_long_as_the_session(lab: Lab) -> None:
    fresh = COOKIES.format(name="Fresh", session="")
    kept = COOKIES.format(name="Kept", session='session = "vu"')
    result = lab.run(fresh + kept)
    check_counts(result, lab.target.counts())
    for name in ("Fresh mine", "Kept mine", "Fresh within", "Kept within"):
        assert (result.checks[name].passed, result.checks[name].failed) == (50, 0), name
    assert result.checks["Fresh kept"].passed == 0
    assert result.checks["Kept kept"].failed == 5, "only in the first iteration of each user"


def test_rows_are_used_once_each_over_processes(lab: Lab) -> None:
    with (lab.folder / "rows.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["key", "number"])
        writer.writerows([f"k{n}", n] for n in range(1000))
    text = """
    @dataclass
    class Row:
        key: str
        number: int

    class Once(Workflow):
        vus = 10
        duration = "30s"
        row = Feed("rows.csv", Row, take="once")

        @step()
        async def use(self, url: URL = "/row") -> HTTPResponse:
            self.check("number", self.row.key == f"k{self.row.number}")
            return await self.client.http.post(url, form={"key": self.row.key})
    """
    with running_target(["--count-field", "key"]) as target:
        result = lab.run_processes(text, workers=2, host=target.url)
        counts = target.counts()
    check_counts(result, counts)
    assert counts["fields"]["key"] == {f"k{n}": 1 for n in range(1000)}
    assert result.step("use").count == 1000
    assert result.checks["number"].failed == 0
    assert any("no rows left in rows.csv" in reason for reason in result.reasons)
    assert result.outcome.elapsed_s < 25


def test_feeds_per_user_in_turn_and_at_random(lab: Lab) -> None:
    (lab.folder / "users.json").write_text(json.dumps([{"name": f"u{n}"} for n in range(6)]))
    text = """
    class PerUser(Workflow):
        vus = 6
        iterations = 60
        user = Feed("users.json", per="vu")

        @step()
        async def use(self, url: URL = "/rows") -> HTTPResponse:
            first = self.__dict__.setdefault("first", self.user["name"])
            self.check("the same row for life", self.user["name"] == first)
            return await self.client.http.get(url, params={"key": self.user["name"]})

    class InTurn(Workflow):
        iterations = 10
        word = Feed(["a", "b", "c"])

        @step()
        async def turn(self, url: URL = "/") -> HTTPResponse:
            self.check("in turn", self.word == "abc"[(self.vu.iteration - 1) % 3])
            return await self.client.http.get(url)

    class AtRandom(Workflow):
        iterations = 200
        number = Feed([1, 2, 3], take="random")
        seen = Sample()

        @step()
        async def draw(self, url: URL = "/") -> HTTPResponse:
            self.seen.add(self.number)
            return await self.client.http.get(url)

    class OnceEach(Workflow):
        vus = 9
        iterations = 20
        row = Feed([1, 2, 3, 4], per="vu", take="once")

        @step()
        async def own(self, url: URL = "/?delay=5ms") -> HTTPResponse:
            return await self.client.http.get(url)
    """
    result = lab.run(text)
    counts = lab.target.counts()
    check_counts(result, counts)
    assert set(counts["fields"]["key"]) == {f"u{n}" for n in range(6)}
    assert result.checks["the same row for life"].failed == 0
    assert result.checks["in turn"].failed == 0
    seen = result.metrics["seen"]
    assert (seen.minimum, seen.maximum, seen.count) == (1, 3, 200)
    assert 1.7 < seen.mean < 2.3
    # Four rows, nine users: four of them run, and the verdict reports the others.
    assert result.step("own").count == 20
    assert result.outcome.stats.workflows["OnceEach"].users.max == 4
    assert any("5 of 9 users of OnceEach did not start: no rows left" in r for r in result.reasons)


@pytest.mark.parametrize("take", ["once", "cycle"])
def test_users_on_uneven_processes_have_a_row_each(lab: Lab, take: str) -> None:
    text = f"""
    class Member(Workflow):
        vus = 5
        iterations = 60
        name = Feed(["u0", "u1", "u2", "u3", "u4"], per="vu", take="{take}")

        @action(at="start")
        async def sign_in(self, url: URL = "/login") -> None:
            await self.client.http.post(url, form={{"key": self.name}})

        @step()
        async def use(self, url: URL = "/") -> HTTPResponse:
            return await self.client.http.get(url)
    """
    with running_target(["--count-field", "key"]) as target:
        result = lab.run_processes(text, workers=2, host=target.url)
        counts = target.counts()
    assert counts["fields"]["key"] == {f"u{n}": 1 for n in range(5)}
    assert not any("did not start" in reason for reason in result.reasons)


def test_a_user_that_returns_to_a_ramp_has_the_row_of_its_place(lab: Lab) -> None:
    text = """
    class Wave(Workflow):
        stages = ["1ms:3", "300ms:3", "1ms:1", "300ms:1", "1ms:3", "300ms:3"]
        name = Feed(["u0", "u1", "u2"], per="vu", take="once")

        @action(at="start")
        async def sign_in(self, url: URL = "/rows") -> None:
            await self.client.http.get(url, params={"key": self.name})

        @step()
        async def use(self, url: URL = "/?delay=5ms") -> HTTPResponse:
            return await self.client.http.get(url)
    """
    result = lab.run(text)
    assert lab.target.counts()["fields"]["key"] == {"u0": 1, "u1": 2, "u2": 2}
    assert not any("did not start" in reason for reason in result.reasons)


def test_values_handed_over_are_not_shared_between_users(lab: Lab) -> None:
    text = """
    class Setup(Workflow):
        @step()
        async def ids(self) -> list:
            return [1, 2, 3]

    @depends("Setup")
    class Load(Workflow):
        vus = 5
        iterations = 20

        @action()
        async def change(self, ids: list) -> None:
            ids.append(self.vu.id)

        @step()
        async def use(self, ids: list, url: URL = "/") -> HTTPResponse:
            self.check("own copy", ids == [1, 2, 3, self.vu.id])
            return await self.client.http.get(url)
    """
    result = lab.run(text)
    check_identities(result)
    assert (result.checks["own copy"].passed, result.checks["own copy"].failed) == (20, 0)
