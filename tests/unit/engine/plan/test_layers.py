from __future__ import annotations

import pytest

from squall.api.errors import ConfigError
from squall.engine.plan.layers import suggest, topological_layers


def refused(dependencies: dict[str, list[str]], noun: str = "step") -> str:
    with pytest.raises(ConfigError) as caught:
        topological_layers(dependencies, noun)
    return str(caught.value)


def test_a_layer_is_one_more_than_the_highest_it_waits_for() -> None:
    assert topological_layers(
        {
            "Setup": [],
            "LoadTest": [],
            "Validate": ["LoadTest"],
            "Report": ["Validate", "LoadTest"],
        },
        "workflow",
    ) == [["Setup", "LoadTest"], ["Validate"], ["Report"]]


def test_the_diamond_has_three_layers() -> None:
    steps = {"login": [], "cart": ["login"], "offers": ["login"], "pay": ["cart", "offers"]}
    assert topological_layers(steps) == [["login"], ["cart", "offers"], ["pay"]]


def test_members_keep_the_order_of_the_input() -> None:
    steps = {"z": ["b"], "y": ["a"], "b": [], "a": [], "x": ["b", "a"]}
    assert topological_layers(steps) == [["b", "a"], ["z", "y", "x"]]


def test_nothing_has_no_layers_and_a_repeated_dependency_counts_once() -> None:
    assert topological_layers({}) == []
    assert topological_layers({"a": [], "b": ["a", "a"]}) == [["a"], ["b"]]


def test_a_long_chain_is_no_problem() -> None:
    chain = {f"s{i}": [f"s{i - 1}"] if i else [] for i in range(5000)}
    assert len(topological_layers(chain)) == 5000


def test_a_cycle_is_named_from_its_first_member() -> None:
    text = refused({"start": [], "a": ["start", "b"], "b": ["a"], "c": ["b"]})
    assert "steps wait for each other: a -> b -> a;" in text


def test_only_the_cycle_is_named_not_what_hangs_on_it() -> None:
    text = refused({"tail": ["c"], "c": ["d"], "d": ["e"], "e": ["c"]}, "workflow")
    assert "workflows wait for each other: c -> d -> e -> c;" in text


def test_a_dependency_on_itself_is_named() -> None:
    assert refused({"a": ["a"]}) == 'step "a" depends on itself'


def test_an_unknown_name_is_answered_with_what_was_probably_meant() -> None:
    text = refused({"cart": [], "pay": ["crat"]})
    assert text == ('step "pay" depends on "crat", but there is no such step; did you mean "cart"?')


def test_a_name_is_never_suggested_to_itself() -> None:
    assert '"pay"?' not in refused({"cart": [], "pay": ["pya"]})


def test_suggestions_ignore_case_and_list_what_there_is_when_nothing_is_near() -> None:
    assert suggest("SHOP", ["Browse", "Shop"]) == '; did you mean "Shop"?'
    assert suggest("zzz", ["cart", "login"]) == "; known: cart, login"
    assert suggest("zzz", []) == ""
    assert suggest("zzz", [f"step{i}" for i in range(50)]) == ""
