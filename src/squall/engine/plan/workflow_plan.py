"""Reads one workflow class into a plan: hooks, step DAG, and where arguments come from.

Everything that can be decided before the first request is decided here. The planner collects
all mistakes of a class instead of stopping at the first, and never runs a hook.

The value of a hook's parameter comes from the first of these: a prepared argument type such
as `URL`; a step it depends on, directly or through others; a start action; a step or `@state`
key of a workflow named in `@depends`; a key of `self.context`; its default.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast, get_type_hints

from squall.api.arguments import Prepared
from squall.api.errors import ConfigError
from squall.api.feeds import Feed
from squall.api.hooks import DEPENDS, ActionHook, CheckHook, Hook, MetricHook, StateHook, Step
from squall.api.metrics import Metric
from squall.api.protocols.proto import Proto
from squall.api.quantities import quoted
from squall.api.resources import Resource
from squall.api.workflow import Workflow
from squall.engine.plan.annotations import (
    compatible,
    is_all,
    is_provide,
    is_use,
    measured,
    prepared_kind,
)
from squall.engine.plan.author_file import attribute_lines, class_line, shown_line
from squall.engine.plan.declared_values import ATTRIBUTES, read_option
from squall.engine.plan.layers import suggest, topological_layers
from squall.engine.plan.lost_declarations import (
    hidden_among_bases,
    lost_in_bodies,
    lost_to_subclasses,
)
from squall.engine.plan.written_code import (
    asserts_only,
    code_of,
    def_line,
    forgets_return,
    names_in,
    strings_in,
)
from squall.stats.manifest import ITERATION, START
from squall.stats.thresholds.binding import METRIC_NAMES_TAKEN, STEP_NAMES_TAKEN

RESERVED = frozenset(
    {name for name in vars(Workflow) if not name.startswith("__")}
    | {"client", "context", "vu", "reporting", "tags"}
)
# Set on every user, or methods of `Workflow`: a class attribute of that name would hide them.
_OF_USERS = ("client", "context", "vu")
_OF_WORKFLOW = ("check", "pause", "timed")
# Rows of the results that are no steps.
_ROWS = frozenset({ITERATION, START})
_TAKEN: dict[type[Hook], frozenset[str]] = {
    CheckHook: _ROWS,
    MetricHook: _ROWS | METRIC_NAMES_TAKEN,
}
Source = Literal["prepared", "step", "context"]


@dataclass
class Parameter:
    name: str
    source: Source
    annotation: Any
    default: Any = inspect.Parameter.empty
    kind: type[Prepared] | None = None

    @property
    def has_default(self) -> bool:
        return self.default is not inspect.Parameter.empty


@dataclass
class HookPlan:
    """A check, metric, action or state hook."""

    name: str
    function: Callable[..., Any]
    line: int
    parameters: list[Parameter] = field(default_factory=list[Parameter])
    after: list[str] = field(default_factory=list[str])
    unknown: list[str] = field(default_factory=list[str])
    """Names in the decorator that are no steps."""
    returns: Any = None
    unit: str = ""

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    @property
    def asserts_only(self) -> bool:
        """A check that returns nothing on purpose."""
        return asserts_only(self.function)


@dataclass
class StepPlan(HookPlan):
    layer: int = 0
    ancestors: set[str] = field(default_factory=set[str])
    protocol: str = ""
    result: type | None = None
    weight: int | None = None
    expect: list[tuple[int, int]] = field(default_factory=lambda: [(200, 399)])
    timeout_s: float | None = None
    stops: bool = False
    """A failed status ends the iteration."""


@dataclass
class WorkflowPlan:
    workflow: type[Workflow]
    name: str
    file: str
    line: int
    depends: list[str]
    always: bool
    steps: list[StepPlan] = field(default_factory=list[StepPlan])
    layers: list[list[StepPlan]] = field(default_factory=list[list[StepPlan]])
    checks: list[HookPlan] = field(default_factory=list[HookPlan])
    metric_hooks: list[HookPlan] = field(default_factory=list[HookPlan])
    start_actions: list[HookPlan] = field(default_factory=list[HookPlan])
    end_actions: list[HookPlan] = field(default_factory=list[HookPlan])
    providers: list[tuple[HookPlan, tuple[str, ...]]] = field(
        default_factory=list[tuple[HookPlan, tuple[str, ...]]]
    )
    consumers: list[tuple[HookPlan, tuple[str, ...]]] = field(
        default_factory=list[tuple[HookPlan, tuple[str, ...]]]
    )
    feeds: dict[str, Feed[Any]] = field(default_factory=dict[str, Feed[Any]])
    resources: dict[str, Resource[Any]] = field(default_factory=dict[str, Resource[Any]])
    metrics: dict[str, Metric] = field(default_factory=dict[str, Metric])
    protos: dict[str, Proto] = field(default_factory=dict[str, Proto])
    written: dict[str, Any] = field(default_factory=dict[str, Any])
    """The class attributes that the author set, as written, without those that are wrong."""
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    """The same in the form that the engine uses."""
    warnings: list[str] = field(default_factory=list[str])
    problems: list[str] = field(default_factory=list[str])

    @property
    def is_test(self) -> bool:
        return any(step.protocol for step in self.steps)

    def problem(self, line: int, hook: str, text: str) -> None:
        subject = f"{self.name}.{hook}" if hook else self.name
        self.problems.append(f"{self.file_of(hook)}:{line}  {subject}: {text}")

    def file_of(self, hook: str) -> str:
        """The file that a hook is written in: a base class may be imported."""
        code = code_of(attribute(self.workflow, hook))
        module = sys.modules.get(self.workflow.__module__)
        if code is None or code.co_filename == getattr(module, "__file__", code.co_filename):
            return self.file
        return Path(code.co_filename).name

    def line_of(self, attribute: str) -> int:
        """The line of a class attribute; that of the class if the attribute is not in the file."""
        return attribute_lines(self.workflow).get(attribute, [self.line])[0]

    def item_lines(self, attribute: str, number: int) -> list[int]:
        """The lines of the items of a class attribute: that of the attribute for each, if they are
        not written out there."""
        line, *items = attribute_lines(self.workflow).get(attribute, [self.line])
        return items if len(items) == number else [line] * number

    def step(self, name: str) -> StepPlan:
        return next(step for step in self.steps if step.name == name)

    def hooks(self) -> list[HookPlan]:
        return [
            *self.steps,
            *self.checks,
            *self.metric_hooks,
            *self.start_actions,
            *self.end_actions,
            *(hook for hook, _ in self.providers),
        ]


def attribute(workflow: type[Workflow], name: str) -> Any:
    """The value that the author set for a class attribute; None if it has Squall's default."""
    for base in workflow.__mro__:
        if base is Workflow:
            return None
        if name in vars(base):
            return vars(base)[name]
    return None


