"""Deals out numbered things, such as rows of a feed, over the datacenters of a run.

The numbers 0, 1, 2 ... are dealt in rounds: in a round of 3 + 2 numbers, a datacenter of weight 3
gets three and one of weight 2 gets two, spread evenly. So the first numbers are divided by weight,
however many are used, and no number belongs to two datacenters. Every process computes the same
from the weights alone.

Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from squall.stats.manifest import Profile, WorkflowPart


def stripe_position(weights: tuple[int, ...], index: int, number: int) -> int:
    """The position among all numbers of the `number`-th one that this datacenter owns."""
    own = _own_places(weights)[index]
    rounds, place = divmod(number, len(own))
    return rounds * sum(weights) + own[place]


def stripe_count(weights: tuple[int, ...], index: int, total: int) -> int:
    """How many of the numbers below `total` this datacenter owns."""
    rounds, rest = divmod(total, sum(weights))
    own = _own_places(weights)[index]
    return rounds * len(own) + bisect_left(own, rest)


def rows_of_part(
    rows: Sequence[Any], take: str, profile: Profile, part: WorkflowPart
) -> Sequence[Any]:
    """The rows that one datacenter gives to its iterations, in order."""
    if take == "random":
        return rows
    if profile.model == "iterations":
        # How many rows each datacenter needs is planned, so each gets a block of exactly that
        # length: a feed with a row for each iteration suffices, whatever the weights are.
        first = part.iterations_before
        if take == "once":
            return rows[first : first + profile.iterations]
        count = min(profile.iterations, len(rows))
        return [rows[(first + number) % len(rows)] for number in range(count)]
    count = stripe_count(part.weights, part.index, len(rows))
    found = [rows[stripe_position(part.weights, part.index, number)] for number in range(count)]
    if not found and take == "cycle":
        # More datacenters than rows: rows repeat over them, as they do over time.
        return rows[part.index % len(rows) :][:1]
    return found


@lru_cache(maxsize=64)
def _own_places(weights: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The places of a round that each datacenter owns, ascending."""
    # The k-th of a datacenter's w places lies best at (k + 1/2) / w of the round.
    best = sorted(
        ((2 * number + 1) / (2 * weight), index)
        for index, weight in enumerate(weights)
        for number in range(weight)
    )
    places: list[list[int]] = [[] for _ in weights]
    for place, (_, index) in enumerate(best):
        places[index].append(place)
    return tuple(tuple(each) for each in places)
