"""Where a later attempt at a share goes on: tickets, rows of feeds, ids of users.

The stripe of a share is fixed (share k of n); an attempt after the first begins behind
what earlier ones used. Rows that were given out and not finished are not given again.
Nobody knows exactly how many users a lost attempt made, so ids are skipped generously:
an id that is never used harms nobody, one that is used twice may.
"""

from __future__ import annotations

from typing import Any

from squall.api.feeds import Feed, FeedCursor
from squall.engine.protocol import ShareSpec


def tickets(spec: ShareSpec) -> range:
    """The iterations that are left of the `iterations` model."""
    return range(max(spec.iterations - spec.iterations_done, 0))


def first_user(spec: ShareSpec) -> int:
    """Index of the first user of this attempt; 0 for the first attempt."""
    return (spec.attempt - 1) * spec.users_max + spec.iterations_done


def skip_rows(spec: ShareSpec, feed: Feed[Any], cursor: FeedCursor[Any]) -> None:
    """Takes what earlier attempts took."""
    used = spec.iterations_done if feed.per == "iteration" else spec.users_max * (spec.attempt - 1)
    cursor.skip(used)


def unfinished_rows(feeds: dict[str, Feed[Any]], interrupted: int) -> str:
    """What a share that was cut says of its rows; empty without such a feed."""
    names = [feed.path or name for name, feed in feeds.items() if feed.per == "iteration"]
    if not names or not interrupted:
        return ""
    rows = "row" if interrupted == 1 else "rows"
    return f"{interrupted} {rows} of {', '.join(names)} given out and not finished"
