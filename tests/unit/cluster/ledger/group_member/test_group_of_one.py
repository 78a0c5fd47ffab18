"""The ledger of one member: commits, restarts, roles, refusals, versions, time."""

from __future__ import annotations

import asyncio
import errno
import zlib
from typing import Any

import msgspec
import pytest

from squall.api.errors import ConfigError
from squall.cluster.ledger.group_member.submissions import BATCH_BYTES, BATCH_OPS
from squall.cluster.ledger.interface import (
    Committed,
    Entry,
    Fence,
    LedgerDamaged,
    LedgerFailed,
    NotPrimary,
    OpNumber,
    OutcomeUnknown,
    ReadLevel,
    TryLater,
)
from squall.cluster.ledger.replica.types import Base, Checksum
from squall.cluster.ledger.settings import Durability, LedgerSettings, WalSettings
from squall.cluster.ledger.wal.errors import TooLarge
from squall.runtime.log import MemorySink
from squall.runtime.metrics import Registry
from tests.unit.cluster.ledger.lab.ledgers import SMALL, Words, ledger_on, open_alone, say
from tests.unit.cluster.ledger.lab.logs import turns
from tests.unit.cluster.ledger.lab.memory_disk import (
    HandClock,
    MemoryDisk,
    MemoryFile,
    MemoryRuntime,
)

pytestmark = pytest.mark.asyncio


async def test_a_committed_command_is_applied_and_its_result_returned() -> None:
    machine = Words()
    async with ledger_on(MemoryDisk(), machine) as ledger:
        first = await ledger.submit(b"one")
        second = await ledger.submit(b"two")
        assert (first.result, second.result) == (b"1", b"2")
        assert second.op == first.op + 1 == ledger.applied
        assert second.group_ms >= first.group_ms
        assert (await ledger.submit(b"bad")).result == b"rejected"
        assert machine.words == ["one", "two"]


async def test_nothing_is_answered_or_applied_before_it_is_durable() -> None:
    disk, machine = MemoryDisk(), Words()
    async with ledger_on(disk, machine) as ledger:
        disk.gate = asyncio.Event()
        waiting = asyncio.ensure_future(ledger.submit(b"one"))
        await turns()
        assert not waiting.done()
        assert machine.words == []
        disk.gate.set()
        assert (await waiting).result == b"1"


async def test_a_command_reaches_the_disk_in_the_turn_after_it_was_submitted() -> None:
    disk = MemoryDisk()
    async with ledger_on(disk) as ledger:
        disk.gate = asyncio.Event()
        before = len(disk.calls)
        waiting = asyncio.ensure_future(ledger.submit(b"one"))
        # The first turn proposes the command, the second one writes it.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(disk.calls) == before + 2 and disk.calls[-1] == "sync"
        disk.gate.set()
        assert (await waiting).result == b"1"


async def test_a_command_whose_caller_left_in_the_same_turn_is_not_proposed() -> None:
    machine = Words()
    async with ledger_on(MemoryDisk(), machine) as ledger:
        # With a command under way the next one waits for its turn.
        first = asyncio.ensure_future(ledger.submit(b"one"))
        left = asyncio.ensure_future(ledger.submit(b"never"))
        await asyncio.sleep(0)
        left.cancel()
        assert (await first).result == b"1"
        assert (await ledger.submit(b"two")).result == b"2"
        assert machine.words == ["one", "two"]


async def test_callers_that_come_together_share_a_record_and_a_lone_one_does_not_wait() -> None:
    async with ledger_on(MemoryDisk()) as ledger:
        core, records = ledger.replica.core, ledger.wal.counters

        async def submit_together() -> int:
            before = records.records
            await asyncio.gather(*(ledger.submit(b"word") for _ in range(8)))
            return records.records - before

        # The first one was taken for a lone caller; from then on they are a batch.
        assert [await submit_together() for _ in range(3)] == [2, 1, 1]
        await ledger.submit(b"alone")
        before = core.log.last
        lone = asyncio.ensure_future(ledger.submit(b"alone"))
        await asyncio.sleep(0)
        assert core.log.last == before + 1 and core.commit == before
        await lone


