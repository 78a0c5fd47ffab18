"""Every option, timing and argument is checked by one mechanism, before anything is started."""

from __future__ import annotations

import asyncio
import functools
import math
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from squall.api.errors import ConfigError
from squall.coordination import Coordinator, Queue, RunRecord, Scheduler, Timing, Ttl, Work
from squall.coordination.errors import ConfigurationError
from squall.coordination.options import OPTION_SPECS, Options, OptionValues
from squall.coordination.timing import TIMING_RULES, TIMING_TEXTS

# Of every kind of mistake one, for every name: what a rule accepts is left out.
WRONG: tuple[Any, ...] = (
    *(None, True, "", "x", b"x", 0, -1, 2, 1.5, -0.5, 10**9, math.nan, math.inf, -math.inf),
    *([], {}, (), ["x", 1], object(), object, lambda: None),
)
SECRETS = {"secret"}


def refused(name: str, value: object, call: Callable[[], object]) -> None:
    with pytest.raises(ConfigurationError) as no:
        call()
    text = str(no.value)
    assert text.startswith(f"{name} is "), text
    assert f"; use {name}=" in text, text
    assert "\n" not in text
    if name in SECRETS:
        assert repr(value) not in text


@pytest.mark.parametrize("name", OPTION_SPECS)
def test_an_option_refuses_every_wrong_type_and_value(name: str) -> None:
    rule = OPTION_SPECS[name].rule
    wrong = [value for value in WRONG if not rule.accepts(value)]
    assert len(wrong) >= 10
    for value in wrong:
        refused(name, value, lambda value=value: Coordinator("memory:", **{name: value}))


@pytest.mark.parametrize("name", TIMING_RULES)
def test_a_timing_refuses_every_wrong_type_and_value(name: str) -> None:
    wrong = [value for value in WRONG if not TIMING_RULES[name].accepts(value)]
    assert len(wrong) >= 10
    for value in wrong:
        timing = Timing(**{name: value})
        refused(name, value, lambda timing=timing: Coordinator("memory:", profile=timing))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("retry_base", -1),
        ("retry_base", 0),
        ("ack_timeout", 0.0),
        ("max_timeout", -5.0),
        ("max_inbox", 0),
        ("cleanup_delay", -1.0),
        ("max_clock_skew", -1.0),
        ("metrics_port", 70_000),
        ("metrics_port", True),
        ("keep_heartbeats", 21),
        ("eligible", 1),
        ("debug", "yes"),
        ("metadata", {"a": 1}),
        ("namespace", 5),
        ("environment", "prod"),
        ("profile", "quick"),
        ("contention_threshold", 1.0),
        ("secret", 1234),
        ("secret", ["a", 5]),
    ],
)
def test_these_are_refused(option: str, value: object) -> None:
    refused(option, value, lambda: Coordinator("memory:", **{option: value}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("secret", lambda: Coordinator("memory:", secret=[])),
        ("the coordination secret", lambda: Coordinator("memory:", secret="")),
        ("the coordination secret", lambda: Coordinator("memory:", secret="short")),
        ("secret_source", lambda: Coordinator("memory:", secret_source="nope:")),
        ("secret_source", lambda: Coordinator("memory:", secret_source="file:")),
        ("secret_source", lambda: Coordinator("memory:", secret_source="/etc/secret")),
        ("'a b'", lambda: Coordinator("memory:", member_id="a b")),
        ("'a/b'", lambda: Coordinator("memory:", member_id="a/b")),
        ("log", lambda: Coordinator("memory:", log=3)),  # type: ignore[arg-type]
        ("registry", lambda: Coordinator("memory:", registry=3)),  # type: ignore[arg-type]
        ("plugin", lambda: Coordinator("memory:", 5)),  # type: ignore[arg-type]
        ("plugin", lambda: Coordinator("memory:", Queue)),  # type: ignore[arg-type]
        ("store", lambda: Coordinator(5)),  # type: ignore[arg-type]
        ("store", lambda: Coordinator(None)),  # type: ignore[arg-type]
        (
            "skip_cold_start",
            lambda: Coordinator("memory:", environment="production", skip_cold_start=True),
        ),
        ("seconds", lambda: Scheduler().every(0)),
        ("seconds", lambda: Scheduler().every(-1.0)),
        ("seconds", lambda: Scheduler().every(math.nan)),
    ],
)
def test_the_constructor_refuses(name: str, make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError) as no:
        make()
    text = str(no.value)
    assert re.match(rf"{name} (is|has|cannot) ", text) and "short" not in text, text


