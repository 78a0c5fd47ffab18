"""Fresh contexts for every iteration, and values that travel between workflows."""

from __future__ import annotations

from typing import Any

from squall.engine.plan.received_values import HAND_OVER_MAX_BYTES
from squall.engine.users.context import decoded_context, encoded_context, fresh_maker


def test_every_iteration_gets_its_own_copy() -> None:
    base: dict[str, Any] = {"list": [1, [2]], "deep": {"rows": [{"id": 1}]}, "set": {1}, "n": 5}
    fresh = fresh_maker(base)
    first = fresh()
    first["list"][1].append(3)
    first["deep"]["rows"][0]["id"] = 9
    first["set"].add(2)
    first["new"] = 1
    assert fresh() == {"list": [1, [2]], "deep": {"rows": [{"id": 1}]}, "set": {1}, "n": 5}


def test_objects_of_the_author_are_handed_on_as_they_are() -> None:
    thing = object()
    assert fresh_maker({"thing": thing})()["thing"] is thing
    assert fresh_maker({"things": [thing]})()["things"][0] is thing


def test_plain_values_are_not_looked_at_again() -> None:
    base = {"token": "abc", "n": 5}
    first, second = fresh_maker(base)(), fresh_maker(base)()
    assert first == second == base
    first["token"] = "changed"
    assert base["token"] == "abc"


def test_plain_data_travels() -> None:
    context = {"token": "abc", "rows": [1, 2.5, None, True], "map": {"a": b"bytes"}}
    values, error, warnings = encoded_context(context, ["token"], "Setup")
    assert (error, warnings) == ("", [])
    assert decoded_context(values) == context


def test_what_cannot_travel_is_an_error_only_if_somebody_needs_it() -> None:
    loop: list[Any] = []
    loop.append(loop)
    context = {"thing": object(), "loop": loop, "half": "\ud83d", "fine": 1}
    values, error, warnings = encoded_context(context, [], "Setup")
    assert set(values) == {"fine"}
    assert error == ""
    assert len(warnings) == 3
    assert "Setup.thing is a object, which cannot be handed" in warnings[0]
    _, error, _ = encoded_context(context, ["thing"], "Setup")
    assert error.startswith("Setup.thing is a object")


def test_values_beyond_the_limit_are_refused_by_name_and_do_not_push_out_the_needed_ones() -> None:
    large = bytes(HAND_OVER_MAX_BYTES - 100)
    context = {"first": large, "needed": bytes(1000), "more": 1}
    values, error, warnings = encoded_context(context, ["needed"], "Setup")
    assert set(values) == {"needed", "more"}
    assert error == ""
    assert warnings[0].startswith("Setup.first has 8.0 MiB; a workflow hands over at most 8 MiB")
    _, error, _ = encoded_context({"blob": bytes(150 << 20)}, ["blob"], "Setup")
    assert error.startswith("Setup.blob has 150.0 MiB")


def test_a_key_that_is_not_text_is_not_handed_over() -> None:
    values, error, warnings = encoded_context({5: "x", "a": 1}, ["a"], "Setup")  # type: ignore[dict-item]
    assert (set(values), error) == ({"a"}, "")
    assert "the context key 5 is not text" in warnings[0]
