"""Binds a threshold: looks up its names in the manifest, converts its value to base units.

Everything that can be wrong with a threshold is found here or in the grammar, before the
first request: an unknown step, a step name that two workflows share, a statistic that
its subject does not have, a unit that does not fit. Base units are seconds, shares of 1,
counts, per second, and for gauges and samples the author's own unit.

`errors` are failed executions of all rows, `rps` finished ones per second; `http_reqs`
counts exchanges, `http_req_*` cover only HTTP rows and mean service time, as in k6.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, repeat
from pathlib import PurePath
from typing import Literal, NoReturn, TypeAlias

import msgspec

from squall.api.errors import ConfigError
from squall.stats.manifest import (
    ITERATION,
    Field,
    FileManifest,
    MetricManifest,
    StepManifest,
    WorkflowManifest,
)
from squall.stats.thresholds.grammar import (
    Threshold,
    did_you_mean,
    name_before_colon,
    parse_threshold,
    scope_hint,
    threshold_error,
)

What: TypeAlias = Literal[
    "row", "rows", "http_rows", "iteration", "checks", "dropped", "late", "requests"
]
Target: TypeAlias = What | Literal["metric", "connect"]
Stat: TypeAlias = Literal["p", "avg", "min", "max", "count", "rps", "share", "last"]
Base: TypeAlias = Literal["time", "share", "count", "rate", "own"]

BUILTIN_TEXT = "errors < 100%"

_TIME_STATS: dict[str, Stat] = {"avg": "avg", "min": "min", "med": "p", "max": "max"}
_ROW_STATS: dict[str, Stat] = {
    **_TIME_STATS,
    "count": "count",
    "rps": "rps",
    "errors": "share",
}
_FIELDS: dict[str, Field] = {"service": "service", "first_byte": "first_byte"}
_NAMES: dict[str, tuple[Target, dict[str, Stat]]] = {
    "errors": ("rows", {"": "share", "count": "count"}),
    "checks": ("checks", {"": "share"}),
    "dropped": ("dropped", {"": "share", "count": "count"}),
    "late": ("late", {"": "share", "count": "count"}),
    "rps": ("rows", {"": "rps"}),
    "iterations": ("iteration", {"": "count", "count": "count", "rps": "rps"}),
    ITERATION: ("iteration", _ROW_STATS),
}
_METRIC_STATS: dict[str, dict[str, Stat]] = {
    "counter": {"": "count", "count": "count", "rps": "rps", "rate": "rps"},
    "gauge": {"": "last", "value": "last", "min": "min", "max": "max"},
    "rate": {"": "share", "rate": "share"},
    "sample": {**_TIME_STATS, "count": "count"},
}
_COUNTED: dict[str, Stat] = {"count": "count", "rate": "rps"}
_K6: dict[str, tuple[Target, Field, dict[str, Stat]]] = {
    "http_req_duration": ("http_rows", "service", _TIME_STATS),
    "http_req_waiting": ("http_rows", "first_byte", _TIME_STATS),
    "http_req_connecting": ("connect", "service", _TIME_STATS),
    "http_req_failed": ("http_rows", "service", {"rate": "share"}),
    "http_reqs": ("requests", "service", _COUNTED),
    "iterations": ("iteration", "service", _COUNTED),
    "iteration_duration": ("iteration", "service", _TIME_STATS),
    "checks": ("checks", "service", {"rate": "share"}),
    "dropped_iterations": ("dropped", "service", _COUNTED),
}
STEP_NAMES_TAKEN = frozenset(_NAMES)
"""A step of such a name would change what a threshold means."""
METRIC_NAMES_TAKEN = frozenset({*_NAMES, *_FIELDS, *_K6, "connect"})
"""A threshold could not name a metric of such a name."""
# How many of the unit make a second; dividing keeps 500ms the float 0.5.
_SECONDS = {"ms": 1e3, "s": 1.0, "us": 1e6}


class BoundThreshold(msgspec.Struct, frozen=True, kw_only=True):
    """A threshold with its subject looked up, ready to be judged."""

    threshold: Threshold
    workflows: tuple[str, ...]
    target: Target
    name: str = ""
    """The name of the step or metric."""
    field: Field = "latency"
    stat: Stat
    q: float = 0.0
    base: Base
    limit: float
    """In base units."""
    unit: str
    """The unit in output; `scale` of them make a base unit."""
    scale: float
    failures_only: bool = False
    """`errors.count`: the failures, not all executions."""
    builtin: bool = False
    expression: str = ""
    """As it is shown: the author's text, after the workflow whose class holds it if the file has
    several. No two workflows then have the same expression."""

    def __str__(self) -> str:
        return self.expression or self.threshold.text

    @property
    def scope(self) -> str:
        """The datacenter that it is about; empty: all of the run."""
        return self.threshold.scope

    @property
    def row(self) -> str:
        """The row of the step table that it is about, if there is one."""
        if self.target == "iteration":
            return ITERATION
        return self.name if self.target == "row" else ""

    @property
    def workflow(self) -> str:
        return self.workflows[0] if len(self.workflows) == 1 else ""


class _Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """Subject and statistic, before the value is read."""

    workflows: tuple[str, ...]
    target: Target
    stat: Stat
    q: float = 0.0
    name: str = ""
    field: Field = "latency"
    metric: MetricManifest | None = None
    failures_only: bool = False


def bind(
    threshold: Threshold, manifest: FileManifest, scopes: Collection[str] = ()
) -> BoundThreshold:
    """Looks up the names. Raises a `ConfigError` that names an unknown one; `scopes` are the
    datacenters to name there."""
    binder = _Binder(threshold, manifest, scopes)
    chosen = binder.k6() if threshold.k6 else binder.squall()
    base, limit, unit, scale = binder.limit(chosen)
    return BoundThreshold(
        threshold=threshold,
        workflows=chosen.workflows,
        target=chosen.target,
        name=chosen.name,
        field=chosen.field,
        stat=chosen.stat,
        q=chosen.q,
        base=base,
        limit=limit,
        unit=unit,
        scale=scale,
        failures_only=chosen.failures_only,
        expression=binder.expression(),
    )


def bind_all(
    manifest: FileManifest, extra: Sequence[str] = (), scopes: Collection[str] = ()
) -> list[BoundThreshold]:
    """Thresholds of the file in its order, then those of the command line, then the built-in.
    `scopes` are the datacenters of the run, which a threshold may name."""
    bound = [
        _bind_of_file(text, line, workflow, manifest, scopes)
        for workflow in manifest.workflows
        for text, line in _with_lines(workflow)
    ]
    bound += [bind(parse_threshold(text, scopes=scopes), manifest, scopes) for text in extra]
    if any(workflow.is_test for workflow in manifest.workflows):
        builtin = bind(parse_threshold(BUILTIN_TEXT), manifest)
        bound.append(msgspec.structs.replace(builtin, builtin=True))
    return bound


def named_datacenters(manifest: FileManifest, extra: Sequence[str] = ()) -> set[str]:
    """The names before a colon that are no metric: for a plan whose datacenters are not known."""
    metrics = {metric.name for workflow in manifest.workflows for metric in workflow.metrics}
    texts = chain(extra, *(workflow.thresholds for workflow in manifest.workflows))
    return {name_before_colon(text) for text in texts} - metrics - _K6.keys() - {""}


def _with_lines(workflow: WorkflowManifest) -> Iterator[tuple[str, int]]:
    # A manifest may come from a client: its lines may be fewer or more than its thresholds.
    lines = chain(workflow.threshold_lines, repeat(workflow.line))
    return zip(workflow.thresholds, lines, strict=False)


def needs_load(bound: BoundThreshold) -> bool:
    """Whether one iteration (`--once`) cannot meet a threshold: a rate, or a count that grows."""
    grows = bound.base == "count" and bound.threshold.op in (">", ">=", "==")
    return bound.base == "rate" or grows


def _bind_of_file(
    text: str,
    line: int,
    workflow: WorkflowManifest,
    manifest: FileManifest,
    scopes: Collection[str],
) -> BoundThreshold:
    """Binds a threshold of the file; a mistake names the file and line."""
    try:
        parsed = parse_threshold(text, default_workflow=workflow.name, scopes=scopes)
        return bind(parsed, manifest, scopes)
    except ConfigError as error:
        where = f"{PurePath(manifest.path).name}:{line}  {workflow.name}"
        raise ConfigError(f"{where}: {error}") from None


class _Binder:
    def __init__(
        self, threshold: Threshold, manifest: FileManifest, scopes: Collection[str]
    ) -> None:
        self.scopes = scopes
        self.threshold = threshold
        self.manifest = manifest
        self.known = {workflow.name: workflow for workflow in manifest.workflows}

    def fail(self, position: int, problem: str, hint: str = "") -> NoReturn:
        columns = self.threshold.columns
        column = columns[min(position, len(columns) - 1)]
        raise threshold_error(self.threshold.text, column, problem, hint)

    def expression(self) -> str:
        """The text, with the workflow of its class where the file has several."""
        threshold, owner = self.threshold, self.threshold.default_workflow
        is_scoped = len(threshold.names) > 1 and threshold.names[0] in self.known
        if owner is None or is_scoped or len(self.known) < 2:
            return threshold.text
        if not threshold.scope:
            return f"{owner}.{threshold.text}"
        return f"{threshold.scope}: {owner}.{threshold.text.partition(':')[2].strip()}"

    def squall(self) -> _Chosen:
        """`[workflow.]name[.field][.stat]`"""
        names = list(self.threshold.names)
        default = self.threshold.default_workflow
        at = 0
        if names[0] in self.known and len(names) > 1:
            scope, at = [self.known[names[0]]], 1
        elif default is not None and default in self.known:
            scope = [self.known[default]]
        else:
            scope = self._tests()
        name, tail = names[at], names[at + 1 :]
        is_qualified = at == 1 or default is not None
        owner = self._owner_of_step(name, scope, at, is_qualified=is_qualified)
        if owner is not None and (tail or self.threshold.percentile is not None):
            return self._row(owner, name, tail, at)
        workflows = tuple(workflow.name for workflow in scope)
        if name in ("connect", *_FIELDS):
            return self._of_all_rows(workflows, name, tail, at)
        if name in _NAMES:
            return self._builtin_name(workflows, name, tail, at)
        metric = self._metric(name, scope, at, is_qualified=is_qualified)
        if metric is not None:
            return self._of_metric(*metric, tail, at)
        if owner is not None:
            self.fail(at, f'step "{name}" needs a statistic', f'write "{name}.p(95)"')
        self._unknown(name, scope, at)

    def k6(self) -> _Chosen:
        """`metric{step:name}: stat`"""
        name = self.threshold.names[0]
        step = self.threshold.step
        default = self.threshold.default_workflow
        scope = [self.known[default]] if default in self.known else self._tests()
        if name not in _K6:
            metric = self._metric(name, scope, 0, is_qualified=default is not None)
            if metric is None:
                known = [*_K6, *(m.name for w in scope for m in w.metrics), *self.scopes]
                hint = did_you_mean(name, known)
                if self.threshold.scope:
                    self.fail(0, f'no metric "{name}"', hint)
                self.fail(0, f'no metric or datacenter "{name}"', hint or scope_hint(self.scopes))
            if step is not None:
                self.fail(0, f'metric "{name}" is not kept per step', "leave out {step:...}")
            return self._of_metric(*metric, list(self.threshold.names[1:]), 0)
        target, field, stats = _K6[name]
        stat, q = self._stat(list(self.threshold.names[1:]), 1, stats, name)
        workflows = tuple(workflow.name for workflow in scope)
        if step is None:
            return _Chosen(workflows=workflows, target=target, stat=stat, q=q, field=field)
        if not name.startswith("http_req"):
            self.fail(0, f'"{name}" is not kept per step', "leave out {step:...}")
        owner = self._owner_of_step(step, scope, 0, is_qualified=default is not None)
        if owner is None:
            self._unknown(step, scope, 0)
        self._check_measured(owner, step, 0)
        if target == "connect":
            return _Chosen(workflows=(owner.name,), target=target, stat=stat, q=q, field=field)
        return _Chosen(
            workflows=(owner.name,), target="row", name=step, stat=stat, q=q, field=field
        )

    def limit(self, chosen: _Chosen) -> tuple[Base, float, str, float]:
        """(kind of base unit, limit in it, unit in output, units in output per base unit)."""
        value, unit = self.threshold.value, self.threshold.unit
        own = chosen.metric is not None and chosen.metric.kind in ("gauge", "sample")
        if chosen.metric is not None and own and chosen.stat != "count":
            return "own", self._own_limit(chosen.metric), chosen.metric.unit, 1.0
        if value < 0:
            self._bad_value("the value cannot be below 0")
        if chosen.stat == "share":
            if unit not in ("", "%"):
                self._bad_value(f"{unit} does not fit a share", "write 1% or 0.01")
            if unit == "" and value > 1:
                self._bad_value("a share lies between 0 and 1", f"write {value:g}%")
            return "share", value / 100 if unit == "%" else value, "%", 100.0
        if chosen.stat == "rps":
            if unit not in ("", "/s"):
                self._bad_value(f"{unit} does not fit a rate", f"write {value:g}/s")
            return "rate", value, "/s", 1.0
        if chosen.stat == "count":
            if unit:
                self._bad_value(f"{unit} does not fit a count", f"write {value:g}")
            return "count", value, "", 1.0
        if unit in ("%", "/s"):
            self._bad_value(f"{unit} does not fit a time", f"write {value:g}ms, us or s")
        return "time", value / _SECONDS[unit or "ms"], "ms", 1e3

    def _tests(self) -> list[WorkflowManifest]:
        workflows = self.manifest.workflows
        return [workflow for workflow in workflows if workflow.is_test] or workflows

    def _owner_of_step(
        self, name: str, scope: list[WorkflowManifest], at: int, *, is_qualified: bool
    ) -> WorkflowManifest | None:
        owners = [workflow for workflow in scope if _step(workflow, name) is not None]
        if not owners and not is_qualified:
            owners = [w for w in self.manifest.workflows if _step(w, name) is not None]
        if len(owners) > 1:
            choices = " or ".join(f'"{owner.name}.{name}"' for owner in owners)
            self.fail(at, f'"{name}" is a step of several workflows', f"write {choices}")
        return owners[0] if owners else None

    def _metric(
        self, name: str, scope: list[WorkflowManifest], at: int, *, is_qualified: bool
    ) -> tuple[WorkflowManifest, MetricManifest] | None:
        everywhere = scope if is_qualified else self.manifest.workflows
        found = [(w, m) for w in everywhere for m in w.metrics if m.name == name]
        if len(found) > 1:
            choices = " or ".join(f'"{workflow.name}.{name}"' for workflow, _ in found)
            self.fail(at, f'"{name}" is a metric of several workflows', f"write {choices}")
        return found[0] if found else None

    def _row(self, owner: WorkflowManifest, name: str, tail: list[str], at: int) -> _Chosen:
        self._check_measured(owner, name, at)
        if tail and tail[0] in ("connect", *_FIELDS):
            stat, q = self._stat(tail[1:], at + 2, _TIME_STATS, f"{name}.{tail[0]}")
            if tail[0] == "connect":
                return _Chosen(workflows=(owner.name,), target="connect", stat=stat, q=q)
            field = _FIELDS[tail[0]]
            return _Chosen(
                workflows=(owner.name,), target="row", name=name, field=field, stat=stat, q=q
            )
        stat, q = self._stat(tail, at + 1, _ROW_STATS, name, fields=True)
        return _Chosen(workflows=(owner.name,), target="row", name=name, stat=stat, q=q)

    def _of_all_rows(
        self, workflows: tuple[str, ...], name: str, tail: list[str], at: int
    ) -> _Chosen:
        stat, q = self._stat(tail, at + 1, _TIME_STATS, name)
        if name == "connect":
            return _Chosen(workflows=workflows, target="connect", stat=stat, q=q)
        return _Chosen(workflows=workflows, target="rows", field=_FIELDS[name], stat=stat, q=q)

    def _builtin_name(
        self, workflows: tuple[str, ...], name: str, tail: list[str], at: int
    ) -> _Chosen:
        target, stats = _NAMES[name]
        if name == ITERATION and tail and tail[0] == "service":
            stat, q = self._stat(tail[1:], at + 2, _TIME_STATS, "iteration.service")
            return _Chosen(workflows=workflows, target=target, field="service", stat=stat, q=q)
        stat, q = self._stat(tail, at + 1, stats, name)
        if name == "iterations" and self.threshold.unit == "/s" and not tail:
            stat = "rps"
        failures_only = name == "errors" and stat == "count"
        return _Chosen(
            workflows=workflows, target=target, stat=stat, q=q, failures_only=failures_only
        )

    def _of_metric(
        self, owner: WorkflowManifest, metric: MetricManifest, tail: list[str], at: int
    ) -> _Chosen:
        stat, q = self._stat(tail, at + 1, _METRIC_STATS[metric.kind], metric.name)
        if metric.kind == "counter" and self.threshold.unit == "/s" and not tail:
            stat = "rps"
        return _Chosen(
            workflows=(owner.name,),
            target="metric",
            name=metric.name,
            metric=metric,
            stat=stat,
            q=q,
        )

    def _stat(
        self, tail: list[str], at: int, stats: dict[str, Stat], of: str, *, fields: bool = False
    ) -> tuple[Stat, float]:
        percentile = self.threshold.percentile
        if percentile is not None and not tail:
            if "med" not in stats:
                self.fail(at, f'"{of}" has no percentiles', _choices(stats))
            return "p", percentile / 100
        if percentile is not None or len(tail) > 1:
            hint = _choices(stats)
            self.fail(at, f'"{tail[0]}" cannot be followed by another name here', hint)
        word = tail[0] if tail else ""
        if word in stats:
            return stats[word], 0.5
        if not word:
            self.fail(at, f'"{of}" needs a statistic', _choices(stats))
        number = re.fullmatch(r"[pP]([0-9]{2}(?:_[0-9]+)?)", word)
        if number is not None and "med" in stats:
            hint = f'write "p({number.group(1).replace("_", ".")})"'
            self.fail(at, f'"{word}" is not a percentile', hint)
        close = did_you_mean(word, [*stats, *_FIELDS] if fields else list(stats))
        self.fail(at, f'"{of}" has no statistic "{word}"', close or _choices(stats))

    def _check_measured(self, owner: WorkflowManifest, name: str, at: int) -> None:
        step = _step(owner, name)
        if step is not None and not step.protocol:
            hint = 'return a result, such as "-> HTTPResponse", to measure it'
            self.fail(at, f'step "{name}" of {owner.name} is not measured', hint)

    def _unknown(self, name: str, scope: list[WorkflowManifest], at: int) -> NoReturn:
        if name in _K6:
            self.fail(at, f'"{name}" is k6\'s name', f'write "{name}: ..." with a colon')
        elsewhere = [
            f'"{workflow.name}.{name}"'
            for workflow in self.manifest.workflows
            if workflow not in scope
            and (_step(workflow, name) is not None or name in _metric_names(workflow))
        ]
        if elsewhere:
            self.fail(at, f'no "{name}" here', f"write {' or '.join(elsewhere)}")
        known = [step.name for workflow in scope for step in workflow.steps]
        known += [metric for workflow in scope for metric in _metric_names(workflow)]
        known += [*_NAMES, *self.known]
        steps = ", ".join(step.name for workflow in scope for step in workflow.steps)
        hint = did_you_mean(name, known) or (f"steps are {steps}" if steps else "")
        self.fail(at, f'no step, metric or name "{name}"', hint)

    def _own_limit(self, metric: MetricManifest) -> float:
        """In the author's unit; a time may be written in another unit of time."""
        value, unit = self.threshold.value, self.threshold.unit
        if unit in ("", metric.unit):
            return value
        if unit in _SECONDS and metric.unit in _SECONDS:
            return value / _SECONDS[unit] * _SECONDS[metric.unit]
        measured = f"is in {metric.unit}" if metric.unit else "has no unit"
        self._bad_value(f'{unit} does not fit: "{metric.name}" {measured}', f"write {value:g}")

    def _bad_value(self, problem: str, hint: str = "") -> NoReturn:
        raise threshold_error(self.threshold.text, self.threshold.value_column, problem, hint)


def _step(workflow: WorkflowManifest, name: str) -> StepManifest | None:
    return next((step for step in workflow.steps if step.name == name), None)


def _metric_names(workflow: WorkflowManifest) -> list[str]:
    return [metric.name for metric in workflow.metrics]


def _choices(stats: dict[str, Stat]) -> str:
    words = [word for word in stats if word]
    if "med" in stats:
        words.insert(0, "p(95)")
    return f"it has {', '.join(words)}" if words else "it takes no statistic"
