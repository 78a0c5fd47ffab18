"""Whatever is written, cut, restarted and torn: what comes back is what was acknowledged,
and of the last commit all or nothing."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squall.cluster.ledger.wal.errors import WalDamaged
from squall.cluster.ledger.wal.format import FILE_HEADER_BYTES
from tests.unit.cluster.ledger.lab.logs import SMALL, all_of, opened
from tests.unit.cluster.ledger.lab.memory_disk import MemoryDisk

BODIES = st.lists(st.binary(max_size=700), min_size=1, max_size=6)
pytestmark = pytest.mark.timeout(600)

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), BODIES),
        st.tuples(st.just("cut"), st.floats(0.0, 1.0)),
        st.tuples(st.just("restart"), st.booleans()),
    ),
    max_size=12,
)
Step = tuple[str, list[bytes] | float | bool]


async def written(disk: MemoryDisk, steps: list[Step], last: list[bytes]) -> list[bytes]:
    """Does the steps, then one more commit whose end is not seen; what was acknowledged."""
    model: list[bytes] = []
    left = list(steps)
    while True:
        clean = False
        async with opened(disk, clean=False) as wal:
            assert [record.body for record in await all_of(wal)] == model
            assert wal.next_lsn == len(model) + 1
            while left:
                kind, value = left.pop(0)
                if kind == "append" and isinstance(value, list):
                    await wal.append_many([(1, body) for body in value])
                    model += value
                elif kind == "cut" and isinstance(value, float):
                    keep = int(value * len(model))
                    await wal.cut(keep + 1)
                    del model[keep:]
                else:
                    clean = bool(value)
                    break
            else:
                before = {path: len(content) for path, content in disk.files.items()}
                await wal.append_many([(1, body) for body in last])
                disk.before = before
                return model
            if clean:
                await wal.close()


def torn(disk: MemoryDisk, kept: float, hole: float) -> bool:
    """Leaves a part of the last commit, with a hole in it; whether it is whole."""
    path = max(path for path in disk.files if path.endswith(".wal"))
    content = disk.files[path]
    start = disk.before.get(path, FILE_HEADER_BYTES)
    whole = bytes(content)
    del content[start + round(kept * (len(content) - start)) :]
    place = start + int(hole * (len(content) - start))
    content[place : place + 64] = bytes(len(content[place : place + 64]))
    return bytes(content) == whole


@settings(max_examples=150, deadline=None)
@given(STEPS, BODIES, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_the_acknowledged_prefix_comes_back(
    steps: list[Step], last: list[bytes], kept: float, hole: float
) -> None:
    async def play() -> None:
        disk = MemoryDisk()
        model = await written(disk, steps, last)
        whole = torn(disk, kept, hole)
        async with opened(disk) as wal:
            found = [record.body for record in await all_of(wal)]
            assert found == (model + last if whole else model)
            await wal.append(1, b"next")
        async with opened(disk) as wal:
            assert [record.body for record in await all_of(wal)] == [*found, b"next"]

    asyncio.run(play())


@settings(max_examples=150, deadline=None)
@given(st.lists(BODIES, min_size=2, max_size=8), st.data())
def test_a_flipped_bit_never_yields_a_wrong_record(
    batches: list[list[bytes]], data: st.DataObject
) -> None:
    async def play() -> None:
        disk = MemoryDisk()
        async with opened(disk, SMALL) as wal:
            for bodies in batches:
                await wal.append_many([(1, body) for body in bodies])
        model = [body for bodies in batches for body in bodies]
        path = data.draw(st.sampled_from(sorted(disk.files)))
        place = data.draw(st.integers(0, len(disk.files[path]) - 1))
        disk.files[path][place] ^= 1 << data.draw(st.integers(0, 7))
        with contextlib.suppress(WalDamaged):
            async with opened(disk, SMALL) as wal:
                # Only the mark at the end, behind all records, may be lost unnoticed.
                assert [record.body for record in await all_of(wal)] == model

    asyncio.run(play())