def read_workflow(workflow: type[Workflow], file: str) -> WorkflowPlan:
    """Reads one class into a plan; `bind_parameters` binds the parameters later."""
    names, whens = _declared_dependencies(workflow)
    plan = WorkflowPlan(
        workflow=workflow,
        name=workflow.__name__,
        file=file,
        line=class_line(workflow),
        depends=[],
        always=False,
    )
    plan.depends = _workflow_names(plan, plan.line, "", "depends", names)
    for when in whens:
        read = read_option("when", when, partial(plan.problem, plan.line, ""))
        plan.always = plan.always or read == "always"
    _read_attributes(plan)
    _refuse_lost(plan)
    previous: str | None = None
    for name, member in _members(workflow).items():
        if isinstance(member, Step | Hook) and not member.name:
            # Python names what stands in the class body, but not `Shop.pay = step()(pay)`.
            member.__set_name__(workflow, name)
        if isinstance(member, Step):
            previous = _add_step(plan, cast(Step[..., Any], member), previous)
        elif isinstance(member, Hook):
            _add_hook(plan, member)
        elif isinstance(member, Feed):
            plan.feeds[name] = member
        elif isinstance(member, Resource):
            plan.resources[name] = member
        elif isinstance(member, Proto):
            plan.protos[name] = member
        elif isinstance(member, Metric):
            plan.metrics[name] = member
            if name in METRIC_NAMES_TAKEN:
                plan.problem(plan.line, name, f'"{name}" is reserved; choose another name')
    _order_steps(plan)
    if not plan.steps and not plan.start_actions and not plan.problems:
        plan.problem(plan.line, "", "has no steps; decorate an async method with @step()")
    return plan


def _declared_dependencies(workflow: type[Workflow]) -> tuple[list[Any], list[Any]]:
    """Those of the class and of its bases: `@depends` of a subclass adds to theirs, as hooks do."""
    found = [vars(base)[DEPENDS] for base in workflow.__mro__ if DEPENDS in vars(base)]
    return [name for names, _ in found for name in names], [w for _, whens in found for w in whens]


