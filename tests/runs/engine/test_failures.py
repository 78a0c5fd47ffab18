"""What counts as a failure, how long it took, and what goes on after it."""

from __future__ import annotations

import re

import pytest

from tests.runs.lab.run import Lab, check_counts, check_identities

FAILURES = """
class GoesOn(Workflow):
    iterations = 10

    @step()
    async def broken(self, url: URL = "/broken?status=500") -> HTTPResponse:
        return await self.client.http.get(url)

    @then()
    async def after(self, broken: HTTPResponse, url: URL = "/after_broken") -> HTTPResponse:
        self.check("got the failed response", broken.status_code == 500)
        return await self.client.http.get(url)


class Stops(Workflow):
    iterations = 4

    @step()
    async def raising(self, url: URL = "/raising") -> HTTPResponse:
        await self.client.http.get(url)
        raise ValueError("no good")

    @then()
    async def never(self, raising: HTTPResponse, url: URL = "/never") -> HTTPResponse:
        return await self.client.http.get(url)


class AssertAfter(Workflow):
    iterations = 3

    @step()
    async def late_assert(self, url: URL = "/late_assert?delay=60ms") -> HTTPResponse:
        response = await self.client.http.get(url)
        assert response.status_code == 201, "not created"
        return response


class AssertBefore(Workflow):
    iterations = 3

    @step()
    async def early_assert(self, url: URL = "/early_assert") -> HTTPResponse:
        assert "key" in self.context, "no key"
        return await self.client.http.get(url)


class ForgottenAwait(Workflow):
    iterations = 3

    @step()
    async def forgot(self, url: URL = "/forgot") -> HTTPResponse:
        return self.client.http.get(url)

    @then()
    async def never_either(self, url: URL = "/never") -> HTTPResponse:
        return await self.client.http.get(url)


class ForgottenInAction(Workflow):
    iterations = 3

    @step()
    async def plain(self) -> dict:
        return asyncio.sleep(0)

    @then()
    async def never_again(self, url: URL = "/never") -> HTTPResponse:
        return await self.client.http.get(url)


class NoReturn(Workflow):
    iterations = 3

    @step()
    async def nothing(self, url: URL = "/nothing") -> HTTPResponse:
        await self.client.http.get(url)


class RaiseForStatus(Workflow):
    iterations = 3

    @step()
    async def strict(self, url: URL = "/strict?status=503") -> HTTPResponse:
        response = await self.client.http.get(url)
        response.raise_for_status()
        return response

    @then()
    async def never_more(self, url: URL = "/never") -> HTTPResponse:
        return await self.client.http.get(url)


class Expected(Workflow):
    iterations = 3

    @step(expect=[404])
    async def missing(self, url: URL = "/missing") -> HTTPResponse:
        return await self.client.http.get(url)

    @then(expect="2xx")
    async def found(self, url: URL = "/found?status=302") -> HTTPResponse:
        return await self.client.http.get(url, redirects=0)


class OwnLimit(Workflow):
    iterations = 2

    @step()
    async def limited(self, url: URL = "/limited?hang=1") -> HTTPResponse:
        async with asyncio.timeout(0.05):
            return await self.client.http.get(url)


class Flaky(Workflow):
    iterations = 4

    @step()
    async def keyed(self, url: URL = "/keyed") -> HTTPResponse:
        response = await self.client.http.get(url)
        if self.vu.iteration % 2:
            {}["absent"]
        return response


class BrokenText(Workflow):
    iterations = 2

    @step()
    async def unprintable(self, url: URL = "/") -> HTTPResponse:
        class Odd(Exception):
            def __str__(self):
                raise RuntimeError("no text either")
        raise Odd()


class HalfSurrogate(Workflow):
    iterations = 2

    @step()
    async def cut_emoji(self, url: URL = "/") -> HTTPResponse:
        self.check("half \\ud83d", True)
        raise ValueError("half \\ud83d of it")
"""


