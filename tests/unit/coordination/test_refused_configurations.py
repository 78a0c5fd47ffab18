"""Every configuration that is refused, on whole members: the error names the option, its value,
the rule and what would be right. No text of this module shows a secret."""

from __future__ import annotations

import ast
import asyncio
import math
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from squall.coordination import Coordinator, events
from squall.coordination.errors import ConfigurationError, InvalidIdentifierError
from squall.coordination.records import keys
from squall.coordination.secrets.sources import generate_secret
from squall.coordination.stores.guarded_store import RetrySettings
from squall.coordination.stores.interface import ANY, Append, Put, Remove
from squall.coordination.stores.kinds import ENDING_KINDS
from squall.coordination.stores.memory.store import MemoryStore
from squall.coordination.timing import Timing
from squall.runtime.log import Log, MemorySink
from squall.runtime.real.runtime import RealClock
from tests.lab.programs import ROOT
from tests.lab.secret_watch import Watch

pytestmark = pytest.mark.asyncio
LIBRARY = ROOT / "src" / "squall" / "coordination"
SECRET = generate_secret()

PACES: list[tuple[dict[str, float], str, str]] = [
    (
        {"heartbeat_interval": 10.0, "heartbeat_ttl": 5.0, "lease_ttl": 30.0},
        "heartbeat_ttl",
        "it expires between beats",
    ),
    ({"heartbeat_ttl": 14.0, "dead_after": 44.0}, "heartbeat_ttl", "three beats"),
    (
        {
            "heartbeat_interval": 60.0,
            "heartbeat_ttl": 180.0,
            "dead_after": 210.0,
            "lease_ttl": 180.0,
        },
        "heartbeat_interval",
        "over 5 min",
    ),
    ({"heartbeat_interval": 1.0, "lease_ttl": 3.0}, "heartbeat_interval", "flips"),
    ({"heartbeat_interval": 0.5, "lease_ttl": 2.0}, "heartbeat_interval", "flips"),
    ({"lease_ttl": 14.0}, "lease_ttl", "three renewals"),
    ({"min_epoch_duration": 5.0}, "min_epoch_duration", "at least 60"),
    ({"min_epoch_duration": 59.0}, "min_epoch_duration", "at least 60"),
    ({"monitor_interval": 4.9}, "monitor_interval", "within 5 .. 30"),
    ({"monitor_interval": 30.1, "dead_after": 181.0}, "monitor_interval", "within 5 .. 30"),
]
"""What `unsafe_timings` lifts."""
RELATIONS: list[tuple[dict[str, float], str, str]] = [
    ({"dead_after": 60.0}, "dead_after", "live members would be declared dead"),
    ({"dead_after": 119.0}, "dead_after", "live members would be declared dead"),
    ({"retention": 130.0}, "retention", "a death would be invisible"),
    ({"min_epoch_duration": 301.0}, "min_epoch_duration", "max_epoch_duration"),
]
"""What nothing lifts."""


def check_text(error: BaseException, option: str, value: object, rule: str) -> None:
    text = str(error)
    assert text.startswith(f"{option} is {value!r}: "), text
    assert rule in text, text
    assert re.search(rf"use {option}=\S+(; tests may set unsafe_timings=True)?$", text), text


async def refused(store: Any = "memory:", **options: Any) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as no:
        async with Coordinator(store, **({"secret": SECRET} | options)):
            pass
    return no.value


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[Coordinator]:
    chosen: dict[str, Any] = {"profile": "fast", "unsafe_timings": True, "secret": SECRET}
    async with Coordinator(MemoryStore(RealClock()), **(chosen | options)) as member:
        yield member


@pytest.mark.parametrize(("change", "option", "rule"), PACES)
async def test_a_pace_that_only_tests_may_have(
    change: dict[str, float], option: str, rule: str
) -> None:
    timing = msgspec.structs.replace(Timing(), **change)
    check_text(await refused(profile=timing), option, change[option], rule)
    async with Coordinator("memory:", profile=timing, unsafe_timings=True, secret=SECRET):
        pass
    no = await refused(profile=timing, unsafe_timings=True, environment="production")
    assert "unsafe_timings is True" in str(no)
    check_text(
        await refused(profile=timing, environment="production"), option, change[option], rule
    )


@pytest.mark.parametrize("unsafe", [False, True])
@pytest.mark.parametrize(("change", "option", "rule"), RELATIONS)
async def test_a_relation_that_nothing_lifts(
    change: dict[str, float], option: str, rule: str, unsafe: bool
) -> None:
    timing = msgspec.structs.replace(Timing(), **change)
    no = await refused(profile=timing, unsafe_timings=unsafe)
    check_text(no, option, change[option], rule)


async def test_a_record_must_outlive_a_death_and_a_whole_period_of_cleanup() -> None:
    needed = Timing().dead_after + 300.0
    short = msgspec.structs.replace(Timing(), retention=needed - 1.0)
    check_text(
        await refused(profile=short), "retention", needed - 1.0, "a death would be invisible"
    )
    enough = msgspec.structs.replace(Timing(), retention=needed)
    async with Coordinator("memory:", profile=enough, secret=SECRET):
        pass


