"""`squall members` shows the table, the doubts under it, and why there is none."""

from __future__ import annotations

from squall.cli.cluster.membership import member_lines
from squall.cli.main import build_parser
from squall.cluster.protocol.membership.contacts import MemberList, MemberRow

ROWS = [
    MemberRow(
        name="m1", role="manager", boot="aa11bb22cc", state="alive", since_s=200.0,
        address="10.0.0.1:7400", heard_by=["m2", "w1"],
        says="leads",
    ),
    MemberRow(
        name="w1", role="worker", boot="dd33ee44ff", state="suspect", since_s=1.2,
        address="10.0.0.4:5000", heard_by=["m2", "m3", "w7"], not_heard_by=["m1"],
        rtt_ms=0.42, health=3,
    ),
    MemberRow(name="w2", role="worker", boot="ff", state="apart"),
]  # fmt: skip


def test_the_table_and_the_doubts_under_it() -> None:
    lines = member_lines(MemberList("eu", "m1", asked=2, members=ROWS))
    assert lines[0] == "eu, as m1 sees it; 2 members said whom they hear"
    shown = "m1 manager aa11bb22 alive 3 min m2 and w1 - good 10.0.0.1:7400 leads"
    assert " ".join(lines[2].split()) == shown
    assert "0.4 ms" in lines[3] and "slow (3 of 8)" in lines[3] and "suspect" in lines[3]
    assert lines[4].split() == ["w2", "worker", "ff", "apart", "-", "-", "-", "-", "-", "-"]
    assert lines[5:] == ["w1 is alive: m2, m3 and w7 hear it, only m1 does not"]


def test_off_and_not_begun_are_one_line() -> None:
    off = MemberList("eu", "m1", off="max_nodes = 0 under [membership]")
    assert member_lines(off) == ["eu: membership is off: max_nodes = 0 under [membership]"]
    (line,) = member_lines(MemberList("eu", "m1"))
    assert "not begun" in line


def test_the_node_to_ask_is_an_argument() -> None:
    arguments = build_parser().parse_args(["members", "10.0.0.1:7400", "--dc", "eu", "--json"])
    assert (arguments.address, arguments.dc, arguments.json) == ("10.0.0.1:7400", "eu", True)
