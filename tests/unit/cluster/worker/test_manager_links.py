"""Which manager a worker asks next, and how soon: a lease is short."""

from __future__ import annotations

import asyncio
import random
from typing import Any, cast

import pytest

from squall.cluster.wire.errors import NotSent, RemoteError
from squall.cluster.wire.messages import ErrorCode
from squall.cluster.worker.manager_links import RETRY, ManagerLinks
from squall.runtime.interfaces import Address

M1, M2, M3, M4 = (("h", number) for number in (1, 2, 3, 4))
INTERVAL_S = 0.2


class Board:
    def __init__(self) -> None:
        self.runtime = self
        self.clock = self
        self.limits = self
        self.dial_timeout_s = 3.0
        self.random = random.Random(1)
        self.time = 0.0

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds


class Stub:
    """A peer: `session` changes with every link that is made."""

    def __init__(self) -> None:
        self.control = self
        self.session: object | None = None
        self.last_error: Exception | None = None

    async def close(self) -> None: ...


class Dialled(Stub):
    """A peer that has its link some time after it was dialled."""

    def __init__(self, board: Board, up_at: float) -> None:
        super().__init__()
        self._board = board
        self._up_at = up_at
        self._link = object()

    @property
    def session(self) -> object | None:
        return self._link if self._board.now() >= self._up_at else None

    @session.setter
    def session(self, link: object | None) -> None:
        pass


class Links(ManagerLinks):
    def __init__(self, board: Board, *addresses: Address) -> None:
        super().__init__(cast("Any", board), addresses, longest_s=lambda: INTERVAL_S)
        self.stubs: dict[Address, Stub] = {}

    def at(self, address: Address) -> Any:
        stub: Any = self.stubs.setdefault(address, Stub())
        return self._peers.setdefault(address, stub)

    @property
    def asked(self) -> str:
        return self.shown


class SlowLinks(ManagerLinks):
    """Links that are made as long after their dial as `delays_s` says; none to the others."""

    def __init__(self, board: Board, delays_s: dict[Address, float], *addresses: Address) -> None:
        super().__init__(cast("Any", board), addresses, longest_s=lambda: INTERVAL_S)
        self._delays_s = delays_s
        self._clocked = board

    def at(self, address: Address) -> Any:
        if address not in self._peers:
            up_at = self._clocked.now() + self._delays_s.get(address, float("inf"))
            self._peers[address] = cast("Any", Dialled(self._clocked, up_at))
        return self._peers[address]

    async def registered_at(self, primary: Address) -> bool:
        """One try to register, as the node does it: with the primary, or relayed to it."""
        await self.reach_any()
        if self.current.control.session is None:
            self._clocked.time += self.failed(NotSent("no link"))
            return False
        if self.current is self.at(primary) or self.relays:
            self.worked()
            return True
        self._clocked.time += self.failed(not_primary(primary))
        return False


def not_primary(named: Address | None = None) -> RemoteError:
    shown = f"{named[0]}:{named[1]}" if named else ""
    return RemoteError(ErrorCode.NOT_PRIMARY, "does not lead", primary=shown)


def test_the_dead_are_not_asked_again_while_somebody_answers() -> None:
    links = Links(Board(), M1, M2, M3)
    links.failed(NotSent("refused"))
    assert links.asked == "h:2"
    links.failed(NotSent("refused"))
    assert links.asked == "h:3"
    for _ in range(20):
        # An election is under way: this manager knows no leader.
        assert links.failed(not_primary()) <= INTERVAL_S
        assert links.asked == "h:3"


def test_whoever_is_named_is_asked_at_once_however_often_others_failed() -> None:
    links = Links(Board(), M1, M2, M3)
    for error in (NotSent("refused"), NotSent("refused"), *[not_primary()] * 10):
        links.failed(error)
    assert links.failed(not_primary(M4)) <= RETRY.first_s
    assert links.asked == "h:4"


def test_with_two_of_three_dead_a_session_is_found_within_a_second_of_the_election() -> None:
    """The waits of a whole search, from the death of two to the one that is named."""
    links = Links(Board(), M1, M2, M3)
    waited_s = links.failed(NotSent("refused")) + links.failed(NotSent("refused"))
    while waited_s < 0.8:
        waited_s += links.failed(not_primary())
    waited_s += links.failed(not_primary(M4))
    assert links.asked == "h:4" and waited_s < 0.8 + INTERVAL_S + RETRY.first_s


def test_when_nobody_answers_all_are_asked_in_turn() -> None:
    links = Links(Board(), M1, M2, M3)
    asked = [links.asked]
    for _ in range(5):
        links.failed(NotSent("refused"))
        asked.append(links.asked)
    assert asked == ["h:1", "h:2", "h:3", "h:1", "h:2", "h:3"]