@pytest.mark.parametrize("clean", [True, False])
async def test_a_restart_has_every_committed_command_and_a_higher_view(clean: bool) -> None:
    disk, expected = MemoryDisk(), []
    for start in range(4):
        machine = Words()
        async with ledger_on(disk, machine, clean=clean) as ledger:
            assert machine.words == expected
            assert ledger.fence == Fence(0, start)
            assert ledger.is_primary and ledger.primary == "m1"
            await say(ledger, f"a{start}", f"b{start}", f"c{start}")
            expected = list(machine.words)
    assert len(expected) == 12


async def test_callbacks_hear_of_every_command_in_order() -> None:
    told: list[tuple[Entry, bytes]] = []
    async with ledger_on(MemoryDisk()) as ledger:
        ledger.on_applied(lambda entry, result: told.append((entry, result)))
        await say(ledger, *(str(number) for number in range(50)))
        assert [entry.body for entry, _ in told] == [b"%d" % n for n in range(50)]
        assert [result for _, result in told] == [b"%d" % n for n in range(1, 51)]


async def test_reads_wait_for_what_their_level_promises() -> None:
    disk = MemoryDisk()
    async with ledger_on(disk) as ledger:
        done = await ledger.submit(b"one")
        assert await ledger.read(ReadLevel.STRONG) == done.op
        assert await ledger.read(ReadLevel.STALE) == done.op
        disk.gate = asyncio.Event()
        writing = asyncio.ensure_future(ledger.submit(b"two"))
        later = OpNumber(done.op + 1)
        session = asyncio.ensure_future(ledger.read(ReadLevel.SESSION, later))
        await turns()
        assert not session.done()
        assert await ledger.read(ReadLevel.STALE) == done.op
        assert await ledger.read(ReadLevel.STRONG) == done.op
        disk.gate.set()
        assert await session == later == (await writing).op
        assert await ledger.confirm() == ledger.fence


async def test_a_failed_sync_ends_the_lead_and_leaves_outcomes_unknown() -> None:
    disk, roles = MemoryDisk(), list[Fence | None]()
    async with ledger_on(disk, clean=False) as ledger:
        ledger.on_role(roles.append)
        await turns()
        assert roles == [Fence(0, 0)]
        await ledger.submit(b"one")
        disk.sync_errors.append(OSError(errno.EIO, "input/output error"))
        results = await asyncio.gather(
            *(ledger.submit(b"x") for _ in range(3)), return_exceptions=True
        )
        assert all(isinstance(result, OutcomeUnknown) for result in results)
        assert roles == [Fence(0, 0), None]
        assert not ledger.is_primary
        for asking in (ledger.submit(b"y"), ledger.read(ReadLevel.STRONG), ledger.confirm()):
            with pytest.raises(LedgerFailed):
                await asking
        assert await ledger.read(ReadLevel.STALE) == 3
    machine = Words()
    async with ledger_on(disk, machine):
        assert machine.words[0] == "one"


async def test_a_disk_that_does_not_answer_costs_the_lead_until_it_does() -> None:
    disk, clock, roles = MemoryDisk(), HandClock(), list[Fence | None]()
    machine = Words()
    async with ledger_on(disk, machine, clock=clock) as ledger:
        ledger.on_role(roles.append)
        disk.gate = asyncio.Event()
        waiting = asyncio.ensure_future(ledger.submit(b"one"))
        await turns()
        clock.time_s += 1.9
        await turns()
        assert ledger.is_primary
        clock.time_s += 0.2
        await turns()
        assert not ledger.is_primary
        with pytest.raises(OutcomeUnknown):
            await waiting
        with pytest.raises(NotPrimary):
            await ledger.submit(b"two")
        disk.gate.set()
        await turns(50)
        assert ledger.is_primary
        assert roles == [Fence(0, 0), None, Fence(0, 1)]
        assert machine.words == ["one"]
        await ledger.submit(b"three")


