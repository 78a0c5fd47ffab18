"""The driver of membership on a fake network: members find each other, see ends, and take no part
where they cannot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from squall.cluster.membership.messages import Gossip, MemberRole, Sync
from squall.cluster.presence.driver import MembershipDriver
from squall.cluster.protocol.membership.order import OFF, MembershipOrder, order_of
from squall.cluster.protocol.messages import SessionAnswer
from squall.cluster.wire.catalogue import CATALOGUE
from squall.cluster.wire.counters import WireCounters
from squall.cluster.wire.datagram import DatagramSeal
from squall.cluster.wire.errors import NotSent
from squall.cluster.wire.links.dispatch import Handlers
from squall.cluster.wire.roles import Role
from squall.cluster.wire.seal.keyring import Keyring
from squall.cluster.wire.seal.secrets import Secrets, worker_credential
from squall.runtime.interfaces import Address, NodeId
from squall.runtime.log import Log, MemorySink
from squall.settings.shared_sections import MembershipSettings
from tests.fakes.wire import SECRET, FakeNetwork, board, run, turns

FAST = MembershipSettings(probe_interval_s=0.2, probe_timeout_s=0.06)
WORKER = Secrets.of_credential(worker_credential(SECRET))
KEYS = Secrets.of_node(SECRET).membership_keys("dc")
OTHER_KEYS = Secrets.of_node("another secret 16").membership_keys("dc")
KNOWN_S = 3.0
DEAD_S = 5.0


class JumpingClock:
    """The loop's time; a test may let some pass at once, as a stop of the process does."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def now(self) -> float:
        return asyncio.get_running_loop().time() + self.ahead

    boot_time = wall = now

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Member:
    def __init__(
        self, network: FakeNetwork, name: str, *, boot: str = "", secrets: Secrets | None = None
    ) -> None:
        made = board(network, name, boot=boot, secrets=secrets)
        self.network = network
        self.clock = JumpingClock()
        runtime = cast("Any", made.runtime)
        runtime.clock = self.clock
        self.name = name
        self.sink = MemorySink()
        self.keyring = made.keyring
        self.handlers = Handlers(CATALOGUE)
        self.counters = WireCounters()
        self.driver = MembershipDriver(
            runtime,
            made.keyring,
            self.counters,
            self.handlers,
            Log(self.sink, self.clock),
            role=MemberRole.WORKER if secrets else MemberRole.MANAGER,
            send_sync=self._send_sync,
        )
        self.peers: dict[str, Member] = {}

    def _send_sync(self, node: NodeId, message: Sync) -> None:
        if node not in self.peers:
            raise NotSent(f"no link to {node}")
        self.peers[node].sync(message, self)

    def sync(self, message: Sync, sender: Member) -> None:
        _, handler = self.handlers.by_number[CATALOGUE.by_struct[Sync].number]
        incoming = SimpleNamespace(peer=sender.keyring.identity)
        asyncio.get_running_loop().call_soon(handler, message, incoming)

    async def join(self, *seeds: Address) -> Address:
        assert await self.driver.bind((self.name, 0))
        self.follow(seeds)
        return self.name, self.driver.port

    def follow(self, seeds: Sequence[Address], keys: tuple[bytes, ...] = KEYS) -> None:
        self.driver.follow(order_of(FAST, "fast", seeds, keys), self.name)

    def kill(self) -> None:
        self.driver.stop("killed")
        self.driver.datagrams.close()

    def states(self) -> dict[str, str]:
        return {str(each.node): each.state.value for each in self.driver.members()}

    def events(self, *names: str) -> list[tuple[str, object]]:
        wanted = [r for r in self.sink.records if r.event in names]
        return [(record.event, record.fields.get("member", "")) for record in wanted]


async def three(network: FakeNetwork) -> tuple[Member, Member, Member]:
    """A manager and two workers that know each other."""
    m1 = Member(network, "m1")
    w1, w2 = (Member(network, name, secrets=WORKER) for name in ("w1", "w2"))
    seed = await m1.join()
    for each in (w1, w2):
        await each.join(seed)
    await asyncio.sleep(KNOWN_S)
    assert m1.states() == {"w1": "alive", "w2": "alive"}
    assert w1.states() == {"m1": "alive", "w2": "alive"}
    return m1, w1, w2


async def closed(*members: Member) -> None:
    for each in members:
        each.kill()
    await turns()


def test_members_find_each_other_through_a_manager_and_see_a_death_once() -> None:
    async def main() -> None:
        m1, w1, w2 = await three(FakeNetwork())
        w2.kill()
        await asyncio.sleep(DEAD_S)
        for each in (m1, w1):
            assert each.states()["w2"] == "dead"
            assert each.events("member_dead") == [("member_dead", "w2")]
        assert m1.driver.suspected_since("w2", "w2-boot") is not None
        assert m1.driver.suspected_since("w1", "w1-boot") is None
        await closed(m1, w1)

    run(main())


