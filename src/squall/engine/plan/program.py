"""Reads all workflows of a file into one program and checks what spans them.

Finds every mistake in a file before the first request and reports each in one line with
file, line, class and step. Runs no code of the author except what importing the file and
loading its feeds runs.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace

from squall.api.arguments import argument_kinds
from squall.api.errors import ConfigError, UsageError
from squall.api.feeds import Feed
from squall.api.hooks import Hook, Step
from squall.api.metrics import Metric
from squall.api.quantities import parse_count, parse_rate
from squall.api.reporting import is_live_reporter, output_kind
from squall.api.resources import Resource
from squall.api.workflow import Workflow
from squall.clients.shared.file_sets import named_files
from squall.engine.load.profile import resolve_profile
from squall.engine.load.user_split import split_by_weight
from squall.engine.plan.annotations import is_all
from squall.engine.plan.layers import suggest, topological_layers
from squall.engine.plan.received_values import ancestors_of, shadowed_values
from squall.engine.plan.workflow_plan import (
    HookPlan,
    WorkflowPlan,
    bind_parameters,
    read_workflow,
    slots_of,
)
from squall.engine.plan.written_code import code_of, strings_in
from squall.engine.run_options import ProfileFlags, RunOptions
from squall.stats.manifest import (
    FileManifest,
    MetricKind,
    MetricManifest,
    Profile,
    StepManifest,
    UseManifest,
    WorkflowManifest,
)

PROFILE_ATTRIBUTES = (
    "vus",
    "duration",
    "iterations",
    "stages",
    "rate",
    "max_vus",
    "start_after",
    "think",
    "pacing",
    "grace",
)
_KINDS = {kind.__name__: kind for kind in argument_kinds()}
URL_KIND = _KINDS["URL"]


@dataclass
class Program:
    """The loaded file: a plan per workflow for execution, and a manifest that describes it."""

    base_dir: Path
    plans: dict[str, WorkflowPlan]
    manifest: FileManifest
    rows: dict[str, dict[str, list[Any]]] = field(default_factory=dict[str, dict[str, list[Any]]])
    """Rows of each feed: workflow -> attribute -> rows."""


def build_program(
    classes: Sequence[type[Workflow]], shown: str, base_dir: Path, options: RunOptions
) -> Program:
    plans = {cls.__name__: read_workflow(cls, Path(shown).name or shown) for cls in classes}
    if not plans:
        raise ConfigError(
            f"{shown}: no workflow in this file; define one, such as class Shop(Workflow)"
        )
    _check_dependencies(plans)
    for plan in plans.values():
        _check_state(plan, plans)
    plans = _select(plans, options)
    flags = _flags_of(plans, options)
    manifest = FileManifest(path=shown, workflows=[])
    program = Program(base_dir=base_dir, plans=plans, manifest=manifest)
    for plan in plans.values():
        bind_parameters(plan, _offered(plan, plans))
        _load_files(program, plan)
        manifest.workflows.append(_describe(plan, options, flags[plan.name]))
        manifest.workflows[-1].once_rows = _once_rows(plan, program.rows[plan.name])
    problems = _problems(plans)
    if problems:
        raise ConfigError("\n".join(problems))
    for workflow in manifest.workflows:
        manifest.warnings += shadowed_values(manifest, workflow)
    if options.host and _ignores_host(plans.values()):
        manifest.warnings.append("--host changes nothing: no URL of this file starts with /")
    return program


def _problems(plans: dict[str, WorkflowPlan]) -> list[str]:
    found = [problem for plan in plans.values() for problem in plan.problems]
    return list(dict.fromkeys(found))


def _check_dependencies(plans: dict[str, WorkflowPlan]) -> None:
    sound = True
    for plan in plans.values():
        for name in plan.depends:
            if name == plan.name:
                sound = False
                plan.problem(plan.line, "", "depends on itself")
            elif name not in plans:
                sound = False
                plan.problem(plan.line, "", f'no workflow "{name}"{suggest(name, list(plans))}')
    if sound:
        try:
            topological_layers({name: plan.depends for name, plan in plans.items()}, "workflow")
            return
        except ConfigError as error:
            culprit = next(p for p in plans.values() if f" {p.name} ->" in str(error))
            culprit.problem(culprit.line, "", str(error))
    raise ConfigError("\n".join(_problems(plans)))


def _select(plans: dict[str, WorkflowPlan], options: RunOptions) -> dict[str, WorkflowPlan]:
    for flag, names in (("--only", options.only), ("--skip", options.skip)):
        for name in names:
            if name not in plans:
                raise UsageError(f'{flag} {name}: no workflow "{name}"{suggest(name, list(plans))}')
    wanted = set(plans)
    if options.only:
        wanted = set[str]()
        queue = list(options.only)
        while queue:
            name = queue.pop()
            if name not in wanted:
                wanted.add(name)
                queue.extend(plans[name].depends)
    wanted -= set(options.skip)
    chosen = {name: plan for name, plan in plans.items() if name in wanted}
    depends = {name: _nearest(plan.depends, plans, chosen) for name, plan in chosen.items()}
    for plan in chosen.values():
        plan.depends = depends[plan.name]
        # Values from and to a workflow that does not run have no other end.
        for hooks in (plan.providers, plan.consumers):
            hooks[:] = [(hook, tuple(n for n in names if n in chosen)) for hook, names in hooks]
    if not chosen:
        raise UsageError("--only and --skip leave no workflow to run")
    return chosen


def _nearest(
    direct: Sequence[str], plans: dict[str, WorkflowPlan], chosen: dict[str, WorkflowPlan]
) -> list[str]:
    """The dependencies that run; one that is left out is replaced by its own."""
    found: list[str] = []
    for name in direct:
        found += [name] if name in chosen else _nearest(plans[name].depends, plans, chosen)
    return list(dict.fromkeys(found))


def _flags_of(plans: dict[str, WorkflowPlan], options: RunOptions) -> dict[str, ProfileFlags]:
    """The flags for each workflow: with `-u Shop=100 -d 30s` both apply to Shop. A flag that
    names a workflow takes precedence over one that names none."""
    for name in options.profiles:
        if name and name not in plans:
            raise UsageError(f'no workflow "{name}"{suggest(name, list(plans))}')
    tests = [name for name, plan in plans.items() if plan.is_test]
    bare = options.profiles.get("", ProfileFlags())
    parts = dict.fromkeys(tests, bare)
    # What each user makes is no total: like a duration, it applies to every workflow.
    total = None if _is_per_user(bare.iterations) else bare.iterations
    loads = (bare.vus, total, bare.rate, bare.stages or None)
    if len(tests) > 1 and any(load is not None for load in loads):
        parts = _split_by_weight(bare, [plans[name] for name in tests])
    found: dict[str, ProfileFlags] = {}
    for name in plans:
        part = parts.get(name, ProfileFlags())
        named = options.profiles.get(name, ProfileFlags())
        found[name] = ProfileFlags(
            vus=part.vus if named.vus is None else named.vus,
            duration=part.duration if named.duration is None else named.duration,
            iterations=part.iterations if named.iterations is None else named.iterations,
            rate=part.rate if named.rate is None else named.rate,
            stages=named.stages or part.stages,
        )
    return found


def _split_by_weight(bare: ProfileFlags, tests: list[WorkflowPlan]) -> dict[str, ProfileFlags]:
    """Splits a load that names no workflow over workflows that all have a weight."""
    names = [plan.name for plan in tests]
    weights: list[int | None] = [plan.settings.get("weight") for plan in tests]
    known = [weight for weight in weights if weight is not None]
    if bare.stages:
        raise UsageError(
            f"this file has {len(tests)} test workflows, and stages are not split; say which one "
            f"they are for, e.g. -s {names[0]}={bare.stages[0]}"
        )
    if len(known) < len(weights):
        raise UsageError(
            f"this file has {len(tests)} test workflows; say which one the load is for, "
            f"e.g. -u {names[0]}=100, or give each a weight to split -u, -r and -i by"
        )
    flags = dict.fromkeys(names, bare)
    for load, total in (("vus", bare.vus), ("iterations", bare.iterations)):
        if total is None or _is_per_user(total):
            continue
        split = split_by_weight(parse_count(total, load), known)
        for name, part in zip(names, split, strict=True):
            if not part:
                raise UsageError(f"{load} {total} is too few for {len(names)} workflows")
            flags[name] = replace(flags[name], **{load: part})
    if bare.rate is not None:
        rate = parse_rate(bare.rate)
        for name, weight in zip(names, known, strict=True):
            flags[name] = replace(flags[name], rate=rate * weight / sum(known))
    return flags


def _is_per_user(iterations: int | str | None) -> bool:
    return isinstance(iterations, str) and "/" in iterations


def _offered(plan: WorkflowPlan, plans: dict[str, WorkflowPlan]) -> dict[str, Any]:
    """The names that workflows in `@depends` provide, with their annotations."""
    offered: dict[str, Any] = {}
    for name in _transitive(plan, plans):
        source = plans[name]
        if not source.is_test:
            for step in source.steps:
                offered.setdefault(step.name, step.returns)
        for hook, targets in source.providers:
            if plan.name in targets:
                offered[hook.name] = hook.returns
    return offered


def _transitive(plan: WorkflowPlan, plans: dict[str, WorkflowPlan]) -> list[str]:
    return ancestors_of({name: each.depends for name, each in plans.items()}, plan.depends)


def _check_state(plan: WorkflowPlan, plans: dict[str, WorkflowPlan]) -> None:
    """Checks both ends of every `@state` value, in the whole file: also of workflows that
    `--only` and `--skip` leave out."""
    for hook, others in [*plan.providers, *plan.consumers]:
        for other in others:
            if other not in plans:
                text = f'no workflow "{other}"{suggest(other, list(plans))}'
                plan.problem(hook.line, hook.name, text)
    for hook, targets in plan.providers:
        for target in targets:
            if target in plans and plan.name not in _transitive(plans[target], plans):
                text = f'{target} does not run after {plan.name}; add @depends("{plan.name}") to it'
                plan.problem(hook.line, hook.name, text)
    before = _transitive(plan, plans)
    for hook, sources in plan.consumers:
        known = [source for source in sources if source in plans]
        for source in known:
            if source not in before:
                text = f'{plan.name} does not run after {source}; add @depends("{source}")'
                plan.problem(hook.line, hook.name, text)
        if len(known) == len(sources) > 0:
            _check_received(plan, hook, [plans[source] for source in known])


def _check_received(plan: WorkflowPlan, hook: HookPlan, sources: list[WorkflowPlan]) -> None:
    """Checks the arguments of a hook that receives values: each has a source and a default."""
    provided = {
        given.name
        for source in sources
        for given, targets in source.providers
        if plan.name in targets
    }
    names = " or ".join(source.name for source in sources)
    for parameter in hook.parameters:
        if parameter.name not in provided:
            # Not a mistake by itself: the default is used, as when no value arrives.
            known = suggest(parameter.name, sorted(provided))
            plan.warnings.append(
                f"{plan.file}:{hook.line}  {plan.name}.{hook.name}: "
                f'{names} provides no "{parameter.name}"{known}'
            )
        if not parameter.has_default:
            text = f"argument {parameter.name} needs a default for the case that no value arrives"
            plan.problem(hook.line, hook.name, text)


def _load_files(program: Program, plan: WorkflowPlan) -> None:
    loaded: dict[str, list[Any]] = {}
    for name, feed in plan.feeds.items():
        try:
            loaded[name] = feed.load(program.base_dir)
        except ConfigError as error:
            plan.problem(plan.line_of(name), name, str(error))
    program.rows[plan.name] = loaded
    for name, proto in plan.protos.items():
        try:
            proto.load(program.base_dir)
        except ConfigError as error:
            plan.problem(plan.line_of(name), name, str(error))


def _once_rows(plan: WorkflowPlan, rows: Mapping[str, Sequence[Any]]) -> int:
    once = [n for n, each in plan.feeds.items() if (each.per, each.take) == ("iteration", "once")]
    return min((len(rows[name]) for name in once if name in rows), default=0)


def _describe(plan: WorkflowPlan, options: RunOptions, flags: ProfileFlags) -> WorkflowManifest:
    host = options.host or plan.settings.get("host", "")
    for hook, parameter in _relative_urls(plan):
        if not host:
            plan.problem(
                hook.line,
                hook.name,
                f"{parameter.name} {parameter.default!r} is relative and {plan.name} has no host; "
                'set host = "http://..." or pass --host',
            )
    _warn_about_names(plan)
    return WorkflowManifest(
        name=plan.name,
        line=plan.line,
        depends=list(plan.depends),
        always=plan.always,
        is_test=plan.is_test,
        priority=plan.settings.get("priority", "auto"),
        profile=_profile(plan, options, flags),
        steps=[
            StepManifest(
                name=step.name,
                after=list(step.after),
                layer=step.layer,
                protocol=step.protocol,
                weight=step.weight,
                line=step.line,
                expect=step.expect,
                timeout_s=step.timeout_s,
            )
            for step in plan.steps
        ],
        shape=shape(plan),
        connections_per_vu=max((len(slots_of(layer)) for layer in plan.layers), default=1),
        checks=[hook.name for hook in plan.checks],
        check_steps={hook.name: list(hook.after) for hook in plan.checks},
        metrics=[
            *(
                MetricManifest(name=name, kind=cast(MetricKind, metric.kind), unit=metric.unit)
                for name, metric in plan.metrics.items()
            ),
            *(
                MetricManifest(name=hook.name, kind="sample", unit=hook.unit)
                for hook in plan.metric_hooks
            ),
        ],
        thresholds=(thresholds := plan.settings.get("thresholds", [])),
        threshold_lines=plan.item_lines("thresholds", len(thresholds)),
        host=host,
        on_control_loss=plan.settings.get("on_control_loss", ""),
        provides={hook.name: list(targets) for hook, targets in plan.providers},
        uses=[
            UseManifest(
                hook=hook.name,
                sources=list(sources),
                arguments=[parameter.name for parameter in hook.parameters],
                collects=[each.name for each in hook.parameters if is_all(each.annotation)],
            )
            for hook, sources in plan.consumers
        ],
        wants=_wants(plan),
        feeds=list(plan.feeds),
        data_files=_data_files(plan),
        reporting=bool(plan.settings.get("reporting")),
        live_reporting=any(map(is_live_reporter, plan.settings.get("reporting") or ())),
        outputs=sorted(filter(None, map(output_kind, plan.settings.get("reporting") or ()))),
        warnings=list(plan.warnings),
    )


def _data_files(plan: WorkflowPlan) -> list[str]:
    """Files that feeds, `.proto` files and arguments name, as the author wrote them. A directory
    ends with a slash; a pattern stays one."""
    named = [feed.path for feed in plan.feeds.values() if feed.path is not None]
    named += [path for proto in plan.protos.values() for path in proto.paths]
    for hook in plan.hooks():
        for parameter in hook.parameters:
            if parameter.kind is not None:
                named += named_files(parameter.kind, parameter.default)
    return sorted(set(named))


def _wants(plan: WorkflowPlan) -> list[str]:
    names = {
        parameter.name
        for hook in plan.hooks()
        for parameter in hook.parameters
        if parameter.source == "context"
    }
    return sorted(names)


def _warn_about_names(plan: WorkflowPlan) -> None:
    """Warns about attributes like `tresholds = [...]`: legal Python, but no setting."""
    known = [name for name in vars(Workflow) if not name.startswith("_")]
    for base in plan.workflow.__mro__:
        if base is Workflow:
            break
        for name, value in vars(base).items():
            if name.startswith("_") or name in known or callable(value):
                continue
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
            if close and not isinstance(value, (Hook, Step, Feed, Resource, Metric)):
                plan.warnings.append(
                    f"{plan.file}:{plan.line_of(name)}  {plan.name}: {name} is not a setting; "
                    f"did you mean {close[0]}?"
                )


def _profile(plan: WorkflowPlan, options: RunOptions, flags: ProfileFlags) -> Profile:
    attributes = {
        name: plan.written[name]
        for name in PROFILE_ATTRIBUTES
        # `think = 0` means no pause.
        if plan.settings.get(name) is not None
    }
    try:
        profile = resolve_profile(attributes, flags, is_test=plan.is_test)
    except ConfigError as error:
        # The message begins with the attribute that is wrong.
        plan.problem(plan.line_of(str(error).partition(" ")[0]), "", str(error))
        return Profile()
    if options.once and plan.is_test:
        return Profile(
            model="iterations", vus=1, max_vus=1, iterations=1, duration_s=profile.duration_s
        )
    return profile


def _relative_urls(plan: WorkflowPlan) -> list[tuple[Any, Any]]:
    return [
        (hook, parameter)
        for hook in plan.hooks()
        for parameter in hook.parameters
        if parameter.kind is URL_KIND
        and isinstance(parameter.default, str)
        and parameter.default.startswith("/")
    ]


def _ignores_host(plans: Iterable[WorkflowPlan]) -> bool:
    """Whether the file declares URLs, none of them is relative, and no function has text that may
    be one. URLs of feeds and of other modules cannot be seen."""
    declares = False
    for plan in plans:
        kinds = [parameter.kind for hook in plan.hooks() for parameter in hook.parameters]
        declares = declares or URL_KIND in kinds
        bases = [base for base in plan.workflow.__mro__ if base not in Workflow.__mro__]
        members = [member for base in bases for member in vars(base).values()]
        codes = [code for member in members if (code := code_of(member)) is not None]
        written = any(text.startswith("/") for code in codes for text in strings_in(code))
        if written or _relative_urls(plan):
            return False
    return declares


def shape(plan: WorkflowPlan) -> str:
    """Draws the steps: `login -> (cart | offers) -> pay`, with weights `(browse 7 | buy 3)`."""
    parts: list[str] = []
    for layer in plan.layers:
        names = [
            step.name if step.weight is None else f"{step.name} {step.weight}" for step in layer
        ]
        parts.append(names[0] if len(names) == 1 else f"({' | '.join(names)})")
    return " -> ".join(parts)
