"""Steps of one user: order, concurrency, weights, arguments by name, isolation."""

from __future__ import annotations

import pytest

from tests.runs.lab.run import Lab, check_counts, check_identities

DIAMOND = """
class Shop(Workflow):
    vus = 10
    iterations = 60

    @step()
    async def login(self, url: URL = "/login?delay=40ms") -> HTTPResponse:
        self.events = ["login"]
        return await self.client.http.post(url)

    @step("login")
    async def cart(self, login: HTTPResponse, url: URL = "/cart?delay=40ms") -> HTTPResponse:
        self.check("cart sees the login of this iteration", login is self.login.response)
        return await self.sibling(url)

    @step("login")
    async def offers(self, url: URL = "/offers?delay=40ms") -> HTTPResponse:
        return await self.sibling(url)

    @step("cart", "offers")
    async def pay(
        self, cart: HTTPResponse, offers: HTTPResponse, url: URL = "/pay?delay=40ms"
    ) -> HTTPResponse:
        self.check("pay has both", (len(cart.json()), len(offers.json())) == (2, 1))
        self.check("siblings overlap", self.events[:3] == ["login", "begins", "begins"])
        self.check("pay waits for both", self.events[3:] == ["ends", "ends"])
        return await self.client.http.post(url, json={"n": 3})

    async def sibling(self, url: URL) -> HTTPResponse:
        self.events.append("begins")
        response = await self.client.http.get(url)
        self.events.append("ends")
        return response
"""


def test_a_diamond_runs_in_order_and_its_siblings_together(lab: Lab) -> None:
    result = lab.run(DIAMOND)
    counts = lab.target.counts()
    check_counts(result, counts)
    steps = {name: result.step(name) for name in ("login", "cart", "offers", "pay")}
    assert {step.ok for step in steps.values()} == {60}
    iteration = result.workflow("Shop").iteration
    assert iteration.count == 60
    assert counts["max_concurrent_requests"] > 10, "more requests than users at once"
    # Three legs of the four; the machine is shared, so they are compared with each other.
    assert iteration.p(50) < 0.9 * sum(step.p(50) for step in steps.values())
    checks = ("cart sees the login of this iteration", "pay has both", "siblings overlap")
    for name in (*checks, "pay waits for both"):
        check = result.checks[name]
        assert (check.passed, check.failed) == (60, 0), name


@pytest.mark.parametrize("iterations", [2_500, pytest.param(60_000, marks=pytest.mark.nightly)])
def test_users_never_see_each_others_values(lab: Lab, iterations: int) -> None:
    text = """
    class Isolated(Workflow):
        vus = 500
        iterations = ITERATIONS

        @step()
        async def login(self, url: URL = "/login?delay=0ms..50ms&errors=0.1") -> HTTPResponse:
            response = await self.client.http.post(url)
            if not response.ok:
                raise RuntimeError("no id")
            return response

        @then()
        async def use(self, login: HTTPResponse, url: URL = "/use?delay=0ms..50ms") -> HTTPResponse:
            return await self.client.http.get(url, params={"id": login.json()["id"]})
    """
    result = lab.run(text.replace("ITERATIONS", str(iterations)))
    counts = lab.target.counts()
    check_counts(result, counts)
    login, use = result.step("login"), result.step("use")
    assert login.failed > 0, "some log-ins must fail for this test to mean anything"
    assert login.errors == {"RuntimeError: no id": login.failed}
    assert login.count == iterations
    assert use.count + use.interrupted == login.ok > 0.85 * iterations
    ids = counts["ids"]
    assert (ids["used_twice"], ids["unknown"]) == (0, 0)
    assert ids["used"] == use.count


SEVERAL = """
class Weighted(Workflow):
    vus = 4
    iterations = 2000

    @step()
    async def home(self, url: URL = "/home") -> HTTPResponse:
        return await self.client.http.get(url)

    @step("home", weight=7)
    async def browse(self, url: URL = "/list") -> HTTPResponse:
        return await self.client.http.get(url)

    @step("home", weight=3)
    async def buy(self, url: URL = "/buy") -> HTTPResponse:
        return await self.client.http.post(url)

    @step("buy")
    async def receipt(self, buy: HTTPResponse, url: URL = "/receipt") -> HTTPResponse:
        return await self.client.http.get(url)

    @check("receipt")
    def has_receipt(self, receipt: HTTPResponse) -> bool:
        return receipt.ok


class WeightedBesideOthers(Workflow):
    vus = 4
    iterations = 400

    @step(weight=1)
    async def left(self, url: URL = "/left") -> HTTPResponse:
        return await self.client.http.get(url)

    @step(weight=1)
    async def right(self, url: URL = "/right") -> HTTPResponse:
        return await self.client.http.get(url)

    @step()
    async def always(self, url: URL = "/always") -> HTTPResponse:
        return await self.client.http.get(url)

    @step("left", "always")
    async def after_left(
        self, left: HTTPResponse, always: HTTPResponse, url: URL = "/after"
    ) -> HTTPResponse:
        return await self.client.http.get(url)


class Chain(Workflow):
    vus = 2
    iterations = 50

    @step()
    async def one(self, url: URL = "/one") -> HTTPResponse:
        self.seen = ["one"]
        return await self.client.http.get(url)

    @then()
    async def two(self) -> dict:
        self.seen.append("two")
        return {"rows": 3}

    @then()
    async def three(self, one: HTTPResponse, two: dict, url: URL = "/three") -> HTTPResponse:
        self.seen.append("three")
        self.check("values", one.ok and two == {"rows": 3})
        self.check("order", self.seen == ["one", "two", "three"])
        return await self.client.http.get(url)


class SameLetters(Workflow):
    iterations = 3

    @step()
    async def get(self, user_url: URL = "/first") -> HTTPResponse:
        return await self.client.http.get(user_url)

    @then()
    async def get_user(self, url: URL = "/second") -> HTTPResponse:
        return await self.client.http.get(url)


class CallsItself(Workflow):
    iterations = 5

    @step()
    async def login(self, url: URL = "/inner") -> HTTPResponse:
        return await self.client.http.get(url)

    @then()
    async def again(self, login: HTTPResponse) -> HTTPResponse:
        return await self.login()


class Spawns(Workflow):
    iterations = 5

    @step()
    async def both(self, a: URL = "/spawned", b: URL = "/spawned?delay=5ms") -> HTTPResponse:
        tasks = [asyncio.create_task(self.client.http.get(url)) for url in (a, b)]
        return (await asyncio.gather(*tasks))[1]
"""


