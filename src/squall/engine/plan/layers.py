"""Orders steps or workflows that depend on each other into layers.

An item's layer is one more than the highest layer that it depends on (longest path), so
everything it waits for is in earlier layers. Wrong names and cycles are found here, before any
load; the message names them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence

from squall.api.errors import ConfigError

_MOST_NAMES_LISTED = 8


def topological_layers(
    dependencies: Mapping[str, Sequence[str]], noun: str = "step"
) -> list[list[str]]:
    """Returns the layers, each in the order of the input. `noun` is used in errors."""
    _check_names(dependencies, noun)
    waiting = {name: set(after) for name, after in dependencies.items()}
    dependents: dict[str, list[str]] = {name: [] for name in dependencies}
    for name, after in waiting.items():
        for needed in after:
            dependents[needed].append(name)
    position = {name: index for index, name in enumerate(dependencies)}
    layers: list[list[str]] = []
    layer = [name for name, after in waiting.items() if not after]
    while layer:
        layers.append(layer)
        ready: list[str] = []
        for done in layer:
            del waiting[done]
            for name in dependents[done]:
                waiting[name].discard(done)
                if not waiting[name]:
                    ready.append(name)
        layer = sorted(ready, key=position.__getitem__)
    if waiting:
        cycle = " -> ".join(_find_cycle(dependencies, waiting))
        raise ConfigError(f"{noun}s wait for each other: {cycle}; remove one of these dependencies")
    return layers


def suggest(name: str, known: Iterable[str]) -> str:
    """Ends an error about an unknown name: `; did you mean "cart"?`, or the known names."""
    names = list(known)
    by_lower = {each.lower(): each for each in reversed(names)}
    close = difflib.get_close_matches(name.lower(), list(by_lower), n=1)
    if close:
        return f'; did you mean "{by_lower[close[0]]}"?'
    if 0 < len(names) <= _MOST_NAMES_LISTED:
        return f"; known: {', '.join(names)}"
    return ""


def _check_names(dependencies: Mapping[str, Sequence[str]], noun: str) -> None:
    for name, after in dependencies.items():
        for needed in after:
            if needed == name:
                raise ConfigError(f'{noun} "{name}" depends on itself')
            if needed not in dependencies:
                others = [other for other in dependencies if other != name]
                raise ConfigError(
                    f'{noun} "{name}" depends on "{needed}", but there is no such {noun}'
                    + suggest(needed, others)
                )


def _find_cycle(
    dependencies: Mapping[str, Sequence[str]], stuck: Mapping[str, set[str]]
) -> list[str]:
    """A cycle among the remaining names, beginning with its first name in input order."""
    path: list[str] = [next(iter(stuck))]
    # Each remaining name waits for a remaining name, so the walk returns to one it has seen.
    while True:
        following = next(needed for needed in dependencies[path[-1]] if needed in stuck)
        if following in path:
            cycle = path[path.index(following) :]
            break
        path.append(following)
    members = set(cycle)
    first = cycle.index(next(name for name in dependencies if name in members))
    cycle = cycle[first:] + cycle[:first]
    return [*cycle, cycle[0]]
