"""What operators ask of managers: over real sockets, with real logs, in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import cast

import msgspec
import pytest

from squall.cluster.client.manager_connections import ManagerConnections as Asked
from squall.cluster.group.clients.operator_api import OperatorApi
from squall.cluster.group.committer import CommandCodec, Committer
from squall.cluster.group.member_watch import GroupWatch, shown_address
from squall.cluster.group.metrics import group_metrics
from squall.cluster.ledger.interface import Fence, Ledger
from squall.cluster.ledger.replica.effects import EnteredEpoch, SteppedDown
from squall.cluster.ledger.replica.types import Config, Member, StorageId
from squall.cluster.protocol.group_messages import (
    AskGroup,
    ChangeMembers,
    GroupView,
    HandOver,
    MemberNote,
    MemberView,
)
from squall.cluster.wire.errors import RemoteError
from squall.cluster.wire.links.dispatch import Handlers, Incoming
from squall.cluster.wire.messages import ErrorCode
from squall.cluster.wire.seal.secrets import Secrets
from squall.runtime.interfaces import Clock, NodeId, Runtime
from squall.runtime.log import Log, MemorySink
from squall.runtime.metrics import Registry
from squall.runtime.real.runtime import RealRuntime
from squall.runtime.tasks import TaskRunner
from tests.fakes.wire import SECRET
from tests.unit.cluster.ledger.lab.groups import Cluster, cluster_of, run

NOBODY = cast("Incoming", None)
"""These handlers ignore the sender."""


VIEW = GroupView(
    group="g",
    reported_by="a",
    members=[
        MemberView(name="a", address="h:1", state="follows", behind=3),
        MemberView(name="b", address="h:2", state="silent"),
        MemberView(name="d", address="h:3", state="waits", is_member=False),
    ],
)


class Standing:
    """A clock and a log at which nothing moves."""

    fence = Fence(1, 4)
    primary = NodeId("b")

    def now(self) -> float:
        return 7.0

    def wall(self) -> float:
        return 7.0

    def add_metrics(self, registry: Registry) -> None:
        pass


class ManagerConnections:
    """The operators' side of every member of a cluster of logs."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.apis: dict[str, OperatorApi] = {}
        self.watches: dict[str, GroupWatch] = {}
        self.sink = MemorySink(capacity=1000)
        for name, node in cluster.nodes.items():
            address = cluster.addresses[NodeId(name)]
            # Each knows itself and the first one; the others it hears of.
            known = {name: address, "a": cluster.addresses[NodeId("a")]}
            log = Log(self.sink, node.runtime.clock)
            watch = GroupWatch(name, known, node.runtime.clock, log)
            watch.transport = node.transport
            api = OperatorApi(
                ledger=node.ledger,
                watch=watch,
                committer=Committer(
                    node.ledger, CommandCodec(1, msgspec.msgpack.encode), watch.address_of
                ),
                clock=node.runtime.clock,
                log=log,
                role="manager",
                speaks=node.ledger.replica.core.version,
                is_unused=lambda: False,
                own=lambda address=address: MemberNote(address=shown_address(address)),
            )
            api.register(cluster.boards[name][1].handlers)
            node.tasks.every("tick", 0.03, api.tick, jitter=0.0)
            self.apis[name], self.watches[name] = api, watch

    async def leader(self) -> OperatorApi:
        return self.apis[str((await self.cluster.primary()).member.node)]

    def address(self, name: str) -> str:
        return shown_address(self.cluster.addresses[NodeId(name)])


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.01)


