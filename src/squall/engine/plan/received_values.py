"""Decides which values a workflow receives from earlier ones, on one machine and on clusters.

If two workflows provide a value of the same name, the one that the `Use` hook names first wins.
Without a hook the first one in the file wins. The order in which they ended never matters.
"""

from __future__ import annotations

from collections.abc import Mapping

from squall.stats.manifest import FileManifest, WorkflowManifest

Values = Mapping[str, bytes]


def received_by(
    manifest: FileManifest,
    workflow: WorkflowManifest,
    values: Mapping[str, Values],
    provided: Mapping[str, Values],
) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Returns the values for its context, and those for its `Use` hooks as "hook.argument".
    `values` has the contexts and `provided` the `@state` values of finished workflows."""
    given: dict[str, bytes] = {}
    received: dict[str, bytes] = {}
    for use in workflow.uses:
        for source in use.sources:
            mine = _provided_to(manifest, workflow, source, provided.get(source, {}))
            for key, value in mine.items():
                given.setdefault(key, value)
                if key in use.arguments:
                    received.setdefault(f"{use.hook}.{key}", value)
    for source in manifest.workflows:
        mine = _provided_to(manifest, workflow, source.name, provided.get(source.name, {}))
        for key in workflow.wants:
            if key in mine:
                given.setdefault(key, mine[key])
    context: dict[str, bytes] = {}
    for name in workflow.depends:
        context.update(values.get(name, {}))
    return context | given, received


def shadowed_values(manifest: FileManifest, workflow: WorkflowManifest) -> list[str]:
    """A warning for each hook argument for which several workflows provide a value."""
    found: list[str] = []
    for use in workflow.uses:
        for argument in use.arguments:
            sources = [
                source
                for source in use.sources
                if workflow.name in manifest.workflow(source).provides.get(argument, ())
            ]
            if len(sources) > 1:
                both = " and ".join(sources)
                found.append(
                    f"{workflow.name}.{use.hook}: {argument} comes from {both}; "
                    f"the value of {sources[0]} is used"
                )
    return found


def _provided_to(
    manifest: FileManifest, workflow: WorkflowManifest, source: str, provided: Values
) -> dict[str, bytes]:
    """The values that `source` provides to this workflow."""
    if not provided:
        return {}
    targets = manifest.workflow(source).provides
    return {key: value for key, value in provided.items() if workflow.name in targets.get(key, ())}
