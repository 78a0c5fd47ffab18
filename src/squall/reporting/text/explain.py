"""Renders `squall explain`: what a run would do, from the plan alone.

The functions that plan real runs compute everything here, so this text cannot differ from what
`squall run` does. It never uses the network.
"""

from __future__ import annotations

from collections.abc import Sequence

from squall.api.quantities import format_rate
from squall.engine.load.core_partition import Phase, describe_sharing, place
from squall.engine.load.profile import describe
from squall.engine.load.schedule import StartSchedule
from squall.engine.load.share_specs import iterations_of_shares
from squall.engine.load.user_split import split_users
from squall.engine.plan.layers import topological_layers
from squall.reporting.number_format import plural
from squall.stats.manifest import HTTP_PROTOCOLS, FileManifest, StepManifest, WorkflowManifest

# Width of the label `order` with two spaces, and of short workflow names.
_LABEL_WIDTH = 7


def render_explain(manifest: FileManifest, *, cores: int, descriptor_limit: int) -> str:
    """`descriptor_limit` is the limit of one core process."""
    phases = run_phases(manifest, cores)
    placed = {name: indices for phase in phases for name, indices in phase.items()}
    width = max(_LABEL_WIDTH, *(len(w.name) + 2 for w in manifest.workflows))
    lines: list[str] = []
    for workflow in manifest.workflows:
        details = _details(workflow, placed[workflow.name], descriptor_limit)
        lines += _block(workflow.name, [_headline(workflow)], width)
        lines += _block("", _columns(details), width)
    lines += _block("order", [_order(manifest)], width)
    shared = [line for phase in phases for line in describe_sharing(phase)]
    lines += _block("cores", shared, width) if shared else []
    lines += [f"warning: {text}" for text in manifest.all_warnings]
    lines.append("no request was sent")
    return "\n".join(lines)


def run_phases(manifest: FileManifest, cores: int) -> list[Phase]:
    """The layers in order of time, each workflow with its cores."""
    layers = _layers(manifest)
    return [
        phase
        for layer in layers
        for phase in place([manifest.workflow(name) for name in layer], cores)
    ]


def planned_length_s(manifest: FileManifest) -> float:
    """The sum over the layers; in each layer the longest workflow counts."""
    layers = [[manifest.workflow(name) for name in layer] for layer in _layers(manifest)]
    return sum(max((w.profile.duration_s for w in layer), default=0.0) for layer in layers)


def planned_iterations(workflow: WorkflowManifest) -> int | None:
    """How many iterations a run makes; None if the target's speed decides."""
    profile = workflow.profile
    if profile.model == "once":
        return profile.vus
    if profile.model == "iterations":
        return profile.iterations
    return StartSchedule(profile).total if profile.is_open else None


def requests_per_iteration(steps: Sequence[StepManifest]) -> tuple[float, bool]:
    """Measured HTTP calls of one iteration on average, and whether that is exact.

    Exactly one of the steps with a weight and the same dependencies runs; steps that depend on
    the others do not run.
    """
    chosen: dict[str, dict[tuple[str, ...], str]] = {}
    total, exact = 0.0, True
    weights: dict[tuple[str, ...], int] = {}
    for step in steps:
        if step.weight is not None:
            group = tuple(sorted(step.after))
            weights[group] = weights.get(group, 0) + step.weight
    by_name = {step.name: step for step in steps}
    for step in sorted(steps, key=lambda each: each.layer):
        needs: dict[tuple[str, ...], str] = {}
        possible = True
        for needed in step.after:
            for group, name in chosen[needed].items():
                possible = possible and needs.setdefault(group, name) == name
        if step.weight is not None:
            needs[tuple(sorted(step.after))] = step.name
        chosen[step.name] = needs
        if step.protocol not in HTTP_PROTOCOLS or not possible:
            continue
        share = 1.0
        for group, name in needs.items():
            share *= (by_name[name].weight or 0) / weights[group]
            exact = False
        total += share
    return total, exact


def _headline(workflow: WorkflowManifest) -> str:
    kind = "test, " if workflow.is_test else ""
    text = f"{kind}{describe(workflow.profile)}"
    iterations = planned_iterations(workflow)
    if not workflow.is_test or iterations is None:
        return text
    requests, exact = requests_per_iteration(workflow.steps)
    if workflow.profile.model != "iterations":
        text += f" = {plural(iterations, 'iteration')}"
    about = "" if exact else "about "
    return f"{text}, {about}{plural(round(iterations * requests), 'request')}"


def _details(
    workflow: WorkflowManifest, cores: tuple[int, ...], descriptor_limit: int
) -> list[tuple[str, str]]:
    layers = 1 + max((step.layer for step in workflow.steps), default=0)
    connections = workflow.connections_per_vu
    profile = workflow.profile
    most = max(profile.max_vus, profile.vus)
    descriptors = f"{plural(most * connections, 'descriptor')} (limit {descriptor_limit})"
    users = f"up to {plural(most, 'user')}" if profile.is_open else plural(most, "user")
    return [
        (
            workflow.shape or "no steps",
            f"{plural(layers, 'layer')}, up to {plural(connections, 'connection')} a user",
        ),
        (_shares(workflow, cores), f"{users}, {descriptors}"),
    ]


def _shares(workflow: WorkflowManifest, cores: tuple[int, ...]) -> str:
    profile = workflow.profile
    count = len(cores)
    if profile.model == "open":
        amounts = [format_rate(profile.rate_per_s / count)] * count
    elif profile.model == "open-ramp":
        peak = max(stage.target for stage in profile.stages)
        amounts = [f"up to {format_rate(peak / count)}"] * count
    elif profile.model == "iterations":
        users = split_users(profile.vus, count)
        amounts = [plural(n, "iteration") for n in iterations_of_shares(profile, users)]
    elif profile.model == "ramp":
        amounts = [f"up to {plural(n, 'user')}" for n in split_users(profile.max_vus, count)]
    else:
        amounts = [plural(n, "user") for n in split_users(profile.vus, count)]
    return ", ".join(f"core {core}: {amount}" for core, amount in zip(cores, amounts, strict=False))


def _order(manifest: FileManifest) -> str:
    def shown(name: str) -> str:
        workflow = manifest.workflow(name)
        if workflow.always:
            return f"{name} (always)"
        return name if workflow.is_test else f"{name} (once)"

    return " -> ".join(" + ".join(map(shown, layer)) for layer in _layers(manifest))


def _layers(manifest: FileManifest) -> list[list[str]]:
    return topological_layers({w.name: w.depends for w in manifest.workflows}, noun="workflow")


def _columns(pairs: Sequence[tuple[str, str]]) -> list[str]:
    width = max(len(left) for left, _ in pairs) + 6
    return [f"{left:<{width}}{right}" for left, right in pairs]


def _block(label: str, lines: Sequence[str], width: int) -> list[str]:
    return [f"{label if i == 0 else '':<{width}}{line}" for i, line in enumerate(lines)]