async def test_a_full_disk_refuses_and_recovers() -> None:
    disk, machine = MemoryDisk(), Words()
    async with ledger_on(disk, machine) as ledger:
        await ledger.submit(b"one")
        disk.capacity = disk.used + 10
        results = await asyncio.gather(
            *(ledger.submit(b"no") for _ in range(5)), return_exceptions=True
        )
        assert all(isinstance(result, TryLater) for result in results)
        assert isinstance(results[0], NotPrimary)
        disk.capacity = None
        assert (await ledger.submit(b"two")).result == b"2"
    again = Words()
    async with ledger_on(disk, again):
        assert again.words == ["one", "two"]


async def test_what_waits_is_bounded() -> None:
    disk = MemoryDisk()
    settings = LedgerSettings(max_in_flight=10, wal=SMALL.wal)
    async with ledger_on(disk, settings=settings) as ledger:
        disk.gate = asyncio.Event()
        callers = [asyncio.ensure_future(ledger.submit(b"%d" % n)) for n in range(15)]
        await turns()
        refused = [caller for caller in callers if caller.done()]
        assert len(refused) == 5
        for caller in refused:
            with pytest.raises(TryLater):
                await caller
        disk.gate.set()
        await asyncio.gather(*callers[:10])


async def test_a_checkpoint_of_a_peer_waits_until_the_apply_queue_is_empty() -> None:
    machine = Words()
    async with ledger_on(MemoryDisk(), machine) as ledger:
        core = ledger.replica.core
        content = msgspec.msgpack.encode([b"from", b"a", b"peer"])
        data = zlib.crc32(content).to_bytes(4, "little") + content
        base = Base(OpNumber(10_000), Checksum(b"peer"), ledger.group_ms(), core.group, core.config)
        await say(ledger, "one")
        told = [asyncio.ensure_future(say(ledger, *["word"] * 40))]
        install = asyncio.ensure_future(ledger.snapshots._install(base, data))  # pyright: ignore[reportPrivateUsage]
        for _ in range(60):
            # More is committed in every turn than is applied.
            told.append(asyncio.ensure_future(say(ledger, *["word"] * 40)))
            await asyncio.sleep(0)
        await install
        await asyncio.gather(*told, return_exceptions=True)
        assert ledger.failure is None
        assert machine.words[:3] == ["from", "a", "peer"]


@pytest.mark.parametrize(("count", "size"), [(64, 256 * 1024), (20_000, 900)])
async def test_a_burst_of_one_turn_becomes_batches_of_bounded_size(count: int, size: int) -> None:
    async with ledger_on(MemoryDisk()) as ledger:
        batches: list[int] = []
        right = ledger.replica.submit

        def submit(commands: list[tuple[int, bytes]], now: float) -> Any:
            batches.append(len(commands))
            return right(commands, now)

        ledger.replica.submit = submit  # type: ignore[method-assign]
        burst = (ledger.submit(b"w" * size) for _ in range(count))
        answers = await asyncio.gather(*burst, return_exceptions=True)
        done = [answer for answer in answers if isinstance(answer, Committed)]
        refused = [answer for answer in answers if isinstance(answer, TryLater)]
        assert done and len(done) + len(refused) == count
        assert sum(batches) == len(done)
        assert max(batches) <= BATCH_OPS and max(batches) * size <= BATCH_BYTES
        assert int((await ledger.submit(b"after")).result) == len(done) + 1


async def test_a_command_over_the_limit_is_refused() -> None:
    async with ledger_on(MemoryDisk(), settings=LedgerSettings()) as ledger:
        with pytest.raises(TooLarge):
            await ledger.submit(bytes(256 * 1024 + 1))
        await ledger.submit(b"x" * (256 * 1024))


async def test_a_version_is_used_only_after_it_was_activated() -> None:
    disk = MemoryDisk()
    async with ledger_on(disk, Words(version=1)) as ledger:
        with pytest.raises(TryLater, match="version 2"):
            await ledger.submit(b"new", version=2)
    async with ledger_on(disk, Words(version=2)) as ledger:
        assert ledger.active_version == 2
        await ledger.submit(b"new", version=2)
    with pytest.raises(LedgerFailed, match="start the newer version"):
        async with ledger_on(disk, Words(version=1)):
            pass


