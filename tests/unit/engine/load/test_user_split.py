from __future__ import annotations

import pytest

from squall.engine.load.user_split import split_iterations, split_users


def test_the_last_thread_takes_the_remainder() -> None:
    assert split_users(2000, 6) == [333, 333, 333, 333, 333, 335]
    assert split_users(333, 2) == [166, 167]
    assert split_users(10_000, 4) == [2500] * 4


def test_few_users_spread_the_remainder_instead_of_making_one_thread_hot() -> None:
    assert split_users(47, 24) == [1] + [2] * 23
    assert split_users(11, 4) == [2, 3, 3, 3]


def test_the_whole_remainder_goes_last_from_as_many_users_each_as_there_are_threads() -> None:
    assert split_users(19, 4) == [4, 4, 4, 7]
    assert split_users(15, 4) == [3, 4, 4, 4]


def test_no_thread_is_without_users() -> None:
    assert split_users(3, 8) == [1, 1, 1]
    assert split_users(1, 256) == [1]


def test_iterations_are_split_evenly_with_the_rest_first() -> None:
    assert split_iterations(10_000, 3) == [3334, 3333, 3333]
    assert split_iterations(2, 4) == [1, 1, 0, 0]
    assert split_iterations(0, 2) == [0, 0]


@pytest.mark.parametrize(("amount", "parts"), [(0, 1), (1, 0), (-1, 2)])
def test_users_cannot_be_split_without_users_or_threads(amount: int, parts: int) -> None:
    with pytest.raises(ValueError, match="cannot split"):
        split_users(amount, parts)


@pytest.mark.parametrize(("amount", "parts"), [(1, 0), (-1, 2)])
def test_iterations_cannot_be_split_into_nothing(amount: int, parts: int) -> None:
    with pytest.raises(ValueError, match="cannot split"):
        split_iterations(amount, parts)