def _read_attributes(plan: WorkflowPlan) -> None:
    """Reads every class attribute of the table. None undoes the attribute of a base class."""
    for name, read in ATTRIBUTES.items():
        value = attribute(plan.workflow, name)
        # A hook of that name is refused with the other hooks.
        if value is None or isinstance(value, (Hook, Step)):
            continue
        try:
            plan.settings[name] = read(value, name)
            plan.written[name] = value
        except ConfigError as error:
            plan.problem(plan.line_of(name), "", str(error))
    for base in plan.workflow.__mro__:
        if base is Workflow:
            break
        for name, value in vars(base).items():
            is_hidden = name in _OF_USERS or (name in _OF_WORKFLOW and not callable(value))
            if is_hidden and not isinstance(value, (Hook, Step)):
                text = f'{name} = {quoted(value)}: "{name}" is reserved; choose another name'
                plan.problem(plan.line_of(name), "", text)


def _refuse_lost(plan: WorkflowPlan) -> None:
    for lost in (*lost_in_bodies(plan.workflow), *lost_to_subclasses(plan.workflow)):
        plan.problem(lost.line or plan.line_of(lost.name), lost.name, lost.text)
    for text in hidden_among_bases(plan.workflow):
        plan.warnings.append(f"{plan.file}:{plan.line}  {plan.name}: {text}")


def _workflow_names(
    plan: WorkflowPlan, line: int, hook: str, decorator: str, given: Sequence[object]
) -> list[str]:
    names: list[str] = []
    for name in given:
        if isinstance(name, type) and issubclass(name, Workflow):
            name = name.__name__
        if isinstance(name, str):
            names.append(name)
        else:
            shown = quoted(cast(object, name))
            text = f'@{decorator}({shown}): name a workflow, such as @{decorator}("Setup")'
            plan.problem(line, hook, text)
    return list(dict.fromkeys(names))


def _step_names(
    plan: WorkflowPlan, hook: HookPlan, decorator: str, given: Sequence[object]
) -> list[str]:
    names: list[str] = []
    for name in given:
        if isinstance(name, Step):
            name = cast(Step[..., Any], name).name
        if isinstance(name, str):
            names.append(name)
        else:
            text = f'@{decorator}({quoted(name)}): name a step, such as @{decorator}("login")'
            plan.problem(hook.line, hook.name, text)
    return list(dict.fromkeys(names))


def bind_parameters(plan: WorkflowPlan, offered: dict[str, Any]) -> None:
    """Finds the source of every parameter. `offered` maps the names that workflows in
    `@depends` provide to their annotations."""
    results = {step.name: step for step in plan.steps}
    starts = {hook.name: hook for hook in plan.start_actions}
    written = _context_keys(plan)
    for hook in plan.hooks():
        visible = _visible_steps(plan, hook, results)
        for parameter in hook.parameters:
            if is_all(parameter.annotation):
                text = f"argument {parameter.name}: All[...] is for a @state hook with Use[...]"
                plan.problem(hook.line, hook.name, text)
            if parameter.kind is not None:
                if not parameter.has_default:
                    plan.problem(
                        hook.line,
                        hook.name,
                        f"argument {parameter.name} needs a default value to prepare",
                    )
                continue
            if parameter.name in visible:
                parameter.source = "step"
                _compare(plan, hook, parameter, results[parameter.name].returns)
            elif parameter.name in starts and hook.name != parameter.name:
                _compare(plan, hook, parameter, starts[parameter.name].returns)
            elif parameter.name in offered:
                _compare(plan, hook, parameter, offered[parameter.name])
            elif not parameter.has_default and parameter.name not in written:
                _no_source(plan, hook, parameter.name, [*results, *starts, *offered, *written])


def _members(workflow: type[Workflow]) -> dict[str, Any]:
    """Class members in the order of the file, bases first; an override keeps its place."""
    members: dict[str, Any] = {}
    for base in reversed(workflow.__mro__):
        if base in (object, Workflow):
            continue
        members.update(vars(base))
    return members


def _add_step(plan: WorkflowPlan, member: Step[..., Any], previous: str | None) -> str:
    step = StepPlan(name=member.name, function=member.function, line=def_line(member.function))
    plan.steps.append(step)
    if member.follows:
        step.after = [previous] if previous is not None else []
        if previous is None:
            plan.problem(step.line, step.name, "@then() needs a step above it")
    else:
        step.after = _step_names(plan, step, "step", member.after)
    if not step.is_async:
        plan.problem(step.line, step.name, "a step must be an async def")
    problem = partial(plan.problem, step.line, step.name)
    given = {name: value for name, value in member.options.items() if value is not None}
    options = {name: read_option(name, value, problem) for name, value in given.items()}
    step.weight = options.get("weight")
    step.expect = options.get("expect") or step.expect
    step.timeout_s = options.get("timeout")
    on_failure = options.get("on_failure") or plan.settings.get("on_failure")
    step.stops = on_failure == "stop"
    hints = _read_signature(plan, step, _ROWS | STEP_NAMES_TAKEN)
    if hints is not None:
        if "return" not in hints:
            plan.problems.append(
                f"{plan.file}:{step.line}  {plan.name}.{step.name} needs a return type: "
                '"-> HTTPResponse" measures the request, "-> None" measures nothing'
            )
        else:
            step.protocol, step.result = measured(step.returns)
    return step.name


