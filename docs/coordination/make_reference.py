"""Writes the reference pages of the coordination library from its code: `make reference`.

A test compares the pages with what this module makes, so they are never out of date.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import msgspec

# Their events and metrics belong to the reference too.
import squall.coordination.expiry.records
import squall.coordination.queue.records
import squall.coordination.scheduler.records  # noqa: F401
from squall.coordination.events import Event
from squall.coordination.members.health_rules import HEALTHS
from squall.coordination.metrics import MetricFamilies
from squall.coordination.options import OPTION_SPECS, Options
from squall.coordination.stores.kinds import KINDS, Kind
from squall.coordination.timing import PROFILES, TIMING_TEXTS
from squall.runtime.metrics import Family, Registry

FOLDER = Path(__file__).parent
MADE = "Made from the code by `make reference`; a test compares the two."
# What the scripts in `stores/redis` write besides records and streams.
REDIS_KEYS = (
    ("`{blocking}#bell:<name>`", "1 min", "wakes the waits for a record or a stream"),
    ("`{blocking}#index:<kind>`", "1 d or more", "when each record of a kind was last written"),
    ("`{blocking}#kinds`", "1 d or more", "the kinds that have an index"),
    ("`{blocking}#streams`", "1 d or more", "the streams, and when each expires"),
    ("`<stream>#r`, `#h`, `#d`", "as the stream", "its items: ready, held, removed lately"),
    ("`<stream>#q:<owner>`", "5 min", "the last take of an owner"),
)
COMMON = {each.name for each in msgspec.structs.fields(Event)}


def pages() -> dict[str, str]:
    """The text of each page by the name of its file."""
    made = {
        "options": _options(),
        "timings": _timings(),
        "events": _events(),
        "metrics": _metrics(),
        "keys": _keys(),
    }
    return {f"reference-{name}.md": "\n".join(lines) + "\n" for name, lines in made.items()}


def _options() -> Iterator[str]:
    yield "# Reference: options"
    yield ""
    yield from _prose(
        f"""
        The options of `Coordinator(store, *plugins, ...)`. {MADE}
        """
    )
    yield ""
    defaults = {each.name: getattr(Options(), each.name) for each in fields(Options)}
    rows = [
        (f"`{name}`", _default(name, defaults[name]), text, _sentence(rule.text))
        for name, (rule, text) in OPTION_SPECS.items()
    ]
    yield from _table(("option", "default", "meaning", "accepts"), rows)
    yield ""
    yield from _prose(
        """
        A wrong one is refused when the `Coordinator` is made, with one line that has the option,
        its value, the rule and a value to use. Besides options it takes `member_id`, `on_become`,
        `on_stop`, `work`, `work_interval` ([election](election.md)), `log` (a logger of `logging`),
        `registry` (where its metrics go; by default one of its own), and `runtime`: the clock, the
        random source and the network, which a simulation replaces.
        """
    )


def _timings() -> Iterator[str]:
    yield "# Reference: timings"
    yield ""
    yield from _prose(
        f"""
        The durations of each profile, in seconds, and of a `Timing` of your own
        ([members](members.md#profiles)). {MADE}
        """
    )
    yield ""
    rows = [
        (f"`{name}`", *(f"{getattr(PROFILES[each], name):g}" for each in PROFILES), text)
        for name, text in TIMING_TEXTS.items()
    ]
    yield from _table(("duration", *(f"`{name}`" for name in PROFILES), "meaning"), rows)
    yield ""
    yield from _prose(
        """
        `fast` is for tests and needs `unsafe_timings=True`. `normal` is the default, `s3` on S3.
        """
    )


def _events() -> Iterator[str]:
    yield "# Reference: events"
    yield ""
    yield from _prose(
        f"""
        `coordinator.on(name_or_class, handler)`, `once`, `off` and `coordinator.events(...)` take
        the name or the class. Every event also has `namespace`, `timestamp` (wall clock) and
        `observer_id`, the member that emitted it. Classes are in `squall.coordination.events`,
        those of plugins beside them. In JSON, `member_id` is `coordinator_id` or `worker_id`, and
        `boot` is
        `incarnation`. {MADE}
        """
    )
    yield ""
    rows = [
        (
            f"`{kind.name}`",
            f"`{kind.__name__}`",
            ", ".join(
                f"`{each.name}`" for each in msgspec.structs.fields(kind) if each.name not in COMMON
            ),
            _line(kind.__doc__),
        )
        for kind in sorted(_kinds_of(Event), key=lambda kind: kind.name)
    ]
    yield from _table(("name", "class", "fields", "meaning"), rows)
    yield ""
    yield from _prose(
        """
        Plugins of yours add their own ([plugins](plugins.md)). Words for the health of a member:
        """
    )
    yield ""
    yield from _table(
        ("health", "meaning"), [(f"`{word}`", text) for word, text in HEALTHS.items()]
    )


def _metrics() -> Iterator[str]:
    yield "# Reference: metrics"
    yield ""
    yield from _prose(
        f"""
        At `/metrics` of a member with `metrics_port`, and in `coordinator.metrics_text()`. Each has
        the label `namespace`; the table names the others. {MADE}
        """
    )
    yield ""
    rows: list[tuple[str, ...]] = []
    for family in vars(MetricFamilies(Registry())).values():
        if isinstance(family, Family):
            known = cast("Family[Any]", family)
            labels = ", ".join(f"`{each}`" for each in known.labels[1:])
            rows.append((f"`{known.name}`", known.kind, labels, known.text.rstrip(".")))
    yield from _table(("metric", "kind", "labels", "meaning"), sorted(rows))


def _keys() -> Iterator[str]:
    yield "# Reference: keys"
    yield ""
    yield from _prose(
        f"""
        The records and streams of a namespace. In Redis a key is `{{blocking}}:kind:id` in the
        namespace `default`, and `{{blocking.<namespace>}}:kind:id` in any other; on S3 it is
        `path/blocking[.<namespace>]/kind/id.json` ([stores](stores.md#layout)).
        Only the library writes these kinds; the first word of your own records is any other. {MADE}
        """
    )
    yield ""
    rows = [
        (f"`{kind.key}`", "stream" if kind.is_stream else "record", _kept(kind), kind.holds)
        for kind in KINDS.values()
    ]
    yield from _table(("key", "", "kept", "holds"), rows)
    yield ""
    yield from _prose(
        """
        A record is kept for this long after its last write, a stream after its last append.
        """
    )
    yield ""
    yield from _prose(
        """
        Redis has these keys besides, with the same prefix (`{blocking}` or
        `{blocking.<namespace>}`). They are no records: never write or delete them.
        """
    )
    yield ""
    yield from _table(("key in Redis", "kept", "holds"), REDIS_KEYS)


def _kept(kind: Kind) -> str:
    if kind.kept_s is None:
        return "without an end"
    for unit, length_s in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if kind.kept_s >= length_s and kind.kept_s % length_s == 0.0:
            return f"{kind.kept_s / length_s:g} {unit}"
    return f"{kind.kept_s:g} s"


def _default(name: str, value: object) -> str:
    return "returns `{}`" if name == "metadata" else f"`{value!r}`"


def _sentence(text: str) -> str:
    return text.removeprefix("it must be ").removeprefix("use ")


def _line(text: str | None) -> str:
    return " ".join((text or "").split())


def _kinds_of(kind: type[Event]) -> Iterator[type[Event]]:
    for each in kind.__subclasses__():
        if each.name and each.__module__.startswith("squall.coordination."):
            yield each
        yield from _kinds_of(each)


def _prose(text: str) -> Iterator[str]:
    yield from textwrap.wrap(" ".join(text.split()), 100, break_on_hyphens=False)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Each row in one line, however long: a row over two lines ends the table."""
    columns = list(head)
    yield f"| {' | '.join(columns)} |"
    yield "|" + "---|" * len(columns)
    for row in rows:
        cells = " | ".join(each.replace("|", chr(92) + "|") for each in row)
        yield _line(f"| {cells} |")


if __name__ == "__main__":
    for page, text in pages().items():
        (FOLDER / page).write_text(text, encoding="utf-8")
