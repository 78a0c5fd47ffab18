"""The order of publishing: priority, then the order of the queue, one per order key."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from squall.coordination.queue.publication_order import PublicationOrder
from squall.coordination.queue.records import Ticket


def ticket(name: str, **fields: object) -> Ticket:
    return Ticket(ticket_id=name, queue="q", **fields)


def ids(dispatcher: PublicationOrder, now: float = 0.0, room: int = 100) -> list[str]:
    return [entry.ticket.ticket_id for entry in dispatcher.next(now, room)]


def test_priority_goes_first_then_the_order_of_the_queue() -> None:
    known = PublicationOrder()
    for name, priority in (("a", 0), ("b", 5), ("c", 0), ("d", 5)):
        known.add(name, ticket(name, priority=priority))
    assert ids(known) == ["b", "d", "a", "c"]
    assert ids(known, room=3) == ["b", "d", "a"]
    assert ids(known, room=0) == []


def test_one_of_an_order_key_is_out_at_a_time_even_if_the_next_has_priority() -> None:
    known = PublicationOrder()
    known.add("1", ticket("a", order_key="k"))
    known.add("2", ticket("b", order_key="k", priority=9))
    assert ids(known) == ["a"]
    known.published("a")
    assert ids(known) == []
    known.ended(["a"])
    assert ids(known) == ["b"]


def test_a_ticket_that_is_not_due_holds_back_those_of_its_key() -> None:
    known = PublicationOrder()
    known.add("1", ticket("a", order_key="k", not_before=10.0))
    known.add("2", ticket("b", order_key="k"))
    known.add("3", ticket("c"))
    assert ids(known, now=5.0) == ["c"]
    assert known.next_at(5.0) == 10.0
    assert ids(known, now=10.0) == ["a", "c"]


def test_a_ticket_that_blocks_its_order_key_waits_for_its_time_first() -> None:
    known = PublicationOrder()
    known.add("1", ticket("a", order_key="k", not_before=10.0))
    known.add("2", ticket("b", order_key="k", not_before=20.0))
    known.add("3", ticket("c", order_key="alone", not_before=10.0))
    known.add("4", ticket("d", not_before=10.0))
    assert [entry.ticket.ticket_id for entry in known.blocking_heads(5.0)] == ["a"]
    assert known.blocking_heads(10.0) == []


def test_what_a_predecessor_published_blocks_its_key() -> None:
    known = PublicationOrder()
    known.adopt(ticket("a", order_key="k"))
    known.add("2", ticket("b", order_key="k"))
    assert ids(known) == []
    assert known.running == ("a",)


def test_a_ticket_expires_at_its_last_moment_to_start() -> None:
    known = PublicationOrder()
    known.add("1", ticket("a", start_before=5.0))
    assert known.expired(4.9) == []
    assert [entry.ticket.ticket_id for entry in known.expired(5.0)] == ["a"]


KEYS = st.sampled_from(["", "k", "l"])
MADE = st.lists(st.tuples(KEYS, st.integers(0, 2)), max_size=25)


@given(MADE, st.data())
def test_any_history_keeps_the_order_of_each_key_and_loses_nothing(
    made: list[tuple[str, int]], data: st.DataObject
) -> None:
    known = PublicationOrder()
    for number, (key, priority) in enumerate(made):
        known.add(str(number), ticket(str(number), order_key=key, priority=priority))
    out: list[str] = []
    running: list[str] = []
    while len(out) < len(made):
        for entry in known.next(0.0, data.draw(st.integers(1, 4))):
            known.published(entry.ticket.ticket_id)
            out.append(entry.ticket.ticket_id)
            running.append(entry.ticket.ticket_id)
        keyed = [made[int(name)][0] for name in running if made[int(name)][0]]
        assert len(keyed) == len(set(keyed))
        ended = running[: data.draw(st.integers(1, max(1, len(running))))]
        known.ended(ended)
        running = running[len(ended) :]
    assert sorted(out, key=int) == [str(number) for number in range(len(made))]
    for key in ("k", "l"):
        mine = [int(name) for name in out if made[int(name)][0] == key]
        assert mine == sorted(mine)
