"""`squall members [ADDR]`: which nodes live, who hears them, how far away they are."""

from __future__ import annotations

import asyncio
from argparse import Namespace

from squall.cli.shared.cluster_access import client_access
from squall.cluster.client.connection import connected
from squall.cluster.presence.contacts import listed, who_hears
from squall.cluster.protocol.membership.contacts import MemberList, MemberRow
from squall.reporting.number_format import plural
from squall.reporting.text.layout import aligned
from squall.reporting.text.standard_streams import print_json, print_or_drop

COLUMNS = ("NAME", "ROLE", "BOOT", "STATE", "SINCE", "HEARD BY", "RTT", "HEALTH", "ADDRESS", "SAYS")


def execute(arguments: Namespace) -> int:
    if arguments.address:
        arguments.to = arguments.address
    return asyncio.run(_answered(arguments))


async def _answered(arguments: Namespace) -> int:
    async with connected(client_access(arguments), None) as connection:
        await connection.ready(within_s=None)
        answer = await connection.client.members(arguments.dc or "")
    if arguments.json:
        return print_json(answer)
    print_or_drop("\n".join(member_lines(answer)))
    return 0


def member_lines(answer: MemberList) -> list[str]:
    if answer.off:
        return [f"{answer.datacenter}: membership is off: {answer.off}"]
    if not answer.asked:
        return [f"{answer.datacenter}: membership has not begun on {answer.reported_by}; ask again"]
    said = plural(answer.asked, "member")
    head = f"{answer.datacenter}, as {answer.reported_by} sees it; {said} said whom they hear"
    rows = [COLUMNS, *(_columns(row) for row in answer.members)]
    doubtful = [row for row in answer.members if row.not_heard_by or row.state == "suspect"]
    return [head, *aligned(rows), *(who_hears(row) for row in doubtful)]


def _columns(row: MemberRow) -> tuple[str, ...]:
    takes_part = row.state != "apart"
    return (
        row.name,
        row.role,
        row.boot[:8],
        row.state,
        _shown_age(row.since_s) if takes_part else "-",
        listed(row.heard_by) if row.heard_by else ("nobody" if takes_part else "-"),
        f"{row.rtt_ms:.1f} ms" if row.rtt_ms >= 0 else "-",
        _shown_health(row.health) if takes_part else "-",
        row.address or "-",
        row.says or "-",
    )


def _shown_age(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _shown_health(score: int) -> str:
    return "good" if score == 0 else f"slow ({score} of 8)"