def test_the_defaults_are_accepted_and_the_tables_have_every_name() -> None:
    for each in fields(Options):
        value = getattr(Options(), each.name)
        assert OPTION_SPECS[each.name].rule.accepts(value), each.name
    names = [each.name for each in fields(Options)]
    assert names == list(OPTION_SPECS) == list(OptionValues.__annotations__)
    assert list(Timing.__struct_fields__) == list(TIMING_TEXTS)
    for spec in OPTION_SPECS.values():
        assert spec.text


def sync(*_: object) -> None: ...


async def fine(*_: object) -> None: ...


class Callable_:
    async def __call__(self, *_: object) -> None: ...


def wrapped() -> Callable[..., Any]:
    @functools.wraps(fine)
    def wrapper(*arguments: object) -> Any:
        return fine(*arguments)

    return wrapper


def declare(handler: Any) -> None:
    Scheduler().every(1.0, name="job")(handler)


AWAITED: dict[str, tuple[str, Callable[[Any], object]]] = {
    "on_become": ("on_become", lambda f: Coordinator("memory:", on_become=f)),
    "on_stop": ("on_stop", lambda f: Coordinator("memory:", on_stop=f)),
    "work": ("work", lambda f: Coordinator("memory:", work=f)),
    "Work": ("periodic", lambda f: Work("mine", periodic=f)),
    "job": ("handler", declare),
    "ttl": ("callback", lambda f: Ttl().register("x", expires_after=1.0, callback=f)),
}


@pytest.mark.parametrize("place", AWAITED)
def test_a_function_that_is_awaited_must_be_async(place: str) -> None:
    name, give = AWAITED[place]
    refused(name, sync, lambda: give(sync))
    refused(name, 5, lambda: give(5))
    for good in (fine, Callable_(), functools.partial(fine, 1), wrapped(), lambda *_: fine()):
        give(good)


@pytest.mark.asyncio
async def test_a_sync_handler_of_a_queue_is_refused_at_once_and_no_ticket_is_taken() -> None:
    queue = Queue("mail")
    async with Coordinator("memory:", queue, profile="fast", unsafe_timings=True):
        ticket_id = await queue.enqueue(1)
        with pytest.raises(ConfigurationError, match=r"async def.*to_thread"):
            await asyncio.wait_for(queue.consume(sync), 5.0)  # type: ignore[arg-type]
        assert await queue.final(ticket_id) is None


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("max_attempts", lambda: Queue(max_attempts=0)),
        ("window", lambda: Queue(window="5")),  # type: ignore[arg-type]
        ("max_pending", lambda: Queue(max_pending=1.5)),  # type: ignore[arg-type]
        ("retry_base", lambda: Queue(retry_base=-1.0)),
        ("visibility_timeout", lambda: Queue(visibility_timeout=0.0)),
        ("ttl_interval", lambda: Ttl(ttl_interval=-1.0)),
        ("expires_after", lambda: Ttl().register("x", expires_after=math.nan)),
        ("action", lambda: Ttl().register("x", expires_after=1.0, action="drop")),  # type: ignore[arg-type]
        ("member_id", lambda: Coordinator("memory:", member_id=5)),  # type: ignore[arg-type]
        ("work_interval", lambda: Coordinator("memory:", work_interval=-1.0)),
        ("interval", lambda: Work("mine", interval=0.0)),
    ],
)
def test_arguments_of_plugins_and_members(name: str, make: Callable[[], object]) -> None:
    refused(name, None, make)


def test_a_job_handler_is_named_after_its_function() -> None:
    scheduler = Scheduler()

    @scheduler.every(1.0)
    async def tick(run: RunRecord) -> None: ...

    assert list(scheduler.handlers) == ["tick"]
