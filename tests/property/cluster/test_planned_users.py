"""What a manager computes about a ramp agrees with the schedule that its users follow."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from squall.cluster.manager.sessions.time_limits import plans_users
from squall.engine.load.schedule import UserSchedule
from squall.stats.manifest import Profile, Stage

STAGES = st.lists(
    st.builds(Stage, st.sampled_from([0.0, 1.0, 2.5]), st.integers(0, 5).map(float)), max_size=4
)


@given(STAGES, st.integers(0, 3), st.floats(0.0, 12.0))
def test_a_ramp_plans_users_where_its_schedule_has_some(
    stages: list[Stage], vus: int, at_s: float
) -> None:
    profile = Profile(model="ramp", vus=vus, max_vus=5, stages=tuple(stages))
    assert plans_users(profile, at_s) == (UserSchedule(profile).target(at_s) > 0)


def test_a_ramp_of_a_million_users_is_read_at_once() -> None:
    stages = tuple(Stage(10.0, 1_000_000.0 * (n % 2)) for n in range(1_000))
    profile = Profile(model="ramp", vus=0, max_vus=1_000_000, stages=stages)
    assert plans_users(profile, 9_999.0) and not plans_users(profile, 0.0 - 1.0)
