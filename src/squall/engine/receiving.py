"""What a workflow receives from those before it: the same on one machine and on many.

Of two workflows that give a value of the same name, the one that the `Use` hook names
first wins, and without a hook the first of the file; never the one that happened to end
first.
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
    """Values for its context, and for its `Use` hooks as "hook.argument". `values` are the
    contexts and `provided` the values of `@state` hooks, by workflow that is over."""
    given: dict[str, bytes] = {}
    received: dict[str, bytes] = {}
    for use in workflow.uses:
        for source in use.sources:
            mine = _meant_for(manifest, workflow, source, provided.get(source, {}))
            for key, value in mine.items():
                given.setdefault(key, value)
                if key in use.arguments:
                    received.setdefault(f"{use.hook}.{key}", value)
    for source in manifest.workflows:
        mine = _meant_for(manifest, workflow, source.name, provided.get(source.name, {}))
        for key in workflow.wants:
            if key in mine:
                given.setdefault(key, mine[key])
    context: dict[str, bytes] = {}
    for name in workflow.depends:
        context.update(values.get(name, {}))
    return context | given, received


def same_names(manifest: FileManifest, workflow: WorkflowManifest) -> list[str]:
    """A line for each argument of its hooks that two workflows give a value to."""
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
                    f"that of {sources[0]} is used"
                )
    return found


def _meant_for(
    manifest: FileManifest, workflow: WorkflowManifest, source: str, provided: Values
) -> dict[str, bytes]:
    """What `source` gives to this workflow by name."""
    if not provided:
        return {}
    targets = manifest.workflow(source).provides
    return {key: value for key, value in provided.items() if workflow.name in targets.get(key, ())}
