"""What a group asks of S3: the stated figures against counted requests."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from squall.cli.main import main
from squall.coordination.coordinator import Coordinator
from squall.coordination.operations import cost
from squall.coordination.stores.open import make_store
from squall.coordination.timing import PROFILES, Timing
from squall.runtime.real.runtime import RealClock
from tests.services.coordination.lab.faulty_s3 import FaultyS3
from tests.services.coordination.lab.places import BUCKET

MEMBERS = 3
COUNTED_S = 6.0
TIMING = Timing(
    heartbeat_interval=1.0,
    heartbeat_ttl=12.0,
    dead_after=15.0,
    monitor_interval=1.0,
    lease_ttl=6.0,
    min_epoch_duration=0.0,
    cold_start_observation_window=0.0,
    cold_start_preparation_delay=0.0,
)


def test_ten_members_are_864_000_puts_a_month(capsys: pytest.CaptureFixture[str]) -> None:
    asked = cost.s3_requests(PROFILES["s3"], 10)
    beats = cost.beats_an_hour(PROFILES["s3"], 10)
    assert beats * cost.HOURS_A_MONTH == pytest.approx(864_000.0)
    assert beats * cost.HOURS_A_MONTH * cost.WRITE_PRICE == pytest.approx(4.32)
    assert main(["coord", "cost", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["usd_a_month"] == pytest.approx(asked.price * cost.HOURS_A_MONTH)
    assert shown["usd_a_month"] > 4.32
    assert main(["coord", "cost"]) == 0
    text = capsys.readouterr().out
    assert "of which heartbeats 1,200" in text and f"{shown['usd_a_month']:.2f} USD" in text


def test_more_members_and_waits_cost_more_and_a_redis_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    few, many = (cost.s3_requests(PROFILES["s3"], number).price for number in (10, 1000))
    assert 100.0 * few > many > 10.0 * few
    assert cost.s3_requests(PROFILES["s3"], 10, waits=5).price > few
    assert main(["coord", "cost", "--store", "redis://any", "--members", "1000"]) == 0
    assert capsys.readouterr().out.startswith("720,000 heartbeats an hour")
    words = ("--store", "redis://any", "--profile", "auto", "--members", "1000")
    assert main(["coord", "cost", *words]) == 0
    assert capsys.readouterr().out.startswith(
        "360,000 heartbeats an hour of 1000 members with large"
    )


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("--members", "0"), 2, "--members 0"),
        (("--waits", "-1"), 2, "--waits"),
        (("--profile", "quick"), 104, "profile is 'quick'"),
        (("--store", "ftp://x"), 104, "ftp: is not a kind of store"),
    ],
)
def test_a_mistake_about_cost_is_one_line(
    words: tuple[str, ...], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["coord", "cost", *words]) == code
    shown = capsys.readouterr().err
    assert text in shown and shown.count("\n") == 1


@pytest.mark.asyncio
async def test_members_ask_what_was_stated(s3_endpoint: str) -> None:
    proxy = FaultyS3(s3_endpoint)
    url = f"s3://{BUCKET}/cost?endpoint={proxy.endpoint}&region=us-east-1"
    options = {"profile": TIMING, "unsafe_timings": True, "secret": "0123456789abcdef" * 4}
    async with AsyncExitStack() as stack:
        stack.callback(proxy.close)
        for number in range(MEMBERS):
            store = make_store(url, RealClock(), random.Random(), prefix="cost")
            stack.push_async_callback(store.close)
            member = Coordinator(store, member_id=f"m{number}", **options)
            await stack.enter_async_context(member)
            await member.ensure_coordinator(timeout_s=60.0)
        await asyncio.sleep(2.0)
        proxy.requests.clear()
        begun = asyncio.get_running_loop().time()
        await asyncio.sleep(COUNTED_S)
        counted = Counter(proxy.requests)
        lasted_s = asyncio.get_running_loop().time() - begun
    stated = cost.s3_requests(TIMING, MEMBERS)
    # Cleanup and count come every five minutes, not in these seconds; a busy machine is slower
    # than its timers, and what is answered late is asked less often.
    an_hour = 3600.0 / lasted_s
    assert 0.5 < counted["PUT"] * an_hour / stated.writes < 1.25
    assert 0.5 < counted["LIST"] * an_hour / (stated.lists - 12.0 * 9.0) < 1.25
    assert 0.5 < counted["GET"] * an_hour / stated.reads < 1.35, counted