@pytest.mark.parametrize(
    ("limits", "rule"),
    [
        ({"timeout_s": math.inf}, "every wait ends"),
        ({"timeout_s": math.nan}, "every wait ends"),
        ({"timeout_s": 0.0}, "every wait ends"),
        ({"timeout_s": -1.0}, "every wait ends"),
        ({"timeout_s": 60.0, "expected_duration": 300.0}, "expected_duration (300)"),
        ({"timeout_s": 86_400.0, "expected_duration": 600.0}, "max_timeout (3600)"),
        ({"timeout_s": 3601.0}, "max_timeout (3600)"),
    ],
)
async def test_a_wait_that_is_too_short_too_long_or_endless(
    limits: dict[str, float], rule: str
) -> None:
    async with running() as member:
        with pytest.raises(ConfigurationError) as no:
            await member.block_until_signal(correlation_id="x", **limits)
        check_text(no.value, "timeout_s", limits["timeout_s"], rule)
        assert await member.signals.open_waits() == ()


async def test_a_wait_of_less_than_twice_the_expected_time_is_warned_about() -> None:
    sink = MemorySink()
    async with running(log=Log(sink, RealClock())) as member:
        for limit_s in (0.15, 0.2):
            with pytest.raises(TimeoutError):
                await member.block_until_signal(timeout_s=limit_s, expected_duration=0.1)
    assert sink.events().count("timeout_is_tight") == 1


@pytest.mark.parametrize("tries", [0, 1, 11, 1_000_000])
async def test_no_retry_and_endless_retry(tries: int) -> None:
    check_text(await refused(max_retries=tries), "max_retries", tries, "within 2 .. 10")
    async with running() as member:
        with pytest.raises(ConfigurationError) as no:
            await member.send_signal_with_retry(member.member_id, "wake", max_retries=tries)
        check_text(no.value, "max_retries", tries, "within 2 .. 10")


@pytest.mark.parametrize("jitter", [0.0, -0.1, 1.0, math.nan])
async def test_a_retry_after_a_fixed_delay(jitter: float) -> None:
    with pytest.raises(ConfigurationError) as no:
        RetrySettings(jitter=jitter)
    check_text(no.value, "jitter", jitter, "at the same moment")


@pytest.mark.parametrize("kind", sorted(ENDING_KINDS))
async def test_a_record_of_a_kind_that_ends_without_an_end(kind: str) -> None:
    async with running() as member:
        with pytest.raises(ConfigurationError) as no:
            await member.parts.patient.write(Put(f"{kind}/x", b"", expect=ANY, ttl_s=None))
        check_text(no.value, "ttl_s", None, f"kind {kind} must end")
        assert await member.store.get(f"{kind}/x") == (None,)


@pytest.mark.parametrize("name", ["*", "a:b", "[ab]", "", "x//y", "../x", "x/..", "é", "x" * 129])
async def test_a_key_that_was_not_built(name: str) -> None:
    async with running() as member:
        for write in (
            Put(name, b"", expect=ANY, ttl_s=60.0),
            Append(name, "i", b"", ttl_s=60.0),
            Remove(name, "1"),
        ):
            with pytest.raises(InvalidIdentifierError):
                await member.store.write(write)
        with pytest.raises(InvalidIdentifierError):
            keys.heartbeat(name)


@pytest.mark.parametrize("name", ["*", "a:b", "x/y", "[ab]", ""])
async def test_an_id_that_could_touch_the_keys_of_others(name: str) -> None:
    if name:
        with pytest.raises(InvalidIdentifierError):
            async with Coordinator("memory:", member_id=name, secret=SECRET):
                pass
    async with running() as member:
        with pytest.raises(InvalidIdentifierError):
            await member.send_signal(name, "wake", allow_unknown=True)


def asks_for_keys(path: Path) -> list[str]:
    """Texts that are, or contain, the command that goes through a whole database."""
    in_script = re.compile(r"redis\.p?call\s*\(\s*['\"]keys['\"]", re.IGNORECASE)
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_command = re.fullmatch(r"KEYS(\s.*)?", node.value.strip()) is not None
            if is_command or in_script.search(node.value):
                found.append(f"{path.name}:{node.lineno}")
    return found


async def test_the_library_never_asks_redis_for_all_keys(tmp_path: Path) -> None:
    for text in ('x.command("KEYS", "*")', "s = \"return redis.call('KEYS', ARGV[1])\""):
        bad = tmp_path / "bad.py"
        bad.write_text(text)
        assert asks_for_keys(bad) == ["bad.py:1"]
    assert [each for path in LIBRARY.rglob("*.py") for each in asks_for_keys(path)] == []


WEAK = {
    "short": "7f3a9c51",
    "well-known": "changeme" * 8,
    "development": "development-secret-0000000000000000",
    "repeated": "ab" * 40,
}


