"""A later attempt at a share goes on where the former ones stopped."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import replace

from squall.api.errors import ConfigError
from squall.api.feeds import Feed, FeedExhausted
from squall.engine.core_protocol import ShareSpec
from squall.engine.load.share_specs import share_of_users
from squall.engine.process.requirements import check_python, check_requirements
from squall.engine.process.scratch_folder import python_version
from squall.engine.users import resume_point
from squall.stats.manifest import Model, Profile


def spec(model: Model = "closed", share: int = 0, shares: int = 1, **fields: Any) -> ShareSpec:
    return ShareSpec(
        workflow="Shop",
        share=share,
        shares=shares,
        profile=Profile(model=model),
        users=3,
        users_max=3,
        **fields,
    )


def test_tickets_are_what_is_left() -> None:
    assert len(resume_point.tickets(spec(iterations=10))) == 10
    assert len(resume_point.tickets(spec(iterations=10, attempt=2, iterations_done=7))) == 3
    assert len(resume_point.tickets(spec(iterations=10, attempt=2, iterations_done=12))) == 0


def test_ids_of_a_later_attempt_are_new() -> None:
    assert resume_point.first_user(spec()) == 0
    assert resume_point.first_user(spec(attempt=2)) >= 3
    assert resume_point.first_user(spec(attempt=2, iterations_done=40)) >= 40


@pytest.mark.parametrize("take", ["once", "cycle"])
def test_rows_go_on_in_the_stripe(take: Any) -> None:
    rows = list(range(12))
    later = spec(share=1, shares=3, attempt=2, iterations_done=2)
    sources = resume_point.iteration_rows(
        later, {"row": Feed(rows, take=take)}, {"row": rows}, random.Random(1)
    )
    take_next = sources["row"]
    assert [take_next(), take_next()] == [7, 10]
    if take == "once":
        with pytest.raises(FeedExhausted):
            take_next()
    else:
        assert take_next() == 1


def test_rows_that_were_not_finished_are_told() -> None:
    feeds: dict[str, Feed[Any]] = {"users": Feed("users.csv")}
    assert (
        resume_point.unfinished_rows(feeds, 2) == "2 rows of users.csv given out and not finished"
    )
    assert resume_point.unfinished_rows(feeds, 0) == ""
    assert resume_point.unfinished_rows({}, 2) == ""


@pytest.mark.parametrize("model", ["closed", "ramp", "open"])
@pytest.mark.parametrize("vus", [0, 1, 2, 7, 100])
def test_other_users_are_split_exactly(model: Model, vus: int) -> None:
    parts = [share_of_users(spec(model, share, 3), vus) for share in range(3)]
    assert sum(parts) == vus


def test_a_share_keeps_a_user_for_iterations_that_no_other_share_makes() -> None:
    shared = [share_of_users(spec("iterations", share, 3), 1) for share in range(3)]
    assert shared == [1, 1, 1]
    each = Profile(model="iterations", iterations=9, iterations_per_vu=3, vus=3)
    own = [share_of_users(replace(spec("iterations", n, 3), profile=each), 1) for n in range(3)]
    assert own == [1, 0, 0]


def test_a_file_of_another_python_is_refused_in_one_line() -> None:
    check_python("")
    check_python(python_version())
    with pytest.raises(ConfigError, match=r"made with Python 2\.7, but this worker runs") as caught:
        check_python("2.7")
    assert "\n" not in str(caught.value)


def test_all_missing_modules_are_in_one_line() -> None:
    check_requirements(["msgspec", "squall"])
    with pytest.raises(Exception, match="no_such_a, no_such_b") as caught:
        check_requirements(["no_such_b", "msgspec", "no_such_a"])
    assert "\n" not in str(caught.value) and "msgspec" not in str(caught.value)
