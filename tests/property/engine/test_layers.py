"""Layers of any acyclic graph, and the cycle of any other."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squall.api.errors import ConfigError
from squall.engine.plan.layers import topological_layers


@st.composite
def graphs(draw: st.DrawFn, *, acyclic: bool) -> dict[str, list[str]]:
    count = draw(st.integers(1, 12))
    names = [f"n{at}" for at in range(count)]
    order = draw(st.permutations(names))
    graph: dict[str, list[str]] = {}
    for at, name in enumerate(order):
        others = order[:at] if acyclic else [other for other in order if other != name]
        graph[name] = draw(st.lists(st.sampled_from(others), max_size=4)) if others else []
    return {name: graph[name] for name in names}


@given(graphs(acyclic=True))
@settings(max_examples=300, deadline=None)
def test_a_layer_is_exactly_one_more_than_the_highest_it_waits_for(
    graph: dict[str, list[str]],
) -> None:
    layers = topological_layers(graph)
    level = {name: at for at, layer in enumerate(layers) for name in layer}
    assert sorted(level) == sorted(graph)
    assert sum(len(layer) for layer in layers) == len(graph)
    for name, after in graph.items():
        assert level[name] == max((level[needed] + 1 for needed in after), default=0)


@given(graphs(acyclic=True))
@settings(max_examples=200, deadline=None)
def test_members_of_a_layer_keep_the_order_of_the_input(graph: dict[str, list[str]]) -> None:
    order = list(graph)
    for layer in topological_layers(graph):
        assert layer == sorted(layer, key=order.index)


@given(graphs(acyclic=False))
@settings(max_examples=300, deadline=None)
def test_what_is_named_as_a_cycle_is_one(graph: dict[str, list[str]]) -> None:
    try:
        layers = topological_layers(graph)
    except ConfigError as error:
        found = re.search(r"n\d+(?: -> n\d+)+", str(error))
        assert found is not None
        cycle = found.group().split(" -> ")
        assert cycle[0] == cycle[-1]
        assert len(set(cycle)) == len(cycle) - 1
        for name, needed in pairwise(cycle):
            assert needed in graph[name]
    else:
        assert sum(len(layer) for layer in layers) == len(graph)


@given(graphs(acyclic=True), st.data())
@settings(max_examples=100, deadline=None)
def test_an_unknown_name_is_always_refused_by_name(
    graph: dict[str, list[str]], data: st.DataObject
) -> None:
    culprit = data.draw(st.sampled_from(list(graph)))
    graph[culprit] = [*graph[culprit], "Missing"]
    with pytest.raises(ConfigError, match=f'"{culprit}" depends on "Missing"'):
        topological_layers(graph)