async def test_a_machine_that_raises_stops_the_member() -> None:
    async with ledger_on(MemoryDisk(), clean=False) as ledger:
        with pytest.raises(OutcomeUnknown):
            await ledger.submit(b"raise")
        with pytest.raises(LedgerFailed, match="a bug in the machine"):
            await ledger.submit(b"more")
        assert not ledger.is_primary


async def test_the_group_clock_goes_on_over_a_restart() -> None:
    disk, clock = MemoryDisk(), HandClock()
    async with ledger_on(disk, clock=clock) as ledger:
        clock.time_s += 10.0
        clock.wall_s += 10.0
        before = (await ledger.submit(b"x")).group_ms
        assert before == 10_000
    clock.time_s = 5.0
    clock.wall_s += 60.0
    async with ledger_on(disk, clock=clock) as ledger:
        assert ledger.group_ms() == 70_000
        await ledger.submit(b"x")
    clock.wall_s -= 3600.0
    async with ledger_on(disk, clock=clock) as ledger:
        assert ledger.group_ms() == 70_000
        await ledger.submit(b"x")
    clock.wall_s += 7 * 24 * 3600.0
    async with ledger_on(disk, clock=clock) as ledger:
        assert ledger.group_ms() == 70_000 + 24 * 3600 * 1000


async def test_a_wrong_wall_clock_does_not_move_the_group_clock_over_a_restart() -> None:
    disk, clock = MemoryDisk(), HandClock()
    clock.kernel = "k1"
    async with ledger_on(disk, clock=clock) as ledger:
        clock.time_s += 10.0
        await ledger.submit(b"x")
    for off_s in (3600.0, -3600.0, 30 * 24 * 3600.0):
        clock.wall_s += off_s
        clock.time_s += 2.0
        async with ledger_on(disk, clock=clock) as ledger:
            await ledger.submit(b"x")
    assert ledger.group_ms() == 16_000


async def test_a_wrong_wall_clock_does_not_move_the_group_clock_after_a_checkpoint() -> None:
    disk, clock = MemoryDisk(), HandClock()
    clock.kernel = "k1"
    async with ledger_on(disk, clock=clock) as ledger:
        await ledger.submit(b"x")
        clock.time_s += 300.0
        await ledger.snapshots.checkpoint()
    clock.time_s += 5.0
    clock.wall_s += 3600.0
    async with ledger_on(disk, clock=clock) as ledger:
        assert ledger.group_ms() == 305_000


async def test_after_a_restart_of_the_machine_the_wall_clock_counts() -> None:
    disk, clock = MemoryDisk(), HandClock()
    clock.kernel = "k1"
    async with ledger_on(disk, clock=clock) as ledger:
        clock.time_s += 10.0
        await ledger.submit(b"x")
    clock.kernel, clock.time_s = "k2", 3.0
    clock.wall_s += 90.0
    async with ledger_on(disk, clock=clock) as ledger:
        assert ledger.group_ms() == 100_000


async def test_the_group_clock_counts_the_time_in_which_its_machine_was_suspended() -> None:
    disk, clock = MemoryDisk(), HandClock()
    async with ledger_on(disk, clock=clock) as ledger:
        clock.time_s += 1.0
        clock.suspended_s += 20.0
        assert (await ledger.submit(b"x")).group_ms == ledger.group_ms() == 21_000


async def test_idle_time_before_a_checkpoint_counts_for_the_group_clock() -> None:
    disk, clock = MemoryDisk(), HandClock()
    async with ledger_on(disk, clock=clock) as ledger:
        await ledger.submit(b"x")
        clock.time_s += 300.0
        clock.wall_s += 300.0
        await ledger.snapshots.checkpoint()
    clock.wall_s += 5.0
    async with ledger_on(disk, clock=clock) as ledger:
        assert ledger.group_ms() == 305_000


async def test_the_data_directory_has_one_owner() -> None:
    disk = MemoryDisk()
    async with ledger_on(disk):
        held = disk.locked
        assert held
        with pytest.raises(LedgerFailed, match="another process holds"):
            await open_alone(MemoryRuntime(disk, HandClock()), Words())  # type: ignore[arg-type]
    assert not disk.locked


