"""One list out of what several members say: who hears whom, without quoting those that are gone."""

from __future__ import annotations

import pytest

from squall.cluster.presence.contacts import listed, merged, who_hears
from squall.cluster.protocol.membership.contacts import Contact, MemberContacts, MemberRow


def contact(
    node: str,
    *,
    by: tuple[str, ...] = (),
    not_by: tuple[str, ...] = (),
    state: str = "alive",
    boot: str = "b1",
) -> Contact:
    role = "worker" if node.startswith("w") else "manager"
    return Contact(node, boot, role, f"{node}:1", state, 1.0, 0.1, by, not_by, 0.5, 0)


ME = MemberRow(name="m1", role="manager", boot="b1", state="alive")


def line(node: str, *answers: MemberContacts) -> str:
    rows = merged(answers[0], answers[1:], ME)
    return who_hears(next(row for row in rows if row.name == node))


def test_a_cut_between_two_nodes_is_told_from_a_death() -> None:
    others = [contact(name, by=("m1",)) for name in ("m2", "m3", "w7")]
    own = MemberContacts("m1", [contact("w2", not_by=("m1",), state="suspect"), *others])
    said = [MemberContacts(name, [contact("w2", by=(name,))]) for name in ("m2", "m3", "w7")]
    assert line("w2", own, *said) == "w2 is alive: m2, m3 and w7 hear it, only m1 does not"
    silent = [
        MemberContacts(name, [contact("w2", not_by=(name,), state="suspect")])
        for name in ("m2", "m3", "w7")
    ]
    text = line("w2", own, *silent)
    assert text == "nobody hears w2: m1, m2, m3 and 1 more probed it in vain"


def test_what_a_member_says_of_itself_goes_before_what_others_heard_of_it() -> None:
    own = MemberContacts("m1", [contact("w2", by=("m1", "m2")), contact("m2", by=("m1",))])
    said = MemberContacts("m2", [contact("w2", not_by=("m2",))])
    assert line("w2", own, said) == "w2 is alive: m1 hears it, m2 does not"


def test_members_that_are_gone_are_not_quoted() -> None:
    own = MemberContacts(
        "m1",
        [contact("w2", by=("m1", "w9"), not_by=("w8",)), contact("w9", state="dead")],
    )
    assert line("w2", own) == "w2 is alive: m1 hears it"


def test_what_was_heard_of_another_boot_says_nothing_about_this_one() -> None:
    own = MemberContacts("m1", [contact("w2", boot="b2"), contact("m2", by=("m1",))])
    said = MemberContacts("m2", [contact("w2", by=("m2",), boot="b1")])
    assert line("w2", own, said) == "nobody hears w2"


def test_the_answering_member_is_in_its_own_list_with_who_hears_it() -> None:
    own = MemberContacts("m1", [contact("m2", by=("m1",)), contact("w1", by=("m1",))])
    said = MemberContacts("m2", [contact("m1", by=("m2",))])
    rows = merged(own, [said], ME)
    assert [(row.name, row.heard_by) for row in rows] == [
        ("m1", ["m2"]),
        ("m2", ["m1"]),
        ("w1", ["m1"]),
    ]


def test_who_left_in_order_is_not_missed() -> None:
    own = MemberContacts("m1", [contact("w2", not_by=("m1",), state="left")])
    assert line("w2", own) == "w2 left in order"


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["a"], "a"),
        (["a", "b"], "a and b"),
        (["a", "b", "c"], "a, b and c"),
        (["a", "b", "c", "d", "e"], "a, b, c and 2 more"),
    ],
)
def test_long_lists_are_cut(names: list[str], text: str) -> None:
    assert listed(names) == text
