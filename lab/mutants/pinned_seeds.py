"""The seed that finds each mutant, so that every change can check all of them in seconds.

`pinned_seeds.toml` holds one table per scenario. A change to the code or to a scenario can change
what a seed does; the test then fails and names the command that searches for a new seed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Container, Mapping
from pathlib import Path

FILE = Path(__file__).with_suffix(".toml")
HEAD = "# The seed that finds each mutant; `python -m lab mutants SCENARIO --pin` writes it.\n"


def pinned() -> dict[str, dict[str, int]]:
    """Returns scenario -> mutant -> seed."""
    return tomllib.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}


def pin(scenario: str, found: Mapping[str, int], *, keep: Container[str]) -> None:
    """Writes the found seeds, and drops mutants of the scenario that no longer exist."""
    tables = pinned()
    seeds = {**tables.get(scenario, {}), **found}
    tables[scenario] = {mutant: seed for mutant, seed in seeds.items() if mutant in keep}
    lines = [HEAD]
    for name in sorted(tables):
        lines.append(f"\n[{name}]\n")
        lines.extend(f"{mutant} = {seed}\n" for mutant, seed in sorted(tables[name].items()))
    FILE.write_text("".join(lines), encoding="utf-8")