def test_shapes_of_step_graphs(lab: Lab) -> None:
    result = lab.run(SEVERAL)
    counts = lab.target.counts()
    check_counts(result, counts)
    paths = counts["paths"]

    weighted = result.workflow("Weighted")
    browse, buy = weighted.step("browse").count, weighted.step("buy").count
    assert browse + buy == weighted.step("home").count == 2000
    # 7:3 of 2,000 has a standard deviation of 20; six of them are never reached by chance.
    assert abs(browse - 1400) < 120
    assert weighted.step("receipt").count == buy
    assert weighted.step("receipt").failed == 0
    assert weighted.iteration.failed == 0
    assert result.checks["has_receipt"].passed == buy

    beside = result.workflow("WeightedBesideOthers")
    left, right = beside.step("left").count, beside.step("right").count
    assert left + right == beside.step("always").count == 400
    assert min(left, right) > 100
    assert beside.step("after_left").count == left == paths["/after"]

    assert result.checks["values"].passed == result.checks["order"].passed == 50
    assert result.checks["values"].failed == result.checks["order"].failed == 0

    assert (paths["/first"], paths["/second"]) == (3, 3), "arguments of two steps got mixed up"

    calls = result.workflow("CallsItself")
    assert calls.step("login").count == calls.step("again").count == 5
    assert paths["/inner"] == 10
    assert result.workflow("Spawns").step("both").count == 5
    assert paths["/spawned"] == 10
    assert result.outcome.stats.workflows["Spawns"].other_calls == 5


def test_the_measured_call_is_the_one_that_is_returned(lab: Lab) -> None:
    text = """
    class Late(Workflow):
        iterations = 4

        @step()
        async def last(
            self, slow: URL = "/slow?delay=200ms", fast: URL = "/fast?delay=5ms"
        ) -> HTTPResponse:
            await self.client.http.get(slow)
            return await self.client.http.get(fast)

    class Early(Workflow):
        iterations = 4

        @step()
        async def first(
            self, slow: URL = "/slow?delay=200ms", fast: URL = "/fast?delay=5ms"
        ) -> HTTPResponse:
            response = await self.client.http.get(slow)
            if response.ok:
                return response
            return await self.client.http.get(fast)
    """
    result = lab.run(text)
    check_counts(result, lab.target.counts())
    last, first = result.step("last"), result.step("first")
    assert (last.count, first.count) == (4, 4)
    assert last.p(50) < 0.100
    assert first.p(50) > 0.190
    assert result.workflow("Late").iteration.p(50) > 0.190
    assert result.outcome.stats.workflows["Late"].other_calls == 4
    assert result.outcome.stats.workflows["Early"].other_calls == 0


def test_a_context_starts_every_iteration_as_the_start_actions_left_it(lab: Lab) -> None:
    text = """
    class Fresh(Workflow):
        vus = 3
        iterations = 60

        @action()
        async def seed(self) -> dict:
            self.context["list"] = [1]
            self.context["deep"] = {"rows": [1]}
            self.turns = 0
            return {"made": "by the action"}

        @step()
        async def one(self, list: list, seed: dict, url: URL = "/") -> HTTPResponse:
            self.turns += 1
            self.check("fresh list", list == [1] and self.context["list"] is list)
            self.check("fresh deep", self.context["deep"] == {"rows": [1]})
            self.check("nothing left", "extra" not in self.context and "one" not in self.context)
            self.check("action's value", seed == {"made": "by the action"})
            self.check("self lives", self.turns == self.vu.iteration)
            list.append(2)
            self.context["deep"]["rows"].append(2)
            self.context["extra"] = 1
            seed["made"] = "changed"
            return await self.client.http.get(url)

        @then()
        async def two(self, extra: int, one: HTTPResponse) -> None:
            self.check("same iteration", extra == 1 and self.context["one"] is one)
    """
    result = lab.run(text)
    check_identities(result)
    checks = {name: check for name, check in result.checks.items() if "." not in name}
    assert len(checks) == 6
    assert {(check.passed, check.failed) for check in checks.values()} == {(60, 0)}