def test_every_member_tells_how_the_group_is(tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncExitStack() as stack:
            cluster = await cluster_of(stack, tmp_path, "a", "b", "c")
            managers = ManagerConnections(cluster)
            leader = await managers.leader()

            def all_known() -> bool:
                views = [api.status(AskGroup(), NOBODY) for api in managers.apis.values()]
                states = [sorted(each.state for each in view.members) for view in views]
                return all(found == ["follows", "follows", "leads"] for found in states)

            await until(all_known)
            view = leader.view()
            assert [each.address for each in view.members] == [managers.address(n) for n in "abc"]
            assert view.quorum == 2 and view.leader == view.reported_by
            assert view.group.startswith("g#")
            stored = cluster.nodes["b"].ledger.member.storage
            assert next(each.storage for each in view.members if each.name == "b") == stored
            gone = next(name for name in "abc" if name != view.leader)
            await cluster.stop(gone)
            watch = managers.watches[view.leader]
            heard = watch.heard[gone]
            watch.heard[gone] = type(heard)(heard.note, heard.boot, heard.at - 60.0)
            states = {each.name: each.state for each in leader.view().members}
            assert states[gone] == "silent"

    run(work())


def test_all_managers_are_asked_at_once_and_the_dead_are_left_out(tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncExitStack() as stack:
            cluster = await cluster_of(stack, tmp_path, "a", "b", "c")
            managers = ManagerConnections(cluster)
            await managers.leader()
            runtime = RealRuntime("asker")
            tasks = TaskRunner(runtime.clock, runtime.random)
            client = Asked(
                cast("Runtime", runtime),
                tasks,
                Handlers(),
                addresses=[cluster.addresses[NodeId(name)] for name in "ab"],
                secrets=Secrets.of_node(SECRET),
                cluster="test",
            )
            answers = await client.ask_each(AskGroup(), timeout_s=20.0)
            assert sorted(view.reported_by for view in answers.values()) == ["a", "b"]
            await cluster.stop("b")
            all_three = list(cluster.addresses.values())
            answers = await client.ask_each(AskGroup(), timeout_s=20.0, of=all_three)
            assert sorted(view.reported_by for view in answers.values()) == ["a", "c"]
            await client.close()
            await tasks.shutdown(2.0)
            await runtime.close()

    run(work())


def test_a_hand_over_is_done_by_who_leads_and_only_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncExitStack() as stack:
            cluster = await cluster_of(stack, tmp_path, "a", "b", "c")
            managers = ManagerConnections(cluster)
            leader = await managers.leader()
            name = leader.view().leader
            follower = next(api for api in managers.apis.values() if api is not leader)
            await until(lambda: follower.view().leader == name)
            with pytest.raises(RemoteError) as refused:
                await follower.hand_over(HandOver(name), NOBODY)
            assert refused.value.code == ErrorCode.NOT_PRIMARY
            handed = await leader.hand_over(HandOver(name), NOBODY)
            assert handed.leader != name and handed.took_ms > 0.0
            again = await leader.hand_over(HandOver(name), NOBODY)
            assert again.leader == handed.leader and again.took_ms == 0.0
            assert "handed_over" in managers.sink.events()

    run(work())


def test_members_are_replaced_once_they_are_heard_and_hold_the_state(tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncExitStack() as stack:
            cluster = await cluster_of(stack, tmp_path, "a", "b", "c", "d", formed=("a", "b", "c"))
            managers = ManagerConnections(cluster)
            leader = await managers.leader()
            # The primary may be removed too: it hands over, and the next primary completes the
            # change.
            old = leader.view().leader
            change = ChangeMembers(gone=[old], added={"d": managers.address("d")})
            with pytest.raises(RemoteError) as refused:
                await leader.change(change, NOBODY)
            assert refused.value.code == ErrorCode.NOT_PRIMARY
            changed = await (await managers.leader()).change(change, NOBODY)
            left = sorted({"a", "b", "c", "d"} - {old})
            assert changed.epoch == 1 and changed.members == left and not changed.repeated
            again = await (await managers.leader()).change(change, NOBODY)
            assert again.members == left and again.repeated
            wrong = ChangeMembers(gone=["x"], added={"d": managers.address("d")})
            assert (await (await managers.leader()).change(wrong, NOBODY)).repeated
            with pytest.raises(RemoteError) as unknown:
                await (await managers.leader()).change(ChangeMembers(gone=["d"]), NOBODY)
            assert unknown.value.code == ErrorCode.CONFLICT

    run(work())


def test_three_become_five_and_three_again_without_losing_a_command(tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncExitStack() as stack:
            names = ("a", "b", "c", "d", "e")
            cluster = await cluster_of(stack, tmp_path, *names, formed=("a", "b", "c"))
            managers = ManagerConnections(cluster)
            await (await cluster.primary()).submit(b"first")

            async def changed(change: ChangeMembers) -> list[str]:
                """Like a client: repeats the request at the present primary until it is done."""
                while True:
                    try:
                        return (await (await managers.leader()).change(change, NOBODY)).members
                    except RemoteError as error:
                        if error.code not in (ErrorCode.NOT_PRIMARY, ErrorCode.RETRY_LATER):
                            raise
                        await asyncio.sleep(0.02)

            more = ChangeMembers(added={name: managers.address(name) for name in ("d", "e")})
            assert await changed(more) == list(names)
            await (await cluster.primary()).submit(b"second")
            gone = ["a", "b"]
            assert await changed(ChangeMembers(gone=gone)) == ["c", "d", "e"]
            for name in gone:
                await cluster.stop(name)
            ledger = await cluster.primary()
            await ledger.submit(b"third")
            assert ledger.fence.epoch == 4
            await cluster.all_hold([b"first", b"second", b"third"])

    run(work())


def test_a_version_is_announced_when_every_member_can_apply_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncExitStack() as stack:
            cluster = await cluster_of(stack, tmp_path, "a", "b", "c")
            await cluster.primary()
            late = next(name for name, n in cluster.nodes.items() if not n.ledger.is_primary)
            for name, node in cluster.nodes.items():
                node.ledger.replica.core.version = 1 if name == late else 2
            managers = ManagerConnections(cluster)
            leader = await managers.leader()
            ledger = await cluster.primary()
            others = ledger.replica.normal.progress
            await until(lambda: sorted(p.version for p in others.values())[-1] == 2)
            for _ in range(5):
                leader.tick()
            await ledger.submit(b"nothing was announced before this")
            assert ledger.active_version == 1
            cluster.nodes[late].ledger.replica.core.version = 2
            await until(lambda: ledger.active_version == 2)
            events = managers.sink.events()
            assert events.count("version_announced") == 1

    run(work())


def test_views_epochs_and_alarms_are_logged_and_counted() -> None:
    clock = cast("Clock", Standing())
    sink = MemorySink(capacity=100)
    watch = GroupWatch("a", {"a": ("h", 1)}, clock, Log(sink, clock))
    watch.log_view_change(Fence(0, 0), "a")
    watch.log_view_change(Fence(0, 1), None)
    watch.log_view_change(Fence(0, 1), "b")
    watch.log_view_change(Fence(0, 1), "b")
    member = Member(NodeId("a"), StorageId("s"))
    watch.observe(EnteredEpoch(Config(1, (member,)), True))
    watch.observe(SteppedDown(Fence(0, 1), "no quorum"))
    watch.alarm("the state differs")
    events = sink.events()
    assert events == ["view_changed", "epoch_entered", "lead_ended", "alarm"]
    registry = Registry()
    group_metrics(registry, cast("Ledger", Standing()), watch, lambda: VIEW)
    text = registry.exposition()
    for line in (
        "squall_group_epoch 1", "squall_group_view 4", "squall_group_has_leader 1",
        "squall_group_members 2", "squall_group_members_silent 1", "squall_group_alarms 1",
        "squall_group_view_changes 1", "squall_group_stepped_down 1", "squall_group_behind 3",
    ):  # fmt: skip
        assert f"\n{line}.0\n" in text, text