def test_a_restart_ends_the_old_boot_at_once_and_the_new_one_is_not_suspected() -> None:
    async def main() -> None:
        network = FakeNetwork()
        m1, w1, w2 = await three(network)
        w2.kill()
        again = Member(network, "w2", boot="another boot", secrets=WORKER)
        await again.join(("m1", m1.driver.port))
        await asyncio.sleep(1.0)
        assert m1.states()["w2"] == "alive"
        assert m1.events("member_restarted", "member_dead") == [("member_restarted", "w2")]
        assert m1.driver.suspected_since("w2", "another boot") is None
        assert m1.driver.suspected_since("w2", "w2-boot") is None
        await closed(m1, w1, again)

    run(main())


def test_a_member_that_leaves_is_neither_suspected_nor_dead() -> None:
    async def main() -> None:
        m1, w1, w2 = await three(FakeNetwork())
        w2.driver.leave()
        await w2.driver.close()
        await asyncio.sleep(DEAD_S)
        for each in (m1, w1):
            assert each.states()["w2"] == "left"
            assert each.events("member_left", "member_dead") == [("member_left", "w2")]
        await closed(m1, w1)

    run(main())


def test_an_observer_that_stood_still_declares_nobody_dead() -> None:
    async def main() -> None:
        m1, w1, w2 = await three(FakeNetwork())
        m1.clock.ahead += 30.0
        await asyncio.sleep(DEAD_S)
        assert m1.states() == {"w1": "alive", "w2": "alive"}
        assert m1.events("member_dead") == []
        await closed(m1, w1, w2)

    run(main())


def test_a_boot_that_another_one_sealed_is_not_believed() -> None:
    async def main() -> None:
        network = FakeNetwork()
        m1, w1, w2 = await three(network)
        stranger = board(network, "s", secrets=WORKER).keyring
        record = _records(network, w2)[0]
        seal = sealing(stranger)
        to = (m1.name, m1.driver.port)
        forged = Gossip(
            sender=msgspec.structs.replace(record, incarnation=record.incarnation + 9), gossip=()
        )
        before = [each.incarnation for each in m1.driver.members()]
        m1.driver.datagrams.on_datagram(seal.seal(forged, to, Role.NODE), ("s", 1))
        assert m1.counters.frames_received > 0
        assert [each.incarnation for each in m1.driver.members()] == before
        await closed(m1, w1, w2)

    run(main())


def sealing(keyring: Keyring) -> DatagramSeal:
    seal = DatagramSeal(keyring)
    seal.set_membership_keys(KEYS)
    return seal


def _records(network: FakeNetwork, member: Member) -> list[Any]:
    """What the member says of itself in what it sent."""
    seal = sealing(board(network, "reader").keyring)
    found: list[Any] = []
    for data in network.datagrams_sent:
        try:
            message, sender = seal.open(data, ("x", 1))
        except Exception:
            continue
        if sender.boot == member.keyring.identity.boot:
            found.append(message.sender)
    assert found
    return found


def test_a_worker_cannot_speak_as_a_manager() -> None:
    async def main() -> None:
        network = FakeNetwork()
        m1, w1, w2 = await three(network)
        record = _records(network, w1)[0]
        seal = sealing(w1.keyring)
        to = (m1.name, m1.driver.port)
        grown = msgspec.structs.replace(record, role=MemberRole.MANAGER, incarnation=99)
        m1.driver.datagrams.on_datagram(seal.seal(Gossip(grown, ()), to, Role.NODE), ("w1", 1))
        (view,) = [each for each in m1.driver.members() if each.node == "w1"]
        assert (view.role, view.incarnation) == (MemberRole.WORKER, record.incarnation)
        await closed(m1, w1, w2)

    run(main())


def test_without_udp_it_is_one_line_and_no_failure() -> None:
    class NoDatagrams(FakeNetwork):
        async def bind_datagrams(self, address: Address, handler: Any) -> Any:
            raise OSError("not supported")

    async def main() -> None:
        member = Member(NoDatagrams(), "m1")
        assert not await member.driver.bind(("m1", 0))
        assert not await member.driver.bind(("m1", 0)) and member.driver.impossible
        member.follow(())
        assert not member.driver.is_on and member.driver.members() == []
        assert member.sink.events() == ["membership_off"]
        await member.driver.close()

    run(main())


