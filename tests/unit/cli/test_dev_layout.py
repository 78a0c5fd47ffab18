"""What `squall dev` starts for its flags: datacenters, gates, lines with a delay."""

from __future__ import annotations

from pathlib import Path

import pytest

from squall.api.errors import UsageError
from squall.cli.dev.layout import (
    ClusterLayout,
    addresses_of,
    datacenter_names,
    delays_of,
    gate_count,
    nodes_of,
    serving_node,
)


def layout(**given: object) -> ClusterLayout:
    wanted: dict[str, object] = {
        "managers": 1, "workers": 2, "cores": 1, "folder": Path("/nowhere"), "timers": "fast",
        "cluster": "squall", **given,
    }  # fmt: skip
    return ClusterLayout(**wanted)  # pyright: ignore[reportArgumentType]


def flag(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


def test_datacenters_are_given_by_number_or_by_name() -> None:
    assert datacenter_names("1") == ("dev",)
    assert datacenter_names("3") == ("eu", "us", "ap")
    assert datacenter_names("7")[5:] == ("dc6", "dc7")
    assert datacenter_names("a,b") == ("a", "b")
    for wrong in ("a,a", "a,", "21", "0"):
        with pytest.raises(UsageError, match="--datacenters"):
            datacenter_names(wrong)


def test_several_datacenters_have_a_gate_unless_it_is_refused() -> None:
    assert gate_count(None, ("dev",)) == 0
    assert gate_count(None, ("eu", "us")) == 1
    assert gate_count("0", ("eu", "us")) == 0
    assert gate_count("3", ("eu", "us")) == 3
    with pytest.raises(UsageError, match="--gates 2: a group has 1, 3 or 5"):
        gate_count("2", ("eu", "us"))


def test_a_delay_is_a_round_trip_to_a_datacenter_that_exists() -> None:
    assert delays_of(["us=80ms"], ("eu", "us")) == {"us": 0.04}
    with pytest.raises(UsageError, match="no datacenter ap; there are eu, us"):
        delays_of(["ap=80ms"], ("eu", "us"))
    for wrong in ("us", "us=fast"):
        with pytest.raises(UsageError, match="--far"):
            delays_of([wrong], ("eu", "us"))


def test_one_datacenter_has_managers_and_workers_and_no_gate() -> None:
    made = layout(managers=3)
    nodes = nodes_of(made, addresses_of(made))
    assert [node.name for node in nodes] == ["m1", "m2", "m3", "w1", "w2"]
    assert {flag(node.words, "--dc") for node in nodes} == {"dev"}


def test_gates_know_a_far_datacenter_by_the_end_of_its_line() -> None:
    made = layout(datacenters=("eu", "us"), gates=3, workers=1, far={"us": 0.04})
    at = addresses_of(made)
    nodes = {node.name: node for node in nodes_of(made, at)}
    assert sorted(nodes) == ["eu-m1", "eu-w1", "g1", "g2", "g3", "us-m1", "us-w1"]
    shown = {
        name: [f"{host}:{port}" for host, port in addresses]
        for name, addresses in (*at.managers.items(), ("far", at.reached["us"]))
    }
    assert at.reached["eu"] == at.managers["eu"]
    assert shown["far"] != shown["us"]
    assert flag(nodes["g1"].words, "--datacenter") == f"eu={shown['eu'][0]},us={shown['far'][0]}"
    assert flag(nodes["us-m1"].words, "--listen") == shown["us"][0]
    assert flag(nodes["us-w1"].words, "--managers") == shown["us"][0]


def test_the_page_is_served_by_a_node_that_clients_talk_to() -> None:
    for given, name in (({}, "m1"), ({"gates": 3}, "g1")):
        made = layout(web="0", managers=3, **given)
        serving = [each for each in nodes_of(made, addresses_of(made)) if "--web=0" in each.words]
        assert [each.name for each in serving] == [name]
        assert serving_node(made, serving) is serving[0]
