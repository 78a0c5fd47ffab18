"""Where the addresses of a cluster lead, on the disk of a client."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

from squall.cluster.client import known_managers
from squall.cluster.client.known_managers import FOLDER, KnownManagers
from squall.runtime.interfaces import Address, Runtime
from squall.runtime.real.runtime import RealRuntime

OLD: list[Address] = [("m1", 1), ("m2", 2)]
NEW: list[Address] = [("m3", 3), ("::1", 4)]


def test_the_next_client_knows_the_managers_that_the_last_one_met(tmp_path: Path) -> None:
    async def main() -> None:
        runtimes = [RealRuntime(f"client-{n}", data_dir=tmp_path) for n in range(10)]
        all_of_them = [KnownManagers(cast("Runtime", each), "eu", OLD) for each in runtimes]
        first, *others = all_of_them
        assert await first.read() == []
        await first.write(OLD)
        assert not (tmp_path / FOLDER).exists()
        await asyncio.gather(*(each.write(NEW) for each in all_of_them))
        assert [await each.read() for each in others] == [NEW] * 9
        assert len(list((tmp_path / FOLDER).iterdir())) == 1
        # Another cluster, or other addresses, lead elsewhere.
        for cluster, given in (("us", OLD), ("eu", OLD[:1])):
            other = KnownManagers(cast("Runtime", runtimes[0]), cluster, given)
            assert await other.read() == []
        for runtime in runtimes:
            await runtime.close()

    asyncio.run(main())


def test_the_number_of_files_is_bounded(tmp_path: Path) -> None:
    async def main() -> None:
        runtime = RealRuntime("client", data_dir=tmp_path)
        for port in range(1, known_managers.FILES_MAX + 4):
            known = KnownManagers(cast("Runtime", runtime), "eu", [("m1", port)])
            await known.write(NEW)
            assert await known.read() == NEW
        assert len(list((tmp_path / FOLDER).iterdir())) == known_managers.FILES_MAX
        await runtime.close()

    asyncio.run(main())


def test_a_folder_that_cannot_be_written_ends_no_command(tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / FOLDER).write_text("in the way", encoding="utf-8")
        runtime = RealRuntime("client", data_dir=tmp_path)
        known = KnownManagers(cast("Runtime", runtime), "eu", OLD)
        await known.write(NEW)
        assert await known.read() == []
        await runtime.close()

    asyncio.run(main())
