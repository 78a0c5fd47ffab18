"""Checks, metrics, pauses, timed calls and custom results in real runs."""

from __future__ import annotations

import pytest

from tests.runs.lab.run import Lab, check_counts, check_identities

HOOKS = """
class Checked(Workflow):
    iterations = 10
    orders = Counter()
    queue = Gauge()
    cached = Rate()
    size = Sample("bytes")

    @step()
    async def home(self, url: URL = "/") -> HTTPResponse:
        response = await self.client.http.get(url)
        inline = self.check("inline", self.vu.iteration > 3)
        self.check("hands its value back", inline is (self.vu.iteration > 3))
        self.orders.add()
        self.orders.add(2)
        self.queue.set(self.vu.iteration)
        self.cached.add(self.vu.iteration % 5 == 0)
        self.size.add(self.vu.iteration * 10)
        return response

    @check("home")
    def true(self, home: HTTPResponse) -> bool:
        return home.ok

    @check("home")
    def false(self, home: HTTPResponse) -> bool:
        return not home.ok

    @check("home")
    def none(self, home: HTTPResponse) -> None:
        assert home.ok

    @check("home")
    def returns_none(self, home: HTTPResponse) -> bool:
        return None

    @check("home")
    def some_branches(self, home: HTTPResponse) -> bool:
        if self.vu.iteration > 6:
            return True

    @check("home")
    def never_awaited(self, home: HTTPResponse) -> bool:
        return self.waits()

    async def waits(self) -> bool:
        return True

    @check("home")
    def asserting(self, home: HTTPResponse) -> None:
        assert not home.ok

    @check("home")
    async def raising(self, home: HTTPResponse) -> bool:
        raise ValueError("broken check")

    @check("home")
    async def waiting(self, home: HTTPResponse) -> bool:
        await asyncio.sleep(0)
        return True

    @check("home")
    def odd_truth(self, home: HTTPResponse) -> bool:
        class Undecided:
            def __bool__(self):
                raise RuntimeError("neither")
        return Undecided()

    @check()
    def without_steps(self, home: HTTPResponse | None = None) -> bool:
        return home is not None

    @metric("home", unit="ms")
    def server_time(self, home: HTTPResponse) -> float:
        return self.vu.iteration

    @metric("home")
    def sometimes(self, home: HTTPResponse) -> float | None:
        return 1.0 if self.vu.iteration % 2 else None

    @metric("home")
    def text(self, home: HTTPResponse) -> float:
        return "many"

    @metric("home")
    def not_finite(self, home: HTTPResponse) -> float:
        return float("nan")

    @metric("home")
    def raising_metric(self, home: HTTPResponse) -> float:
        raise KeyError("X-Time")


class Odd(Workflow):
    iterations = 2
    level = Gauge()
    sizes = Sample()

    @step()
    async def decimal(self, url: URL = "/") -> HTTPResponse:
        from decimal import Decimal
        from fractions import Fraction
        self.level.set(Decimal("1.5"))
        self.sizes.add(Fraction(1, 2))
        self.sizes.add(True)
        return await self.client.http.get(url)

    @then()
    async def words(self, url: URL = "/") -> HTTPResponse:
        self.level.set("17")
        self.level.set("many")
"""


def test_checks_and_metrics(lab: Lab) -> None:
    result = lab.run(HOOKS)
    check_counts(result, lab.target.counts())
    tallies = {name: (c.passed, c.failed) for name, c in result.checks.items()}
    expected = {
        "inline": (7, 3),
        "hands its value back": (10, 0),
        "true": (10, 0),
        "false": (0, 10),
        "none": (10, 0),
        "asserting": (0, 10),
        "returns_none": (0, 10),
        "some_branches": (4, 6),
        "never_awaited": (0, 10),
        "raising": (0, 10),
        "waiting": (10, 0),
        "odd_truth": (0, 10),
        "without_steps": (10, 0),
    }
    assert {name: tallies[name] for name in expected} == expected
    metrics = result.metrics
    assert metrics["orders"].sum == 30
    assert (metrics["queue"].last, metrics["queue"].minimum, metrics["queue"].maximum) == (
        10,
        1,
        10,
    )
    assert metrics["cached"].hit_share == 0.2
    assert metrics["size"].sample_quantile(0.5) == pytest.approx(50, rel=0.01)
    assert metrics["size"].mean == 55
    assert (metrics["server_time"].count, metrics["server_time"].mean) == (10, 5.5)
    assert metrics["sometimes"].count == 5
    for name in ("text", "not_finite", "raising_metric"):
        assert metrics[name].count == 0
        assert result.outcome.stats.error_samples("Checked", name), name
    for name, text in (("some_branches", "write return"), ("never_awaited", "write await")):
        (sample,) = result.outcome.stats.error_samples("Checked", name)
        assert text in sample.reason
    assert result.step("home").ok == 10, "a failed check or metric never fails a step"
    assert result.workflow("Checked").iteration.failed == 0
    assert result.workflow("Checked").status == "completed"
    assert metrics["level"].maximum in (1.5, 17)
    assert metrics["sizes"].mean == 0.75
    assert next(iter(result.step("words").errors)).startswith("ValueError")