@pytest.mark.parametrize("environment", [None, "staging", "production"])
@pytest.mark.parametrize("weak", WEAK.values(), ids=WEAK.keys())
async def test_a_weak_secret(weak: str, environment: Any) -> None:
    no = await refused(secret=weak, environment=environment)
    assert "the coordination secret" in str(no) and "squall coord secret generate" in str(no)
    no = await refused(secret=[SECRET, weak], environment=environment)
    assert "the coordination secret" in str(no)


async def test_a_weak_secret_is_good_enough_for_development() -> None:
    for weak in WEAK.values():
        async with Coordinator("memory:", secret=weak, environment="development") as member:
            assert member.parts.codec.keyring is not None, "its signals are signed with it"


async def test_a_secret_that_others_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "secret"
    path.write_text(generate_secret())
    path.chmod(0o644)
    source = f"file:{path}"
    no = await refused(secret=None, secret_source=source)
    assert "can be read by others (mode 644)" in str(no)
    path.chmod(0o600)
    async with Coordinator("memory:", secret_source=source):
        pass
    (tmp_path / ".git").mkdir()
    assert "git work tree" in str(await refused(secret=None, secret_source=source))
    monkeypatch.setenv("BLOCKING_COORDINATION_SECRET", generate_secret())
    no = await refused(secret=None, secret_source="env:", strict_secrets=True)
    assert "strict_secrets is set" in str(no)
    no = await refused(secret=SECRET, secret_source="env:")
    assert "use only one" in str(no)


async def test_a_store_is_not_shared_by_two_environments() -> None:
    store = MemoryStore(RealClock())
    async with Coordinator(store, environment="staging", secret=SECRET):
        no = await refused(store, environment="production")
    check = "environment is 'production', but this namespace belongs to 'staging'"
    assert check in str(no)
    assert "environment is 'test'" in str(await refused(environment="test"))


async def test_production_does_not_skip_its_cold_start(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    options: dict[str, Any] = {"environment": "production", "store": url}
    no = await refused(skip_cold_start=True, **options)
    check_text(no, "skip_cold_start", True, "production observes before it elects")
    timing = msgspec.structs.replace(Timing(), cold_start_observation_window=0.0)
    no = await refused(profile=timing, **options)
    check_text(no, "cold_start_observation_window", 0.0, "production observes before it elects")
    # A single process has no other member to observe, but the option is refused all the same.
    no = await refused(environment="production", skip_cold_start=True)
    check_text(no, "skip_cold_start", True, "production observes before it elects")


async def test_load_tests_cannot_switch_fencing_off() -> None:
    """In store mode the switch is not there: nothing outside of the library names it."""
    using = [
        path
        for path in (ROOT / "src" / "squall").rglob("*.py")
        if "epoch_fencing_enabled" in path.read_text(encoding="utf-8")
    ]
    assert using and all(path.is_relative_to(LIBRARY) for path in using)
    sink = MemorySink()
    async with running(epoch_fencing_enabled=False, log=Log(sink, RealClock())):
        await asyncio.sleep(0.1)
    assert "fencing_is_off" in sink.events()


async def test_members_that_work_tell_nothing_either(nothing_secret_is_told: Watch) -> None:
    """So that the watch over this module sees signed records, rejections and failures too."""
    async with running(debug=True) as member:
        told: list[events.SignalRejected] = []
        member.on(events.SignalRejected, told.append)

        def fails(delivery: Any) -> None:
            raise ValueError(f"cannot take {delivery.signal}")

        member.on_signal("job", fails)
        sent = await member.send_signal(member.member_id, "job", payload={"n": 1})
        forged = msgspec.json.encode({"signal_id": "f", "signature": "0" * 64})
        await member.parts.patient.write(
            Append(keys.inbox(member.member_id), "f", forged, ttl_s=60.0)
        )
        watch, wanted = nothing_secret_is_told, ("cannot take", "heartbeat_cycle")
        async with asyncio.timeout(30.0):
            while not told or not all(any(w in t for t in watch.told) for w in wanted):
                await asyncio.sleep(0.05)
        watch.show(sent)
    assert watch.signatures


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("heartbeat_interval", r"use profile=Timing\(heartbeat_interval=\.\.\.\)"),
        ("colour", "colour is not an option; the options are namespace, "),
    ],
)
async def test_an_option_that_does_not_exist_says_what_does(name: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Coordinator("memory:", **{name: 5.0})


async def test_what_is_wrong_is_said_before_anything_is_started() -> None:
    with pytest.raises(ConfigurationError, match="max_retries is 0"):
        Coordinator("memory:", max_retries=0)
    with pytest.raises(ConfigurationError, match="secret is None"):
        Coordinator("redis://localhost:6379/0")
    with pytest.raises(ConfigurationError, match="the database after the slash must be a number"):
        Coordinator("redis://localhost:6379/abc", secret=SECRET)
    with pytest.raises(ConfigurationError, match="etcd: is not a store"):
        Coordinator("etcd://localhost", secret=SECRET)
    with pytest.raises(ConfigurationError, match="tests may set unsafe_timings=True"):
        Coordinator("memory:", profile="fast")
