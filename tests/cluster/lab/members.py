"""What real nodes know of each other: the answer of `squall members`, and lines of their logs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from squall.cluster.protocol.membership.contacts import AskMembers, MemberList
from tests.cluster.lab.group import asked
from tests.cluster.lab.nodes import Cluster, Node

LINE = re.compile(r"^\S+ +\w+ +(member_\w+) .*?\bmember=(\S+) .*?\bmember_boot=(\S+)", re.MULTILINE)
STATES = {
    "member_suspect": "suspect",
    "member_dead": "dead",
    "member_back": "alive",
    "member_left": "left",
    "member_restarted": "alive",
}


def members(made: Cluster, *, of: Sequence[str] = ()) -> MemberList:
    return asked(made, AskMembers(), of=of)


def member_states(made: Cluster, *, of: Sequence[str] = ()) -> dict[str, str]:
    return {row.name: row.state for row in members(made, of=of).members}


def view_in_log(node: Node) -> dict[str, str]:
    """The members that changed their state after they were first heard, as this node sees them by
    its log."""
    return {member: STATES[event] for event, member, _ in LINE.findall(node.said())}


def transitions(node: Node, *events: str) -> Counter[tuple[str, str]]:
    """How often the node logged each event of each boot of a member, as "name boot"."""
    found = LINE.findall(node.said())
    return Counter((event, f"{name} {boot}") for event, name, boot in found if event in events)
