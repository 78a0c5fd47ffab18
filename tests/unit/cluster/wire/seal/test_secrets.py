"""Cluster secrets, role credentials and what can be derived from which."""

from __future__ import annotations

import pytest

from squall.api.errors import ConfigError
from squall.cluster.wire.roles import Role, shared_role
from squall.cluster.wire.seal.secrets import (
    ACCEPTED_MAX,
    Secrets,
    client_credential,
    derive,
    key_name,
    worker_credential,
)

SECRET = "sixteen characters"


def test_a_short_secret_is_refused_with_both_lengths_and_without_itself() -> None:
    with pytest.raises(ConfigError, match="has 15 characters, at least 16") as caught:
        Secrets.of_node("hunter2hunter22")
    assert "hunter2" not in str(caught.value)
    Secrets.of_node("hunter2hunter222")


def test_every_accepted_secret_has_to_be_long_enough() -> None:
    with pytest.raises(ConfigError, match="has 5 characters"):
        Secrets.of_node(SECRET, ["short"])


def test_too_many_accepted_secrets_are_refused() -> None:
    with pytest.raises(ConfigError, match=f"at most {ACCEPTED_MAX} may be"):
        Secrets.of_node(SECRET, [f"{SECRET} {n}" for n in range(ACCEPTED_MAX)])


def test_roles_have_different_secrets() -> None:
    node = Secrets.of_node(SECRET)
    derived = [node.for_role(role)[0] for role in Role]
    assert len(set(derived)) == len(Role)


def test_a_client_credential_gives_what_a_node_derives_for_that_name() -> None:
    client = Secrets.of_credential(client_credential(SECRET, "alice"))
    node = Secrets.of_node(SECRET)
    assert client.role is Role.CLIENT
    assert client.name == "alice"
    assert client.for_role(Role.CLIENT, "alice") == node.for_role(Role.CLIENT, "alice")
    assert node.for_role(Role.CLIENT, "alice") != node.for_role(Role.CLIENT, "bob")


def test_a_client_or_worker_has_no_secret_but_its_own() -> None:
    client = Secrets.of_credential(client_credential(SECRET, "alice"))
    worker = Secrets.of_credential(worker_credential(SECRET))
    assert worker.for_role(Role.WORKER) == Secrets.of_node(SECRET).for_role(Role.WORKER)
    for holder, role, name in (
        (client, Role.NODE, ""),
        (client, Role.WORKER, ""),
        (client, Role.CLIENT, "bob"),
        (worker, Role.NODE, ""),
        (worker, Role.CLIENT, "alice"),
    ):
        assert holder.for_role(role, name) == ()


def test_a_membership_key_is_none_of_the_other_secrets_and_of_one_group() -> None:
    node = Secrets.of_node(SECRET)
    keys = node.membership_keys("c/dc")
    others = [node.for_role(role)[0] for role in Role]
    others += node.membership_keys("c/other") + node.membership_keys("other/dc")
    assert len({*keys, *others}) == len(keys) + len(others)
    assert keys == Secrets.of_node(SECRET).membership_keys("c/dc")


def test_only_a_node_makes_membership_keys_and_one_for_each_accepted_secret() -> None:
    for credential in (worker_credential(SECRET), worker_credential(SECRET, "w1")):
        assert Secrets.of_credential(credential).membership_keys("c/dc") == ()
    old, new = Secrets.of_node("the former secret"), Secrets.of_node(SECRET)
    both = Secrets.of_node(SECRET, ["the former secret"])
    assert both.membership_keys("c/dc") == (
        *new.membership_keys("c/dc"),
        *old.membership_keys("c/dc"),
    )


def test_the_sending_secret_comes_first() -> None:
    old, new = Secrets.of_node("the former secret"), Secrets.of_node(SECRET)
    both = Secrets.of_node(SECRET, ["the former secret"])
    assert both.for_role(Role.NODE) == (*new.for_role(Role.NODE), *old.for_role(Role.NODE))


@pytest.mark.parametrize(
    "text",
    ["", "x", "squall1:client:alice", "squall1:node::AAAA", "squall1:client:alice:???", SECRET],
)
def test_what_is_no_credential_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(ConfigError, match="not a Squall credential") as caught:
        Secrets.of_credential(text)
    assert not text or text not in str(caught.value)


def test_a_truncated_credential_is_refused() -> None:
    with pytest.raises(ConfigError, match="not a Squall credential"):
        Secrets.of_credential(worker_credential(SECRET)[:-3])


def test_credentials_of_different_names_do_not_mix() -> None:
    one, other = (client_credential(SECRET, name) for name in ("alice", "bob"))
    with pytest.raises(ConfigError, match="different roles or names"):
        Secrets.of_credential(one, [other])


@pytest.mark.parametrize("name", ["", "a b", "a:b", "x" * 65, "tab\t"])
def test_a_client_name_is_one_printable_word(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        client_credential(SECRET, name)


def test_no_text_of_a_holder_shows_its_secret() -> None:
    assert SECRET not in repr(Secrets.of_node(SECRET))


def test_the_parts_of_a_derivation_cannot_run_into_each_other() -> None:
    one = derive(b"s", salt=b"", info=("ab", "c"))
    other = derive(b"s", salt=b"", info=("a", "bc"))
    assert one != other


def test_two_roles_meet_on_the_weaker_ones_secret() -> None:
    assert shared_role(Role.NODE, Role.WORKER) is Role.WORKER
    assert shared_role(Role.CLIENT, Role.NODE) is Role.CLIENT


def test_an_operators_credential_has_the_name_and_the_right_and_another_secret() -> None:
    plain = Secrets.of_credential(client_credential(SECRET, "alice"))
    operator = Secrets.of_credential(client_credential(SECRET, "alice", operator=True))
    assert (plain.name, plain.operator) == ("alice", False)
    assert (operator.role, operator.name, operator.operator) == (Role.CLIENT, "alice", True)
    marked = key_name("alice", operator=True)
    assert operator.for_role(Role.CLIENT, marked) == Secrets.of_node(SECRET).for_role(
        Role.CLIENT, marked
    )
    assert operator.for_role(Role.CLIENT, "alice") == plain.for_role(Role.CLIENT, marked) == ()


def test_a_credential_that_was_edited_to_say_operator_has_the_wrong_secret() -> None:
    edited = client_credential(SECRET, "alice").replace(":client:", ":operator:")
    marked = key_name("alice", operator=True)
    forged = Secrets.of_credential(edited).for_role(Role.CLIENT, marked)
    assert forged != Secrets.of_node(SECRET).for_role(Role.CLIENT, marked)
