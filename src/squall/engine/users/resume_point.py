"""Where a later attempt at a share resumes: its tickets, feed rows and user ids.

Share k of n always owns the same stripe of rows and ids; an attempt after the first begins
behind what earlier ones used. Rows that were given out and not finished are not given out
again. A lost attempt may have made users that it did not report, so ids are skipped
generously: an unused id does no harm, but one that is used twice may.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from squall.api.feeds import Feed, FeedCursor
from squall.engine.core_protocol import ShareSpec


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


def first_user(spec: ShareSpec) -> int:
    """Index of the first user of this attempt; 0 for the first attempt."""
    return (spec.attempt - 1) * spec.users_max + spec.iterations_done


def skip_rows(spec: ShareSpec, feed: Feed[Any], cursor: FeedCursor[Any]) -> None:
    """Skips the rows that earlier attempts took."""
    used = spec.iterations_done if feed.per == "iteration" else spec.users_max * (spec.attempt - 1)
    cursor.skip(used)


def row_sources(
    spec: ShareSpec,
    feeds: Mapping[str, Feed[Any]],
    rows: Mapping[str, Sequence[Any]],
    draw: random.Random,
) -> dict[str, Callable[[], Any]]:
    """The next row of each feed."""
    sources: dict[str, Callable[[], Any]] = {}
    for name, feed in feeds.items():
        cursor = FeedCursor(rows[name], feed.take, spec.share, spec.shares, draw)
        skip_rows(spec, feed, cursor)
        sources[name] = cursor.next
    return sources


def unfinished_rows(feeds: dict[str, Feed[Any]], interrupted: int) -> str:
    """The note about rows that were given out and not finished; empty if the workflow has no such
    feed."""
    names = [feed.path or name for name, feed in feeds.items() if feed.per == "iteration"]
    if not names or not interrupted:
        return ""
    rows = "row" if interrupted == 1 else "rows"
    return f"{interrupted} {rows} of {', '.join(names)} given out and not finished"
