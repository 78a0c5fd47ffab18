"""`squall coord queue` shows open tickets, ends them, and shows how a ticket ended."""

from __future__ import annotations

import json

import pytest

from squall.coordination.coordinator import Coordinator
from squall.coordination.queue.plugin import Queue
from squall.coordination.stores.interface import Store
from tests.services.coordination.lab.coord_command import SECRET, coord, secret, shared, write
from tests.services.coordination.lab.places import Place

__all__ = ["secret", "shared"]


def enqueue(place: Place, count: int) -> list[str]:
    """By a member that never leads, so that all of them stay pending."""
    made: list[str] = []

    async def run(store: Store) -> None:
        queue = Queue("mail")
        options = {"profile": "fast", "unsafe_timings": True, "secret": SECRET, "eligible": False}
        async with Coordinator(store, queue, **options):
            payloads = [{"n": number} for number in range(count)]
            made.extend([await queue.enqueue(each, order_key="ada") for each in payloads])

    write(place, run)
    return made


def test_open_tickets_are_shown_and_cancelled(
    shared: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    made = enqueue(shared, 4)
    assert coord(shared, "queue", "peek", "mail", "--json", "--limit", "3") == 0
    shown = json.loads(capsys.readouterr().out)
    assert [(each["ticket_id"], each["payload"]) for each in shown] == [
        (made[number], {"n": number}) for number in range(3)
    ]
    assert {each["state"] for each in shown} == {"pending"}
    assert coord(shared, "queue", "peek", "mail") == 0
    table = capsys.readouterr().out
    assert all(each in table for each in made) and "ada" in table
    cancel = ("queue", "cancel", "mail", "--profile", "fast")
    assert coord(shared, "queue", "final", "mail", made[0]) == 1
    assert "is open" in capsys.readouterr().err
    assert coord(shared, *cancel, "--ticket", made[0], "--ticket", made[1]) == 0
    assert "2 tickets cancelled\n" in capsys.readouterr().out
    assert coord(shared, "queue", "final", "mail", made[0], "--json") == 0
    assert json.loads(capsys.readouterr().out)["state"] == "cancelled"
    assert coord(shared, *cancel, "--ticket", made[0]) == 0
    assert "0 tickets cancelled, 1 had already ended" in capsys.readouterr().out
    assert coord(shared, *cancel, "--ticket", "no-such-ticket") == 1
    assert "queue mail has no ticket" in capsys.readouterr().err
    assert coord(shared, *cancel, "--all", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"cancelled": 2}
    assert coord(shared, "queue", "peek", "mail") == 0
    assert "no open tickets" in capsys.readouterr().out


def test_the_end_of_a_ticket_is_shown(shared: Place, capsys: pytest.CaptureFixture[str]) -> None:
    ended: list[str] = []

    async def work(store: Store) -> None:
        queue = Queue("mail", max_attempts=1)
        async with Coordinator(store, queue, profile="fast", unsafe_timings=True, secret=SECRET):
            ended.append(await queue.enqueue("good"))
            ended.append(await queue.enqueue("bad"))
            async for ticket in queue.claim():
                if ticket.payload == "bad":
                    await ticket.fail("no such address")
                    return
                await ticket.complete({"sent": True})

    write(shared, work)
    assert coord(shared, "queue", "final", "mail", ended[0], "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "ticket_id": ended[0],
        "state": "done",
        "result": {"sent": True},
        "error": "",
        "attempt": 1,
    }
    assert coord(shared, "queue", "final", "mail", ended[1]) == 0
    assert "dead_letter, in attempt 1: no such address" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("cancel", "mail"), "--all"),
        (("cancel", "mail", "--ticket", "x", "--all"), "--all"),
        (("peek", "mail", "--limit", "0"), "--limit 0"),
    ],
)
@pytest.mark.parametrize("place", ["redis"], indirect=True)
def test_a_mistake_is_one_line(
    place: Place, words: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert coord(place, "queue", *words) == 2
    shown = capsys.readouterr().err
    assert text in shown and shown.count("\n") == 1
