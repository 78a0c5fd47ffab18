"""A follower that has lost its manager says so at once and keeps saying it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from squall.cli.shared import job_progress
from squall.cli.shared.job_progress import JobFollower
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.messages import Followed


class Client:
    """Out of contact until `back`."""

    managers = SimpleNamespace(is_store=False, shown="m1:1")

    def __init__(self) -> None:
        self.back = asyncio.Event()
        self.lost_s = 0.0

    def out_of_contact_s(self) -> tuple[float, float]:
        if self.back.is_set():
            return 0.0, 0.0
        self.lost_s += 1.0
        return self.lost_s, 60.0 - self.lost_s

    async def follow(
        self, job: JobId, after: int, *, known: bool, histograms: bool
    ) -> AsyncIterator[Followed]:
        await self.back.wait()
        await asyncio.sleep(0.05)
        yield Followed(upto=1, items=[], state="completed")


@pytest.mark.asyncio
async def test_lost_contact_is_reported_at_once_again_and_when_it_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_progress, "CONTACT_POLL_S", 0.001)
    client, lines = Client(), list[str]()
    presenter = SimpleNamespace(
        wants_histograms=False,
        on_controls=lambda interrupt: None,
        on_log=lambda prefix, text: lines.append(text),
    )
    follower = JobFollower(
        cast("Any", client), JobId("g-1"), cast("Any", presenter), shows_events=False
    )
    following = asyncio.ensure_future(follower.follow())
    while len(lines) < 3:
        await asyncio.sleep(0.001)
    client.back.set()
    await following
    assert lines[0] == (
        "no manager answers for 1 s: what is shown of job g-1 is old; its load may go on; "
        "trying for 59 s more"
    )
    assert [text[:29] for text in lines[1:3]] == [
        "no manager answers for 6 s: w",
        "no manager answers for 11 s: ",
    ]
    assert lines[-1] == "a manager answers again"
