"""Users and iterations over threads: none is lost, no thread is idle."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from squall.engine.load.user_split import split_iterations, split_users

users = st.integers(1, 100_000)
threads = st.integers(1, 256)


@given(users, threads)
@settings(max_examples=500, deadline=None)
def test_users_add_up_and_no_reserved_thread_is_without_one(vus: int, count: int) -> None:
    shares = split_users(vus, count)
    assert sum(shares) == vus
    assert len(shares) == min(count, vus)
    assert min(shares) >= 1


@given(users, threads)
@settings(max_examples=500, deadline=None)
def test_no_thread_is_hot(vus: int, count: int) -> None:
    shares = split_users(vus, count)
    assert shares == sorted(shares)
    assert max(shares) < 2 * min(shares) + 1


@given(st.integers(0, 10**9), threads)
@settings(max_examples=300, deadline=None)
def test_iterations_add_up_and_differ_by_one_at_most(total: int, parts: int) -> None:
    shares = split_iterations(total, parts)
    assert sum(shares) == total
    assert len(shares) == parts
    assert max(shares) - min(shares) <= 1
