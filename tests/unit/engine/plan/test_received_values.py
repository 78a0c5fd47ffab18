"""What a workflow receives: from the workflows that both sides name, and by a rule if two provide
it."""

from __future__ import annotations

from squall.engine.core_protocol import decode_value, encode_value
from squall.engine.plan.received_values import (
    HAND_OVER_MAX_BYTES,
    collected,
    exports_of,
    received_by,
    shadowed_values,
)
from squall.stats.manifest import (
    FileManifest,
    Profile,
    StepManifest,
    UseManifest,
    WorkflowManifest,
)


def workflow(name: str, *depends: str, **fields: object) -> WorkflowManifest:
    return WorkflowManifest(name=name, depends=list(depends), profile=Profile(), **fields)  # type: ignore[arg-type]


def use(*sources: str, hook: str = "take") -> UseManifest:
    return UseManifest(hook=hook, sources=list(sources), arguments=["token"])


def gives(name: str, *depends: str) -> WorkflowManifest:
    return workflow(name, *depends, provides={"token": ["Shop"], "other": ["Else"]})


PROVIDED = {
    name: {"token": [name.encode(), name[::-1].encode()], "other": [b"never"]}
    for name in ("North", "South", "Ancestor")
}


def received(taker: WorkflowManifest) -> tuple[dict[str, bytes], dict[str, bytes]]:
    file = FileManifest(
        path="f.py", workflows=[gives("North"), gives("Ancestor"), gives("South"), taker]
    )
    # In the order in which they happened to end.
    return received_by(file, taker, {}, {name: PROVIDED[name] for name in sorted(PROVIDED)})


def test_of_two_sources_the_one_that_the_hook_names_first_wins() -> None:
    for first, second in (("North", "South"), ("South", "North")):
        taker = workflow("Shop", "North", "South", uses=[use(first, second)])
        expected = first.encode()
        assert received(taker) == ({"token": expected}, {"take.token": expected})


def test_without_a_hook_the_first_of_the_file_wins() -> None:
    taker = workflow("Shop", "South", "North", wants=["token"])
    assert received(taker) == ({"token": b"North"}, {})


def test_a_source_further_back_gives_too_and_who_is_not_named_gives_nothing() -> None:
    far = workflow("Shop", "South", uses=[use("Ancestor")])
    assert received(far) == ({"token": b"Ancestor"}, {"take.token": b"Ancestor"})
    unnamed = workflow("Else", "South", uses=[use("South")])
    assert received(unnamed) == ({"other": b"never"}, {})
    assert received(workflow("Shop", "South")) == ({}, {})


def test_what_a_state_hook_gives_wins_over_a_context() -> None:
    taker = workflow("Shop", "North", "South", uses=[use("South")])
    file = FileManifest(path="f.py", workflows=[gives("North"), gives("South"), taker])
    values = {"North": {"token": b"context", "more": b"1"}, "South": {"more": b"2"}}
    given, _ = received_by(file, taker, values, PROVIDED)
    assert given == {"token": b"South", "more": b"1"}


def test_the_same_name_from_two_is_warned_about() -> None:
    taker = workflow("Shop", "North", "South", uses=[use("South", "North")])
    file = FileManifest(path="f.py", workflows=[gives("North"), gives("South"), taker])
    assert shadowed_values(file, taker) == [
        "Shop.take: token comes from South and North; the value of South is used"
    ]
    assert shadowed_values(file, workflow("Shop", uses=[use("North")])) == []


def test_an_argument_that_collects_receives_the_values_of_all_sources_and_processes() -> None:
    encoded = {"South": {"token": [encode_value(1), encode_value(2)]}}
    encoded["North"] = {"token": [encode_value(3)]}
    hook = UseManifest(
        hook="take", sources=["South", "North"], arguments=["token"], collects=["token"]
    )
    taker = workflow("Shop", "North", "South", uses=[hook])
    file = FileManifest(path="f.py", workflows=[gives("North"), gives("South"), taker])
    given, received = received_by(file, taker, {}, encoded)
    assert decode_value(received["take.token"]) == [1, 2, 3]
    assert decode_value(given["token"]) == 1
    assert shadowed_values(file, taker) == []
    _, nothing = received_by(file, taker, {}, {})
    assert decode_value(nothing["take.token"]) == []


def test_further_values_are_left_out_beyond_the_limit() -> None:
    large = bytes(HAND_OVER_MAX_BYTES // 2)
    parts = [{"token": large, "small": b"a"}, *({"token": large, "small": b"b"} for _ in range(3))]
    found = collected(parts)
    # The first value always arrives; one more fits beside the small ones, a second does not.
    assert len(found["token"]) == 2
    assert found["small"] == [b"a", b"b", b"b", b"b"]


def test_contexts_come_from_further_back_too_and_the_nearest_named_first_wins() -> None:
    far = workflow("Far")
    near, other = workflow("Near", "Far"), workflow("Other")
    taker = workflow("Shop", "Near", "Other", wants=["deep"])
    file = FileManifest(path="f.py", workflows=[far, near, other, taker])
    values = {
        "Far": {"a": b"far", "deep": b"far"},
        "Near": {"a": b"near", "b": b"near"},
        "Other": {"b": b"other"},
    }
    assert received_by(file, taker, values, {})[0] == {"a": b"near", "b": b"near", "deep": b"far"}
    assert exports_of(file, "Far") == ["deep"]


def test_a_name_that_comes_from_a_step_and_from_a_state_hook_is_warned_about() -> None:
    setup = workflow("Setup", is_test=False, steps=[StepManifest(name="token")])
    taker = workflow("Shop", "Setup", "South", wants=["token"])
    file = FileManifest(path="f.py", workflows=[setup, gives("South"), taker])
    assert shadowed_values(file, taker) == [
        "Shop: token comes from South and Setup; the value of South is used"
    ]
