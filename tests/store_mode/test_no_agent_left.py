"""When no agent is left, the submitter gets one line that says so and what to do next."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from squall.api.errors import ExitCode
from squall.cli.shared.job_progress import JobFollower
from squall.cluster.client.errors import Unreachable
from squall.cluster.protocol.job_keys import JobId

URL = "redis://10.0.0.5:6379/0"


class Silence:
    """A client that gets no more answers."""

    def __init__(self, *, is_store: bool) -> None:
        self.managers = SimpleNamespace(is_store=is_store, shown=URL)

    async def follow(
        self, job: JobId, after: int, *, known: bool, histograms: bool
    ) -> AsyncIterator[Any]:
        raise Unreachable(f"{URL}: no agent coordinates at the moment")
        yield


async def heard(*, is_store: bool) -> Unreachable:
    presenter = cast(
        "Any", SimpleNamespace(wants_histograms=False, on_controls=lambda interrupt: None)
    )
    silence = cast("Any", Silence(is_store=is_store))
    with pytest.raises(Unreachable) as caught:
        await JobFollower(silence, JobId("3f9a-6"), presenter).follow()
    return caught.value


@pytest.mark.asyncio
async def test_no_agent_left_is_one_line_that_says_how_to_go_on() -> None:
    error = await heard(is_store=True)
    assert error.exit_code is ExitCode.UNREACHABLE
    assert str(error) == (
        f"{URL}: no agent coordinates at the moment; job 3f9a-6 cannot be followed; its load "
        f"ends when the leases expire. Start an agent, then: squall watch 3f9a-6 --store {URL}"
    )


@pytest.mark.asyncio
async def test_managers_that_stay_away_are_not_called_agents() -> None:
    assert "Once a manager is back: squall watch 3f9a-6" in str(await heard(is_store=False))