def _add_hook(plan: WorkflowPlan, member: Hook) -> None:
    hook = HookPlan(name=member.name, function=member.function, line=def_line(member.function))
    problem = partial(plan.problem, hook.line, hook.name)
    _read_signature(plan, hook, _TAKEN.get(type(member), frozenset()))
    if isinstance(member, ActionHook):
        at = read_option("at", member.at, problem)
        (plan.start_actions if at == "start" else plan.end_actions).append(hook)
    elif isinstance(member, CheckHook):
        hook.after = _step_names(plan, hook, "check", member.after)
        plan.checks.append(hook)
        _refuse_forgotten_return(plan, hook)
    elif isinstance(member, MetricHook):
        hook.after = _step_names(plan, hook, "metric", member.after)
        hook.unit = read_option("unit", member.unit, problem) or ""
        plan.metric_hooks.append(hook)
        _refuse_forgotten_return(plan, hook)
    elif isinstance(member, StateHook):
        workflows = tuple(_workflow_names(plan, hook.line, hook.name, "state", member.workflows))
        if not member.workflows:
            plan.warnings.append(
                f"{plan.file}:{hook.line}  {plan.name}.{hook.name}: "
                "@state() names no workflow, so no workflow receives the value"
            )
        if is_provide(hook.returns):
            plan.providers.append((hook, workflows))
            _refuse_forgotten_return(plan, hook)
        elif is_use(hook.returns):
            plan.consumers.append((hook, workflows))
        else:
            plan.problem(hook.line, hook.name, "a state hook returns Provide[...] or Use[...]")


def _refuse_forgotten_return(plan: WorkflowPlan, hook: HookPlan) -> None:
    if forgets_return(hook.function):
        plan.problem(hook.line, hook.name, "never returns a value; write return")