def test_one_that_is_reached_again_is_asked_again() -> None:
    board = Board()
    links = Links(board, M1, M2)
    links.failed(NotSent("refused"))
    assert links.asked == "h:2"
    links.failed(not_primary())
    assert links.asked == "h:2"
    links.stubs[M1].session = object()
    links.failed(not_primary())
    assert links.asked == "h:1"


def test_two_that_name_each_other_are_not_asked_without_a_pause() -> None:
    links = Links(Board(), M1, M2)
    waits = [links.failed(not_primary(M2 if n % 2 == 0 else M1)) for n in range(10)]
    assert min(waits) >= RETRY.first_s / 2


def test_the_one_that_names_a_manager_that_is_away_relays() -> None:
    links = Links(Board(), M1, M2)
    links.failed(NotSent("refused"))
    links.failed(not_primary(M1))
    assert links.asked == "h:2" and links.relays


def test_a_worker_that_starts_has_the_manager_relay_that_names_a_primary_out_of_reach() -> None:
    links = Links(Board(), M1)
    links.failed(not_primary(M2))
    assert links.asked == "h:2"
    # The next turn dials both, and only the first answers.
    links.at(M1).session = object()
    asyncio.run(links.reach_any())
    assert links.asked == "h:1"
    links.failed(not_primary(M2))
    assert links.asked == "h:1" and links.relays


def test_a_primary_without_a_link_is_not_asked_again_however_long_it_takes() -> None:
    board = Board()
    links = Links(board, M1, M2)
    links.failed(NotSent("refused"))
    links.failed(not_primary(M1))
    for _ in range(10):
        board.time += 30.0
        links.worked()
        assert links.asked == "h:2" and links.relays
    links.stubs[M1].session = object()
    links.worked()
    assert links.asked == "h:1" and not links.relays


def test_a_manager_with_a_link_is_asked_before_those_that_must_be_dialled_first() -> None:
    links = Links(Board(), M1, M2, M3)
    links.at(M1).session = object()
    # It knows no primary: as long as there is no other link, it is asked again.
    links.failed(not_primary())
    assert links.asked == "h:1"
    # It names one: until there is a link, it relays.
    links.failed(not_primary(M2))
    assert links.asked == "h:1" and links.relays
    links.worked()
    assert links.asked == "h:1" and links.relays
    links.at(M2).session = object()
    links.worked()
    assert links.asked == "h:2" and not links.relays


def learned(links: Links, *managers: Address) -> Links:
    asyncio.run(links.learn(managers))
    return links


def test_a_worker_finds_the_managers_that_replaced_all_it_was_started_with() -> None:
    links = learned(Links(Board(), M1, M2), M3, M4)
    asked = [links.asked]
    for _ in range(3):
        links.failed(NotSent("refused"))
        asked.append(links.asked)
    assert asked == ["h:1", "h:2", "h:3", "h:4"]
    # A manager of the group is not forgotten when it does not answer once.
    for _ in range(4):
        links.failed(NotSent("refused"))
        asked.append(links.asked)
    assert asked[4:] == ["h:1", "h:2", "h:3", "h:4"]


def test_a_new_list_replaces_the_former_and_keeps_the_manager_that_is_asked() -> None:
    links = learned(Links(Board(), M1), M2, M3)
    links.failed(not_primary(M3))
    assert links.asked == "h:3"
    learned(links, M3, M4)
    assert links.asked == "h:3"
    asked: list[str] = []
    for _ in range(3):
        links.failed(NotSent("refused"))
        asked.append(links.asked)
    assert asked == ["h:4", "h:1", "h:3"]


@pytest.mark.parametrize("dial_s", [0.005, 0.05, 0.6])
@pytest.mark.parametrize("first", [M1, M2, M3])
@pytest.mark.parametrize("gone", [(), (M1,)])
def test_a_worker_reaches_the_primary_that_a_follower_names(
    dial_s: float, first: Address, gone: tuple[Address, ...]
) -> None:
    """However long its dial takes: the link to the follower must not end it."""
    board = Board()
    delays_s = {each: dial_s for each in (M1, M2, M3) if each not in gone}
    if first not in gone:
        delays_s[first] = dial_s / 2
    links = SlowLinks(board, delays_s, M1, M2, M3)

    async def tries() -> int:
        for number in range(1, 6):
            if await links.registered_at(M3):
                return number
        return 0

    assert 0 < asyncio.run(tries()) <= 3
    assert board.now() < 3 * dial_s + 1.0
    # The manager that relayed is left as soon as there is a link to the primary.
    board.time += dial_s
    links.worked()
    assert links.shown == "h:3" and not links.relays