async def test_another_node_cannot_take_the_directory() -> None:
    disk = MemoryDisk()
    async with ledger_on(disk) as ledger:
        await ledger.submit(b"x")
    with pytest.raises(LedgerFailed, match="belongs to the group m1"):
        await open_alone(MemoryRuntime(disk, HandClock(), "m2"), Words())  # type: ignore[arg-type]


async def test_a_lost_storage_record_is_not_taken_for_a_new_directory() -> None:
    disk = MemoryDisk()
    async with ledger_on(disk) as ledger:
        await ledger.submit(b"x")
    kept = disk.files.pop("ledger/storage")
    with pytest.raises(LedgerDamaged, match="storage is missing"):
        async with ledger_on(disk):
            pass
    kept[-1] ^= 1
    disk.files["ledger/storage"] = kept
    with pytest.raises(LedgerDamaged, match="storage is damaged"):
        async with ledger_on(disk):
            pass


async def test_a_ledger_without_sync_is_refused() -> None:
    settings = LedgerSettings(wal=WalSettings(durability=Durability.WRITE))
    with pytest.raises(ConfigError):
        async with ledger_on(MemoryDisk(), settings=settings):
            pass


async def test_after_a_close_nothing_is_taken() -> None:
    async with ledger_on(MemoryDisk()) as ledger:
        roles: list[Fence | None] = []
        ledger.on_role(roles.append)
        await turns()
        await ledger.close()
        await ledger.close()
        assert roles == [Fence(0, 0), None]
        with pytest.raises(LedgerFailed):
            await ledger.submit(b"x")


async def test_people_are_told_of_starts_roles_and_failures() -> None:
    disk, sink = MemoryDisk(), MemorySink()
    async with ledger_on(disk, sink=sink, clean=False) as ledger:
        registry = Registry()
        ledger.add_metrics(registry)
        assert "squall_checkpoint_written 0" in registry.exposition()
        await ledger.submit(b"x")
        await ledger.snapshots.checkpoint()
        assert "squall_checkpoint_written 1" in registry.exposition()
        assert "squall_checkpoint_op 3" in registry.exposition()
        assert "squall_wal_durable_lsn 3" in registry.exposition()
        assert "squall_wal_failed 0" in registry.exposition()
        disk.sync_errors.append(OSError(errno.EIO, "input/output error"))
        with pytest.raises(OutcomeUnknown):
            await ledger.submit(b"y")
        assert "squall_wal_failed 1" in registry.exposition()
    assert sink.events() == [
        "ledger_recovered",
        "ledger_leads",
        "checkpoint_written",
        "ledger_failed",
        "ledger_stepped_down",
    ]
    again = MemorySink()
    async with ledger_on(disk, sink=again) as ledger:
        found = again.records[0].fields
        assert found["op"] == 4 and found["checkpoint"] == 3 and found["entries"] == 1
        assert again.events().count("ledger_replayed") == 1
        registry = Registry()
        ledger.add_metrics(registry)
        assert "squall_recovery_entries 1" in registry.exposition()
        assert "squall_recovery_seconds -1" not in registry.exposition()


class NoCheckpoints(MemoryDisk):
    async def open(self, path: str, *, preallocate: int = 0, ahead: int = 0) -> MemoryFile:
        if "checkpoint_" in path:
            raise OSError(errno.EIO, "input/output error", path)
        return await super().open(path, preallocate=preallocate, ahead=ahead)


async def test_a_checkpoint_that_cannot_be_written_is_logged_and_counted() -> None:
    disk, sink = NoCheckpoints(), MemorySink()
    settings = msgspec.structs.replace(SMALL, checkpoint_entries=4)
    async with ledger_on(disk, sink=sink, settings=settings, clean=False) as ledger:
        registry = Registry()
        ledger.add_metrics(registry)
        for number in range(8):
            await ledger.submit(b"%d" % number)
        await turns()
        assert "squall_checkpoint_failed 0" not in registry.exposition()
        assert "squall_checkpoint_written 0" in registry.exposition()
    failed = next(each for each in sink.records if each.event == "checkpoint_failed")
    assert failed.fields["work"] == "checkpoint" and failed.fields["reason"]