def _read_signature(
    plan: WorkflowPlan, hook: HookPlan, taken: frozenset[str] = frozenset()
) -> dict[str, Any] | None:
    if hook.name in RESERVED | taken:
        plan.problem(hook.line, hook.name, f'"{hook.name}" is reserved; choose another name')
    try:
        hints = get_type_hints(hook.function, include_extras=True)
    except Exception as error:
        plan.problem(hook.line, hook.name, f"annotation cannot be resolved: {error}")
        return None
    hook.returns = hints.get("return")
    parameters = list(inspect.signature(hook.function).parameters.values())
    if not _takes_self(plan, parameters):
        plan.problem(hook.line, hook.name, "needs self as its first argument")
        return hints
    for parameter in parameters[1:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY:
            plan.problem(hook.line, hook.name, f"argument {parameter.name} is positional-only")
            continue
        annotation = hints.get(parameter.name, Any)
        kind = prepared_kind(annotation)
        hook.parameters.append(
            Parameter(
                name=parameter.name,
                source="prepared" if kind is not None else "context",
                annotation=annotation,
                default=parameter.default,
                kind=kind,
            )
        )
    return hints


def _takes_self(plan: WorkflowPlan, parameters: Sequence[inspect.Parameter]) -> bool:
    """False if the first argument is missing, or clearly meant for a value."""
    if not parameters:
        return False
    first = parameters[0]
    if first.kind in (first.KEYWORD_ONLY, first.VAR_KEYWORD):
        return False
    if first.name == "self" or first.kind is first.VAR_POSITIONAL:
        return True
    is_bare = first.annotation is first.empty and first.default is first.empty
    return is_bare and first.name not in _members(plan.workflow)


def _order_steps(plan: WorkflowPlan) -> None:
    names = [step.name for step in plan.steps]
    for hook in [*plan.steps, *plan.checks, *plan.metric_hooks]:
        hook.unknown = [name for name in hook.after if name not in names]
        hook.after = [name for name in hook.after if name in names]
        for name in hook.unknown:
            plan.problem(hook.line, hook.name, f'no step "{name}"{suggest(name, names)}')
    try:
        layers = topological_layers({step.name: step.after for step in plan.steps}, "step")
    except ConfigError as error:
        plan.problem(plan.line, "", str(error))
        return
    plan.layers = [[plan.step(name) for name in layer] for layer in layers]
    for index, layer in enumerate(plan.layers):
        for step in layer:
            step.layer = index
            for name in step.after:
                step.ancestors |= {name} | plan.step(name).ancestors
    _warn_about_shape(plan)


def _warn_about_shape(plan: WorkflowPlan) -> None:
    roots = [step for step in plan.steps if not step.after and step.weight is None]
    if len(roots) > 1:
        names = ", ".join(step.name for step in roots)
        plan.warnings.append(
            f"{plan.file}:{roots[1].line}  {plan.name}: {names} start at the same time; "
            "write @then() for one after the other"
        )
    for step in plan.steps:
        for group in weight_groups(plan.steps):
            both = [other.name for other in group if other.name in step.ancestors]
            if len(both) > 1:
                plan.warnings.append(
                    f"{plan.file}:{step.line}  {plan.name}.{step.name} never runs: it waits for "
                    f"{' and '.join(both)}, and an iteration runs only one of them"
                )


def step_places(plan: WorkflowPlan) -> dict[str, str]:
    """Where each step is defined: `shop.py:31 in pay`."""
    codes = [(step, code_of(step.function)) for step in plan.steps]
    return {
        step.name: f"{shown_line(code.co_filename, step.line)} in {step.name}"
        for step, code in codes
        if code is not None
    }


def weight_groups(steps: Sequence[StepPlan]) -> list[list[StepPlan]]:
    """Groups of steps with a weight and the same dependencies; one of each group runs."""
    groups: dict[frozenset[str], list[StepPlan]] = {}
    for step in steps:
        if step.weight is not None:
            groups.setdefault(frozenset(step.after), []).append(step)
    return list(groups.values())


def slots_of(layer: Sequence[StepPlan]) -> list[list[StepPlan]]:
    """The parts of a layer that run at the same time: single steps, and weight groups."""
    slots: dict[frozenset[str] | str, list[StepPlan]] = {}
    for step in layer:
        key = step.name if step.weight is None else frozenset(step.after)
        slots.setdefault(key, []).append(step)
    return list(slots.values())


def mentions(plan: WorkflowPlan, name: str) -> bool:
    """Whether a method of the class, or a function of its file, uses an attribute or global of
    that name. Imported code is not searched."""
    bases = [base for base in plan.workflow.__mro__ if base not in (object, Workflow)]
    members = [member for base in bases for member in vars(base).values()]
    for module in {base.__module__ for base in bases}:
        members += vars(sys.modules[module]).values() if module in sys.modules else ()
    codes = [code for member in members if (code := code_of(member)) is not None]
    return any(name in names_in(code) for code in codes)


def _visible_steps(plan: WorkflowPlan, hook: HookPlan, results: dict[str, StepPlan]) -> set[str]:
    if isinstance(hook, StepPlan):
        return hook.ancestors
    visible = set(hook.after)
    for name in hook.after:
        visible |= results[name].ancestors
    return visible


def _compare(plan: WorkflowPlan, hook: HookPlan, parameter: Parameter, produced: Any) -> None:
    if not compatible(produced, parameter.annotation):
        plan.problem(
            hook.line,
            hook.name,
            f"argument {parameter.name} is declared as {_type_name(parameter.annotation)}, "
            f"but {parameter.name} returns {_type_name(produced)}",
        )


def _no_source(plan: WorkflowPlan, hook: HookPlan, name: str, known: list[str]) -> None:
    others = [other for other in known if other != hook.name]
    if hook.unknown and name in (*hook.unknown, *others):
        # Follows from the wrong name in the decorator, which is reported already.
        return
    if name in others:
        text = f'no value for argument {name}: "{name}" is not among the steps it waits for; '
        text += f'write @step("{name}")' if isinstance(hook, StepPlan) else "name it in the hook"
    else:
        text = f'no step "{name}"{suggest(name, others)}'
        text += "" if "did you mean" in text else f"; give argument {name} a source or a default"
    plan.problem(hook.line, hook.name, text)


def _context_keys(plan: WorkflowPlan) -> set[str]:
    """The string constants of hooks that use `self.context`: keys that they may write."""
    keys: set[str] = set()
    for hook in plan.hooks():
        code = code_of(hook.function)
        if code is not None and "context" in names_in(code):
            keys |= strings_in(code)
    return keys


def _type_name(annotation: Any) -> str:
    if isinstance(annotation, type) and not getattr(annotation, "__args__", None):
        return annotation.__name__
    return str(annotation).replace("typing.", "")