def test_workers_with_credentials_of_their_own_take_part() -> None:
    async def main() -> None:
        network = FakeNetwork()
        m1 = Member(network, "m1")
        seed = await m1.join()
        bound = [Secrets.of_credential(worker_credential(SECRET, name)) for name in ("w1", "w2")]
        w1, w2 = (Member(network, each.name, secrets=each) for each in bound)
        for each in (w1, w2):
            await each.join(seed)
        await asyncio.sleep(KNOWN_S)
        assert m1.states() == {"w1": "alive", "w2": "alive"}
        assert w1.states() == {"m1": "alive", "w2": "alive"}
        await closed(m1, w1, w2)

    run(main())


def test_a_worker_with_another_key_gets_no_answer() -> None:
    async def main() -> None:
        network = FakeNetwork()
        m1, w1, w2 = await three(network)
        stranger = Member(network, "w3", secrets=WORKER)
        assert await stranger.driver.bind(("w3", 0))
        seeds = [("m1", m1.driver.port), ("w1", w1.driver.port)]
        stranger.follow(seeds, OTHER_KEYS)
        broken = m1.counters.bad_seal
        await asyncio.sleep(KNOWN_S)
        assert m1.counters.bad_seal > broken
        assert stranger.counters.frames_received == 0 and stranger.states() == {}
        assert "w3" not in m1.states() and "w3" not in w1.states()
        # Its worker's credential is the genuine one: what counts are the keys.
        stranger.follow(seeds)
        await asyncio.sleep(KNOWN_S)
        assert m1.states()["w3"] == stranger.states()["m1"] == "alive"
        await closed(m1, w1, w2, stranger)

    run(main())


def test_no_member_is_suspected_while_the_keys_change() -> None:
    async def main() -> None:
        everyone = await three(FakeNetwork())
        m1 = everyone[0]
        seeds = [("m1", m1.driver.port)]
        steps = [(*KEYS, *OTHER_KEYS), (*OTHER_KEYS, *KEYS), OTHER_KEYS]
        for keys in steps:
            # Workers learn of it some time after their managers, and one after another.
            for each in everyone:
                each.follow(() if each is m1 else seeds, keys)
                await asyncio.sleep(1.0)
        await asyncio.sleep(KNOWN_S)
        assert m1.states() == {"w1": "alive", "w2": "alive"}
        for each in everyone:
            assert each.events("member_suspect", "member_dead") == []
            assert each.counters.bad_seal == 0
        late = Member(m1.network, "w3", secrets=WORKER)
        await late.join(*seeds)
        await asyncio.sleep(KNOWN_S)
        assert "w3" not in m1.states() and late.states() == {}, "the former key opens nothing"
        await closed(*everyone, late)

    run(main())


def test_an_order_to_end_ends_it_and_forgets_who_was_suspected() -> None:
    async def main() -> None:
        m1, w1, w2 = await three(FakeNetwork())
        w2.kill()
        await asyncio.sleep(DEAD_S)
        m1.driver.follow(OFF, "m1")
        assert m1.driver.suspected_since("w2", "w2-boot") is None
        assert m1.driver.members() == [] and not m1.driver.is_on
        await closed(m1, w1)

    run(main())


def test_an_error_inside_ends_membership_and_nothing_else() -> None:
    async def main() -> None:
        m1, w1, w2 = await three(FakeNetwork())
        cast("Any", m1.driver.core).tick = lambda now: 1 / 0
        await asyncio.sleep(1.0)
        assert not m1.driver.is_on and "division" in m1.driver.impossible
        assert m1.sink.events().count("membership_failed") == 1
        m1.follow(())
        assert not m1.driver.is_on
        await closed(m1, w1, w2)

    run(main())


def test_an_order_has_another_version_only_if_it_says_something_else() -> None:
    one = order_of(FAST, "fast", [("a", 1), ("b", 2)], KEYS)
    assert one == order_of(FAST, "fast", [("b", 2), ("a", 1)], KEYS)
    assert one.version not in (0, OFF.version)
    others: list[MembershipOrder] = [
        order_of(FAST, "fast", [("a", 1)], KEYS),
        order_of(FAST, "lan", [("a", 1), ("b", 2)], KEYS),
        order_of(MembershipSettings(), "fast", [("a", 1), ("b", 2)], KEYS),
        order_of(FAST, "fast", [("a", 1), ("b", 2)], OTHER_KEYS),
    ]
    assert len({each.version for each in (one, *others)}) == 5


def test_an_order_does_not_show_its_keys() -> None:
    order = order_of(FAST, "fast", [], (b"the key",))
    answer = SessionAnswer(epoch=1, view=1, committed=1, sequence=1, membership=order)
    assert "the key" not in f"{order} {answer!r}"
