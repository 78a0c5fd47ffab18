"""Gauges that alerts watch, the age of the secret, the binding to an environment, the secret
from a source that changes while members run."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
import yaml

from squall.coordination.coordinator import Coordinator
from squall.coordination.errors import ConfigurationError
from squall.coordination.members.housekeeping import (
    CLEANUP_S,
    METRICS_INTERVAL_S,
    NamespaceMeta,
    read_meta,
    write_meta,
)
from squall.coordination.records import keys
from squall.coordination.secrets.sources import generate_secret
from squall.coordination.stores.interface import ANY, Delete, Put
from squall.coordination.stores.memory.store import MemoryStore
from squall.runtime.metrics import Registry
from squall.runtime.real.runtime import RealClock
from tests.lab.programs import ROOT
from tests.unit.coordination.lab.world import FAST, SECRET, Lab, play

METRIC = re.compile(r"\b(?:coordination|signal|timeout|cleanup|active|blocking)_\w+")
ONLY_REDIS = {"coordination_store_memory_bytes", "coordination_store_memory_max_bytes"}
ONLY_AFTER_A_WAIT = {
    "blocking_coordination_duration_seconds_bucket",
    "blocking_coordination_duration_seconds_count",
}


def value_of(registry: Registry, series: str) -> float:
    for line in registry.exposition().splitlines():
        if line.startswith(series):
            return float(line.rpartition(" ")[2])
    raise AssertionError(f"{series} is not exported")


def test_every_series_that_an_alert_watches_is_there_before_it_happens() -> None:
    rules = yaml.safe_load((ROOT / "deploy/coordination/rules.yml").read_text(encoding="utf-8"))
    alerts = [rule for group in rules["groups"] for rule in group["rules"] if "alert" in rule]
    named = {name for rule in alerts for name in METRIC.findall(rule["expr"])}
    registry = Registry()

    async def script(lab: Lab) -> None:
        lab.start("a", registry=registry)
        await lab.led()
        await asyncio.sleep(METRICS_INTERVAL_S * 1.5)

    play(script)
    shown = {re.split(r"[{ ]", line)[0] for line in registry.exposition().splitlines()}
    assert named - shown <= ONLY_REDIS | ONLY_AFTER_A_WAIT
    assert named & shown


def test_the_coordinator_counts_keys_and_cleans_up() -> None:
    registry = Registry()

    async def script(lab: Lab) -> None:
        lab.start("a", registry=registry)
        await lab.led()
        stale = Put(keys.heartbeat("gone"), b"{}", expect=ANY, ttl_s=60.0)
        await lab.store.write(stale)
        await asyncio.sleep(METRICS_INTERVAL_S * 1.5)
        assert value_of(registry, 'coordination_keys{kind="heartbeat",namespace="default"}') == 2
        await asyncio.sleep(3 * CLEANUP_S)
        assert (await lab.store.get(keys.heartbeat("gone"))) == (None,)
        listed = await lab.store.list(keys.HEARTBEAT)
        assert [entry.key for entry in listed.entries] == [keys.heartbeat("a")]
        done = 'coordination_cleanups_total{namespace="default",result="done"}'
        assert value_of(registry, done) >= 1
        assert value_of(registry, "cleanup_duration_seconds_count") >= 1

    play(script)


def test_the_age_of_the_secret_is_that_of_its_first_use_by_anybody() -> None:
    registry = Registry()

    async def script(lab: Lab) -> None:
        lab.start("a")
        await lab.led()
        await asyncio.sleep(1000.0)
        lab.start("b", registry=registry)
        await lab.ready("b")
        age = value_of(registry, "coordination_secret_age_seconds")
        assert 1000.0 <= age < 1010.0

    play(script)


def test_a_member_of_another_environment_is_refused() -> None:
    async def run() -> None:
        store = MemoryStore(RealClock())
        options = {"profile": FAST, "unsafe_timings": True, "secret": SECRET}
        async with Coordinator(store, environment="development", **options):  # type: ignore[arg-type]
            other = Coordinator(store, environment="staging", **options)  # type: ignore[arg-type]
            with pytest.raises(ConfigurationError, match="belongs to 'development'"):
                await other.start()

    asyncio.run(run())


@pytest.mark.parametrize("secret", ["", "short", "password" * 5, "f00d" * 16, "a" * 64])
def test_a_weak_secret_is_refused_however_it_is_given(secret: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Coordinator("memory:", profile=FAST, unsafe_timings=True, secret=secret)
    assert not secret or secret not in str(caught.value)


def test_two_places_for_a_secret_are_one_too_many() -> None:
    with pytest.raises(ConfigurationError, match="both given"):
        Coordinator(
            "memory:", profile=FAST, unsafe_timings=True, secret=SECRET, secret_source="env:"
        )


def test_a_secret_in_a_file_is_changed_while_members_talk(tmp_path: Path) -> None:
    """Old, both, new: no member restarts and no signal is refused."""
    old, new = generate_secret(), generate_secret()
    file = tmp_path / "secret"
    file.touch(0o600)
    file.write_text(old)
    registry = Registry()

    async def run() -> None:
        store = MemoryStore(RealClock())

        def member(name: str) -> Coordinator:
            return Coordinator(
                store,
                member_id=name,
                profile=FAST,
                unsafe_timings=True,
                secret_source=f"file:{file}",
                registry=registry,
            )

        async with member("one") as one, member("two") as two:
            await two.ensure_coordinator()
            for each in (one, two):
                each.on_signal("note", lambda delivery: None)
            for text in (f"{old}\n{new}\n", f"{old}\n{new}\n", new):
                file.write_text(text)
                for each in (one, two):
                    await each.reread_secrets()
                    await one.send_signal_with_retry("two", "note")
                    await two.send_signal_with_retry("one", "note")
                if text != new:
                    await _all_sign_with_the_newest(one, two)
            file.write_text("")
            assert not await one.reread_secrets()
            await one.send_signal_with_retry("two", "note")

    asyncio.run(run())
    refused = [
        line
        for line in registry.exposition().splitlines()
        if line.startswith("coordination_signals_rejected_total{") and not line.endswith(" 0.0")
    ]
    assert refused == []
    assert value_of(registry, "coordination_secret_read_failures_total") == 1


async def _all_sign_with_the_newest(*members: Coordinator) -> None:
    async with asyncio.timeout(20.0):
        while True:
            rings = [member.parts.codec.keyring for member in members]
            if all(ring is not None and ring.signing_id == ring.key_ids[-1] for ring in rings):
                return
            await asyncio.sleep(0.02)


def lose(lab: Lab) -> None:
    """The store loses everything, as a Redis that is restarted empty."""
    lab.store.__init__(lab.store._clock)  # pyright: ignore[reportPrivateUsage]


def test_a_store_that_lost_its_data_belongs_to_the_same_environment_again() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a", "b", environment="development")
        await lab.ready("a", "b")
        (before,) = await lab.store.get(keys.META)
        assert before is not None
        await asyncio.sleep(60.0)
        lose(lab)
        await asyncio.sleep(5.0)
        (after,) = await lab.store.get(keys.META)
        assert after is not None
        # Also since when each key is known: the age of the secret goes on.
        kept, was = read_meta(after.value), read_meta(before.value)
        assert kept is not None and was is not None
        assert (kept.environment, kept.keys_seen_ms) == ("development", was.keys_seen_ms)

    play(script)


def test_a_meta_record_alone_that_is_lost_comes_back() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a", environment="development")
        await lab.led()
        await lab.store.write(Delete(keys.META, ANY))
        await asyncio.sleep(METRICS_INTERVAL_S * 1.5)
        (after,) = await lab.store.get(keys.META)
        assert after is not None and b"development" in after.value

    play(script)


def test_members_do_not_come_back_into_a_store_of_another_environment() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a", environment="development")
        await lab.led()
        lose(lab)
        # A member of another environment was quicker.
        meta = write_meta(NamespaceMeta(environment="staging"), None)
        await lab.store.write(Put(keys.META, meta, expect=ANY, ttl_s=None))
        for _ in range(20):
            await lab.store.write(Put(keys.heartbeat("x"), b"{}", expect=ANY, ttl_s=60.0))
            await asyncio.sleep(1.0)
        assert await lab.store.get(keys.member("a"), keys.heartbeat("a")) == (None, None)
        assert lab.members["a"].isolated and not lab.members["a"].is_coordinator
        await lab.store.write(Delete(keys.META, ANY))
        await lab.led()

    play(script)
