"""Decides which values a workflow receives from earlier ones, on one machine and on clusters.

A workflow receives the context of every set-up workflow that it depends on, directly or through
others, and the `@state` values that both sides name. If several provide a value of one name:

- a `@state` value wins over a context;
- of several `@state` values, that of the workflow which the `Use` hook names first; without a
  hook, that of the first workflow in the file;
- of several contexts, that of the workflow which `@depends` names first; nearer ones win;
- of several processes, the value of the first one that has one.

The order in which workflows and processes ended never matters. An argument `All[T]` receives all
values instead, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from squall.stats.manifest import FileManifest, WorkflowManifest

HAND_OVER_MAX_BYTES = 8 * 1024 * 1024
"""Encoded values that one process of a workflow may hand over; and the further values of all its
processes for `All[T]`. On a cluster they travel with the record of an attempt, of which managers
keep copies."""

Values = Mapping[str, bytes]
Collected = Mapping[str, Sequence[bytes]]
"""`@state` values by name: those of all processes, the one that wins first."""


def collected(parts: Iterable[Values]) -> dict[str, list[bytes]]:
    """The `@state` values of a workflow from those of its processes, ordered by share. Leaves
    out further values beyond `HAND_OVER_MAX_BYTES`."""
    found: dict[str, list[bytes]] = {}
    room = HAND_OVER_MAX_BYTES
    for part in parts:
        for name, value in part.items():
            if name not in found:
                found[name] = [value]
            elif len(value) <= room:
                room -= len(value)
                found[name].append(value)
    return found


def received_by(
    manifest: FileManifest,
    workflow: WorkflowManifest,
    values: Mapping[str, Values],
    provided: Mapping[str, Collected],
) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Returns the values for its context, and those for its `Use` hooks as "hook.argument".
    `values` has the contexts and `provided` the `@state` values of finished workflows."""
    given: dict[str, bytes] = {}
    received: dict[str, bytes] = {}
    for use in workflow.uses:
        every: dict[str, list[bytes]] = {}
        for source in use.sources:
            mine = _provided_to(manifest, workflow, source, provided.get(source, {}))
            for key, found in mine.items():
                given.setdefault(key, found[0])
                every.setdefault(key, []).extend(found)
        for key in use.arguments:
            if key in use.collects:
                parts = [msgspec.Raw(value) for value in every.get(key, ())]
                received[f"{use.hook}.{key}"] = msgspec.msgpack.encode(parts)
            elif key in every:
                received[f"{use.hook}.{key}"] = every[key][0]
    for source in manifest.workflows:
        mine = _provided_to(manifest, workflow, source.name, provided.get(source.name, {}))
        for key in workflow.wants:
            if key in mine:
                given.setdefault(key, mine[key][0])
    context: dict[str, bytes] = {}
    for name in ancestors(manifest, workflow):
        context = {**values.get(name, {}), **context}
    return context | given, received


def ancestors(manifest: FileManifest, workflow: WorkflowManifest) -> list[str]:
    """The workflows that it depends on, directly or through others: nearer ones first, then in
    the order of `@depends`."""
    depends = {each.name: each.depends for each in manifest.workflows}
    return ancestors_of(depends, workflow.depends)


def ancestors_of(depends: Mapping[str, Sequence[str]], direct: Sequence[str]) -> list[str]:
    found: list[str] = []
    queue = list(direct)
    while queue:
        name = queue.pop(0)
        if name not in found:
            found.append(name)
            queue.extend(depends[name])
    return found


def exports_of(manifest: FileManifest, name: str) -> list[str]:
    """The names that other workflows need from this one."""
    return sorted(
        {
            want
            for other in manifest.workflows
            if name in ancestors(manifest, other)
            for want in other.wants
        }
    )


def shadowed_values(manifest: FileManifest, workflow: WorkflowManifest) -> list[str]:
    """A warning for each argument for which several workflows provide a value."""
    found: list[str] = []
    hooked: set[str] = set()
    for use in workflow.uses:
        for argument in use.arguments:
            hooked.add(argument)
            sources = [name for name in use.sources if _gives(manifest, name, argument, workflow)]
            if argument not in use.collects:
                found += _shadowed(f"{workflow.name}.{use.hook}", argument, sources)
    for argument in workflow.wants:
        if argument in hooked:
            continue
        names = [each.name for each in manifest.workflows]
        sources = [name for name in names if _gives(manifest, name, argument, workflow)]
        for name in ancestors(manifest, workflow):
            source = manifest.workflow(name)
            if not source.is_test and any(step.name == argument for step in source.steps):
                sources.append(name)
        found += _shadowed(workflow.name, argument, list(dict.fromkeys(sources)))
    return found


def _shadowed(where: str, argument: str, sources: list[str]) -> list[str]:
    if len(sources) < 2:
        return []
    text = f"{argument} comes from {' and '.join(sources)}; the value of {sources[0]} is used"
    return [f"{where}: {text}"]


def _gives(manifest: FileManifest, source: str, key: str, workflow: WorkflowManifest) -> bool:
    return workflow.name in manifest.workflow(source).provides.get(key, ())


def _provided_to(
    manifest: FileManifest, workflow: WorkflowManifest, source: str, provided: Collected
) -> dict[str, Sequence[bytes]]:
    """The values that `source` provides to this workflow."""
    if not provided:
        return {}
    return {
        key: found
        for key, found in provided.items()
        if found and _gives(manifest, source, key, workflow)
    }