def test_every_kind_of_failure(lab: Lab) -> None:
    result = lab.run(FAILURES)
    counts = lab.target.counts()
    check_counts(result, counts)
    paths = counts["paths"]

    assert result.step("broken").errors == {"500 Internal Server Error": 10}
    assert result.step("after").ok == 10
    assert result.checks["got the failed response"].passed == 10
    assert result.workflow("GoesOn").iteration.failed == 10, "a failed step fails its iteration"

    assert result.step("raising").errors == {"ValueError: no good": 4}
    assert result.step("never").count == 0
    assert "/never" not in paths

    late = result.step("late_assert")
    assert late.errors == {"AssertionError: not created": 3}
    assert late.p(50) > 0.050, "the latency of the exchange before it"

    early = result.step("early_assert")
    assert early.errors == {"AssertionError: no key": 3}
    assert result.outcome.stats.workflows["AssertBefore"].rows["early_assert"].service.count == 0
    assert "/early_assert" not in paths

    forgot = result.step("forgot").errors
    assert list(forgot.values()) == [3]
    assert "write await in front of the call" in next(iter(forgot))
    plain = result.workflow("ForgottenInAction").step("plain")
    assert plain.failed == 3
    assert "await" in next(iter(plain.errors))
    odd = "returned NoneType instead of an HTTPResponse: write return"
    assert result.step("nothing").errors == {odd: 3}
    for name in ("nothing", "forgot"):
        (sample,) = [e for e in result.outcome.stats.errors.values() if e.row == name]
        assert re.fullmatch(rf".*flow\.py:\d+ in {name}", sample.location)

    strict = result.step("strict")
    assert strict.errors == {"503 Service Unavailable": 3}
    assert strict.p(50) > 0

    assert result.step("missing").ok == 3
    assert result.step("found").failed == 3

    assert result.step("limited").errors == {"TimeoutError": 2}

    keyed = result.step("keyed")
    assert (keyed.ok, keyed.failed) == (2, 2)
    assert keyed.errors == {"KeyError: 'absent'": 2}

    assert list(result.step("unprintable").errors.values()) == [2]
    assert result.step("cut_emoji").errors == {"ValueError: half ? of it": 2}
    assert result.checks["half ?"].passed == 2

    samples = result.outcome.stats.error_samples("Stops", "raising")
    assert len(samples) == 1
    assert samples[0].location.endswith("flow.py:21 in raising")
    assert "ValueError: no good" in (samples[0].traceback or "")


def test_the_latency_after_an_exchange_is_known_in_every_shape(lab: Lab) -> None:
    text = """
    class Alternatives(Workflow):
        iterations = 6

        @step(weight=1)
        async def left(self, url: URL = "/left?delay=50ms") -> HTTPResponse:
            await self.client.http.get(url)
            raise ValueError("left")

        @step(weight=1)
        async def right(self, url: URL = "/right?delay=50ms") -> HTTPResponse:
            await self.client.http.get(url)
            raise ValueError("right")

    class Diamond(Workflow):
        iterations = 4

        @step()
        async def top(self, url: URL = "/top?delay=50ms") -> HTTPResponse:
            if self.vu.iteration == 2:
                raise ValueError("before any exchange")
            response = await self.client.http.get(url)
            if self.vu.iteration == 1:
                raise ValueError("after the exchange")
            return response

        @step("top")
        async def a(self, url: URL = "/a") -> HTTPResponse:
            return await self.client.http.get(url)

        @step("top")
        async def b(self, url: URL = "/b?delay=50ms") -> HTTPResponse:
            await self.client.http.get(url)
            raise ValueError("b")
    """
    result = lab.run(text)
    check_counts(result, lab.target.counts())
    both = [result.step("left"), result.step("right")]
    assert sum(step.count for step in both) == 6
    for step in both:
        assert step.count == 0 or step.min > 0.040
    rows = result.outcome.stats.workflows["Diamond"].rows
    top = rows["top"].outcomes
    assert top["ValueError: after the exchange"].service.count == 1
    assert top["ValueError: before any exchange"].service.count == 0
    assert rows["a"].ok == 2
    assert rows["b"].outcomes["ValueError: b"].service.min_s > 0.040


NO_ERRORS = """
class Exits(Workflow):
    vus = 2
    iterations = 6

    @step()
    async def leave(self, url: URL = "/leave") -> HTTPResponse:
        await self.client.http.get(url)
        sys.exit(3)

class Interrupts(Workflow):
    iterations = 3

    @step()
    async def ctrl_c(self, url: URL = "/ctrl_c") -> HTTPResponse:
        raise KeyboardInterrupt

class Cancels(Workflow):
    iterations = 3

    @step()
    async def child(self, url: URL = "/child") -> HTTPResponse:
        task = asyncio.create_task(asyncio.sleep(10))
        await asyncio.sleep(0)
        task.cancel()
        await task

class CancelsItself(Workflow):
    iterations = 3

    @step()
    async def oneself(self, url: URL = "/oneself") -> HTTPResponse:
        asyncio.current_task().cancel()
        return await self.client.http.get(url)

class Siblings(Workflow):
    iterations = 3

    @step()
    async def quits(self, url: URL = "/quits") -> HTTPResponse:
        raise SystemExit("enough")

    @step()
    async def stays(self, url: URL = "/stays") -> HTTPResponse:
        return await self.client.http.get(url)

    @step()
    async def is_cancelled(self, url: URL = "/is_cancelled") -> HTTPResponse:
        raise asyncio.CancelledError

class Hooks(Workflow):
    iterations = 3

    @step()
    async def fine(self, url: URL = "/fine") -> HTTPResponse:
        return await self.client.http.get(url)

    @check("fine")
    def exits(self, fine: HTTPResponse) -> bool:
        return sys.exit(1)

    @check("fine")
    async def cancelled(self, fine: HTTPResponse) -> bool:
        raise asyncio.CancelledError

    @metric("fine")
    def interrupts(self, fine: HTTPResponse) -> float:
        raise KeyboardInterrupt

class Ends(Workflow):
    iterations = 1

    @step()
    async def only(self, url: URL = "/only") -> HTTPResponse:
        return await self.client.http.get(url)

    @action(at="end")
    async def goodbye(self) -> None:
        sys.exit(1)
"""


