"""The load of a run on this machine is changed while it goes on."""

from __future__ import annotations

import pytest

from squall.api.errors import UsageError
from squall.engine.load_change import LoadChange
from tests.runs.lab.run import Lab, Steering, check_counts, check_identities

OPEN = """
class Shop(Workflow):
    rate = "40/s"
    duration = "5m"

    @step()
    async def home(self, url: URL = "/") -> HTTPResponse:
        return await self.client.http.get(url)
"""
CLOSED = OPEN.replace('rate = "40/s"', "vus = 2").replace(
    'duration = "5m"', 'duration = "5m"\n    think = "20ms"'
)


def test_a_pause_stops_planning_and_a_resumed_load_goes_on(lab: Lab) -> None:
    async def steps(run: Steering) -> None:
        await run.until(lambda seen: seen.workflows[0].made >= 10)
        await run.controls.change(LoadChange(paused=True))
        paused = await run.until_nothing_is_planned()
        assert paused.workflows[0].target_per_s == 0.0
        await run.controls.change(LoadChange(paused=False))
        more = paused.workflows[0].made + 10
        resumed = await run.until(lambda seen: seen.workflows[0].made >= more)
        assert not resumed.workflows[0].paused
        assert resumed.workflows[0].target_per_s == 40.0

    result = lab.steer(OPEN, steps)
    check_counts(result, lab.target.counts())
    changes = [note.partition(" at ")[0] for note in result.document["notes"] if " at " in note]
    assert changes[:2] == ["Shop: paused", "Shop: resumed"]


def test_a_key_that_is_hit_three_times_at_once_leaves_three_notes(lab: Lab) -> None:
    async def steps(run: Steering) -> None:
        await run.until(lambda seen: seen.workflows[0].made >= 5)
        for paused in (True, False, True):
            await run.controls.change(LoadChange(paused=paused))
        await run.until_nothing_is_planned()

    notes = lab.steer(OPEN, steps).document["notes"]
    changes = [note.partition(" at ")[0] for note in notes if " at " in note]
    assert changes[:3] == ["Shop: paused", "Shop: resumed", "Shop: paused"]


def test_a_rate_that_an_operator_sets_replaces_that_of_the_plan(lab: Lab) -> None:
    async def steps(run: Steering) -> None:
        await run.until(lambda seen: seen.workflows[0].made >= 10)
        await run.controls.change(LoadChange(rate_per_s=120.0))
        # More than the plan makes in a second, and no more than a second of the new rate.
        faster = await run.until(lambda seen: seen.workflows[0].rate_now_per_s > 80.0)
        assert faster.workflows[0].target_per_s == 120.0
        await run.controls.change(LoadChange(rate_per_s=0.0))
        await run.until(lambda seen: seen.workflows[0].rate_now_per_s == 0.0)

    result = lab.steer(OPEN, steps)
    check_counts(result, lab.target.counts())
    assert any(note.startswith("Shop: rate set to 120/s at ") for note in result.document["notes"])


def test_users_of_a_closed_model_come_and_go_and_wait_in_a_pause(lab: Lab) -> None:
    async def steps(run: Steering) -> None:
        await run.until(lambda seen: seen.workflows[0].iterations >= 10)
        await run.controls.change(LoadChange(vus=5))
        await run.until(lambda seen: seen.workflows[0].users == 5)
        await run.controls.change(LoadChange(vus=1))
        await run.until(lambda seen: seen.workflows[0].users == 1)
        await run.controls.change(LoadChange(paused=True))
        paused = await run.until_nothing_is_planned()
        await run.controls.change(LoadChange(paused=False))
        more = paused.workflows[0].iterations + 5
        await run.until(lambda seen: seen.workflows[0].iterations >= more)

    check_identities(lab.steer(CLOSED, steps))


def test_a_change_that_does_not_fit_is_refused_and_changes_nothing(lab: Lab) -> None:
    async def steps(run: Steering) -> None:
        await run.until(lambda seen: seen.workflows[0].made >= 5)
        for change, why in (
            (LoadChange(vus=5), "Shop has a rate, not users"),
            (LoadChange(workflow="Cart", paused=True), "no test workflow Cart"),
            (LoadChange(rate_per_s=-1.0), "must be between 0"),
            (LoadChange(), "nothing to change"),
        ):
            with pytest.raises(UsageError, match=why):
                await run.controls.change(change)

    result = lab.steer(OPEN, steps)
    assert not [note for note in result.document["notes"] if note.startswith("Shop:")]