PAUSES = """
def at_module_level(user):
    return user.pause("100ms")

class Pauses(Workflow):
    iterations = 3

    @action()
    async def before(self) -> None:
        await self.pause("300ms")

    @step()
    async def reads(self, url: URL = "/") -> HTTPResponse:
        await self.pause("50ms..100ms")
        response = await self.client.http.get(url)
        await self.pause(0.05)
        return response

class PausesElsewhere(Workflow):
    iterations = 2

    async def wait_a_little(self):
        await self.pause("100ms")

    @step()
    async def through_a_method(self, url: URL = "/") -> HTTPResponse:
        await self.wait_a_little()
        await at_module_level(self)
        return await self.client.http.get(url)

class PauseTogether(Workflow):
    iterations = 2

    @step()
    async def left(self, url: URL = "/") -> HTTPResponse:
        await self.pause("100ms")
        return await self.client.http.get(url)

    @step()
    async def right(self, url: URL = "/") -> HTTPResponse:
        await self.pause("100ms")
        return await self.client.http.get(url)

class Thinks(Workflow):
    iterations = 4
    think = "100ms"

    @step()
    async def think_after(self, url: URL = "/") -> HTTPResponse:
        return await self.client.http.get(url)

class Paced(Workflow):
    iterations = 4
    pacing = "100ms"

    @step()
    async def paced(self, url: URL = "/?delay=20ms") -> HTTPResponse:
        return await self.client.http.get(url)

class PacedFailures(Workflow):
    iterations = 4
    pacing = "100ms"

    @step()
    async def fails(self, url: URL = "/") -> HTTPResponse:
        raise ValueError("no")

class ThinkingFailures(Workflow):
    iterations = 4
    think = "100ms"

    @step()
    async def fails_too(self, url: URL = "/") -> HTTPResponse:
        raise ValueError("no")
"""


def test_pauses_and_think_times_are_in_no_latency(lab: Lab) -> None:
    result = lab.run(PAUSES)
    check_identities(result)
    elapsed = {each.name: each.elapsed_s for each in result.outcome.workflows}
    for step, workflow, paused_s in (
        ("reads", "Pauses", 0.3),
        ("through_a_method", "PausesElsewhere", 0.4),
        ("left", "PauseTogether", 0.2),
        ("think_after", "Thinks", 0.3),
        ("fails_too", "ThinkingFailures", 0.3),
    ):
        # Besides the pauses there is so much time for all latencies together; timers may be a
        # millisecond early.
        left_s = elapsed[workflow] - paused_s + 0.02
        iteration = result.workflow(workflow).iteration
        assert iteration.min >= 0.0
        for row in (iteration, result.step(step)):
            assert row.mean * row.count <= left_s, (workflow, row.mean, elapsed[workflow])
    for paced in ("Paced", "PacedFailures"):
        assert elapsed[paced] > 0.29, paced


PROTOCOLS = """
class Reply(CustomResult):
    def context(self):
        return f"code {self.code}"

    @property
    def successful(self):
        return self.code == 0

class NoInit(CustomResult):
    def __init__(self):
        pass

async def work(seconds):
    await asyncio.sleep(seconds)
    return b"done"

class Protocols(Workflow):
    iterations = 6

    @step()
    async def timed_call(self) -> Timed[bytes]:
        await asyncio.sleep(0.05)
        result = await self.timed(work(0.01))
        self.check("value", result.value == b"done" and result.seconds > 0.009)
        return result

    @step()
    async def reply(self) -> Reply:
        code = self.vu.iteration % 2
        return Reply(timings={"total": 0.25}, code=code)

    @step()
    async def plain_error(self) -> CustomResult:
        return CustomResult(error=ValueError("wire cut"))

    @step()
    async def no_timing(self) -> CustomResult:
        return CustomResult()

    @step()
    async def timed_failure(self) -> Timed[bytes]:
        return await self.timed(self.fail())

    async def fail(self):
        raise ConnectionError("gone")

    @step()
    async def broken_type(self) -> NoInit:
        return NoInit()

    @step()
    async def wrong_type(self) -> Reply:
        return 7

    @step()
    async def odd_timing(self) -> CustomResult:
        return CustomResult(timings={"total": float("inf")})
"""


def test_timed_calls_and_custom_results(lab: Lab) -> None:
    result = lab.run(PROTOCOLS)
    check_identities(result)
    timed = result.step("timed_call")
    assert timed.ok == 6
    assert timed.min > 0.009 and timed.p(50) < 0.05
    assert result.checks["value"].failed == 0
    reply = result.step("reply")
    assert (reply.ok, reply.failed) == (3, 3)
    assert reply.errors == {"code 1": 3}
    assert reply.p(50) == pytest.approx(0.25, rel=0.01)
    assert result.step("plain_error").errors == {"wire cut": 6}
    assert result.step("no_timing").ok == 6
    assert result.step("timed_failure").errors == {"ConnectionError: gone": 6}
    assert result.step("broken_type").failed == 6
    assert "timings" in next(iter(result.step("broken_type").errors))
    assert result.step("wrong_type").errors == {"returned int instead of its declared result": 6}
    assert result.step("odd_timing").failed == 6


def test_what_the_author_prints_arrives_with_the_users_name(lab: Lab) -> None:
    text = """
    import logging
    print("while loading")

    class Talks(Workflow):
        iterations = 2

        @step()
        async def say(self, url: URL = "/") -> HTTPResponse:
            if self.vu.iteration == 1:
                print("plain", "\\x1b[31mred\\x1b[0m")
                print("half \\ud83d", file=sys.stderr)
                print("no end of line", end="")
                sys.stdout.buffer.write(b"\\xff bytes\\n")
                logging.getLogger("shop").warning("logged %s", 1)
                print("x" * 100_000)
            return await self.client.http.get(url)
    """
    result, lines = lab.run_with_lines(text)
    check_identities(result)
    assert ("", "while loading") in lines
    assert ("[Talks 1]", "plain red") in lines
    assert ("[Talks 1]", "half ?") in lines
    assert any("WARNING shop: logged 1" in line for _, line in lines)
    assert max(len(line) for _, line in lines) <= 2000
    assert result.step("say").ok == 2
