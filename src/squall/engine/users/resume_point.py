"""Where a later attempt at a share resumes: its tickets, feed rows and user ids.

Share k of n always owns the same stripe of rows and ids; an attempt after the first begins
behind what earlier ones used. Rows that iterations were given and did not finish are not given out
again. A row per user belongs to the number of the user: a later attempt runs users of the same
numbers, each with the same row. A lost attempt may have made users that it did not report, so ids
are skipped generously: an unused id does no harm, but one that is used twice may.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from squall.api.feeds import Feed, FeedCursor, FeedExhausted
from squall.engine.core_protocol import ShareSpec
from squall.engine.load.share_specs import user_number
from squall.engine.load.stripes import rows_of_part


def tickets(spec: ShareSpec) -> range:
    """The iterations of the `iterations` model that are left for this attempt."""
    return range(max(spec.iterations - spec.iterations_done, 0))


def ticket_names(spec: ShareSpec) -> dict[str, Any]:
    """What the generated loop needs for the `iterations` model: the next ticket, and how many of
    them one user may take."""
    if spec.profile.model != "iterations":
        return {}
    names: dict[str, Any] = {"TICKET": partial(next, iter(tickets(spec)), None)}
    if spec.profile.iterations_per_vu:
        names["EACH"] = spec.profile.iterations_per_vu
    return names


def random_of(spec: ShareSpec) -> random.Random:
    """The share's source of random choices. A later attempt must not draw the numbers of the
    first one again, nor two datacenters the same ones."""
    again = f":{spec.attempt}" if spec.attempt > 1 else ""
    where = f":dc{spec.part.index}" if spec.part is not None else ""
    return random.Random(f"{spec.seed}:{spec.workflow}:{spec.share}{again}{where}")


def first_user(spec: ShareSpec) -> int:
    """Index of the first user of this attempt; 0 for the first attempt."""
    return (spec.attempt - 1) * spec.users_max + spec.iterations_done


def iteration_rows(
    spec: ShareSpec,
    feeds: Mapping[str, Feed[Any]],
    rows: Mapping[str, Sequence[Any]],
    draw: random.Random,
) -> dict[str, Callable[[], Any]]:
    """The next row of each feed that has a row per iteration."""
    sources: dict[str, Callable[[], Any]] = {}
    share, shares, before = spec.share, spec.shares, 0
    if spec.profile.iterations_per_vu:
        # The shares have as many iterations as their users need, which is no even stripe: the rows
        # of a share follow those of the users before its first.
        share, shares = 0, 1
        before = spec.profile.iterations_per_vu * user_number(spec, 0)
    for name, feed in feeds.items():
        if feed.per == "iteration":
            own = rows[name]
            if spec.part is not None and not spec.profile.iterations_per_vu:
                own = rows_of_part(own, feed.take, spec.profile, spec.part)
            cursor = FeedCursor(own, feed.take, share, shares, draw)
            cursor.skip(before + spec.iterations_done)
            sources[name] = cursor.next
    return sources


def user_rows(
    spec: ShareSpec,
    feeds: Mapping[str, Feed[Any]],
    rows: Mapping[str, Sequence[Any]],
    draw: random.Random,
) -> dict[str, Callable[[int], Any]]:
    """The row that each feed with a row per user has for the user at a place of the share."""

    def row(feed: Feed[Any], loaded: Sequence[Any], place: int) -> Any:
        if feed.take == "random":
            return draw.choice(loaded)
        number = user_number(spec, place)
        if feed.take == "once" and number >= len(loaded):
            raise FeedExhausted
        return loaded[number % len(loaded)]

    return {
        name: partial(row, feed, rows[name]) for name, feed in feeds.items() if feed.per == "vu"
    }


def unfinished_rows(feeds: dict[str, Feed[Any]], interrupted: int) -> str:
    """The note about rows that were given out and not finished; empty if the workflow has no such
    feed."""
    names = [feed.path or name for name, feed in feeds.items() if feed.per == "iteration"]
    if not names or not interrupted:
        return ""
    rows = "row" if interrupted == 1 else "rows"
    return f"{interrupted} {rows} of {', '.join(names)} given out and not finished"