def test_exceptions_that_are_no_errors_fail_the_step_and_keep_the_user(lab: Lab) -> None:
    result = lab.run(NO_ERRORS)
    check_counts(result, lab.target.counts())
    assert result.outcome.processes[0].died == ""
    assert result.step("leave").errors == {"SystemExit: 3": 6}
    assert result.step("ctrl_c").errors == {"KeyboardInterrupt": 3}
    assert result.step("child").errors == {"CancelledError": 3}
    assert result.step("oneself").errors == {"CancelledError": 3}
    assert result.step("quits").errors == {"SystemExit: enough": 3}
    assert result.step("stays").ok == 3
    assert result.step("is_cancelled").errors == {"CancelledError": 3}
    assert result.step("fine").ok == 3
    assert result.checks["exits"].failed == result.checks["cancelled"].failed == 3
    assert result.step("only").ok == 1
    assert {each.status for each in result.outcome.workflows} == {"completed"}


@pytest.mark.usefixtures("no_start_is_dropped")
def test_memory_is_bounded_whatever_the_author_names(lab: Lab) -> None:
    text = """
    class Names(Workflow):
        rate = "1000/s"  # an open model does not rest after failures
        duration = "1s"

        @step()
        async def unique(self, url: URL = "/") -> HTTPResponse:
            number = self.vu.id * 100_000 + self.vu.iteration
            self.check(f"check {number}", True)
            if number % 2 == 0:
                await self.client.http.get(url, name=f"call {number}")
            raise ValueError(f"failure {number} " + "x" * 100_000)

    class Customs(Workflow):
        iterations = 1000

        @step()
        async def custom(self) -> CustomResult:
            return CustomResult(error=f"reason {self.vu.iteration}")
    """
    result = lab.run(text)
    check_counts(result, lab.target.counts())
    stats = result.outcome.stats.workflows["Names"]
    assert stats.rows["unique"].failed == 1000
    assert len(stats.rows["unique"].outcomes) <= 251
    assert all(len(reason) <= 200 for reason in stats.rows["unique"].outcomes)
    assert sum(check.passed for check in stats.checks.values()) == 1000
    assert len(stats.checks) <= 201
    assert sum(row.count for name, row in stats.rows.items() if name != "unique") > 300
    assert len(stats.rows) <= 202
    assert result.step("custom").failed == 1000
    assert len(result.outcome.stats.errors) <= 300
    check_identities(result)


ON_FAILURE = """
class Stops(Workflow):
    iterations = 3
    on_failure = "stop"

    @step(on_failure="continue")
    async def tolerated(self, url: URL = "/tolerated?status=500") -> HTTPResponse:
        return await self.client.http.get(url)

    @then()
    async def refused(self, url: URL = "/refused?status=404") -> HTTPResponse:
        return await self.client.http.get(url)

    @then()
    async def never(self, url: URL = "/never") -> HTTPResponse:
        return await self.client.http.get(url)

class Beside(Workflow):
    iterations = 3

    @step(on_failure="stop")
    async def left(self, url: URL = "/left?status=500") -> HTTPResponse:
        return await self.client.http.get(url)

    @step()
    async def right(self, url: URL = "/right?status=500") -> HTTPResponse:
        return await self.client.http.get(url)

    @step("left", "right")
    async def not_after(self, url: URL = "/not_after") -> HTTPResponse:
        return await self.client.http.get(url)

class Custom(Workflow):
    iterations = 3

    @step(on_failure="stop")
    async def own(self) -> CustomResult:
        return CustomResult(timings={"total": 0.1}, error="refused")

    @then()
    async def not_then(self, url: URL = "/not_then") -> HTTPResponse:
        return await self.client.http.get(url)
"""


def test_a_failed_status_stops_the_iteration_where_the_author_says_so(lab: Lab) -> None:
    result = lab.run(ON_FAILURE)
    paths = lab.target.counts()["paths"]
    assert paths == dict.fromkeys(("/tolerated", "/refused", "/left", "/right"), 3)
    check_identities(result)
