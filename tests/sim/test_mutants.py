"""Every known bug is found by the seed that is pinned for it."""

from __future__ import annotations

import pytest

from lab.mutants.pinned_seeds import pinned
from lab.scenarios.registry import find, names
from lab.sim.run import run_seed

MUTANTS = [(name, mutant) for name in names() for mutant in find(name).mutants]


@pytest.mark.parametrize(("name", "mutant"), MUTANTS, ids=lambda word: str(word))
def test_the_pinned_seed_finds_the_mutant(name: str, mutant: str) -> None:
    seed = pinned().get(name, {}).get(mutant)
    hunt = f"hunt for one: python -m lab mutants {name} --mutant {mutant} --jobs 2 --pin"
    assert seed is not None, f"no seed is pinned; {hunt}"
    scenario = find(name)
    outcome = run_seed(scenario, seed, mutant=mutant, parameters=scenario.hunt)
    assert outcome.is_verdict, (
        f"seed {seed} no longer finds {mutant} ({outcome.failure or 'clean'}); {hunt}"
    )


def test_no_seed_is_pinned_for_a_mutant_that_is_gone() -> None:
    known = {(name, mutant) for name, mutant in MUTANTS}
    assert {(name, mutant) for name, table in pinned().items() for mutant in table} == known
