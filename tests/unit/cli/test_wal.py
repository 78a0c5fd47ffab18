"""`squall wal`: what it shows of a real data directory, and its exit codes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from squall.cli.main import main
from squall.cluster.ledger.settings import LedgerSettings, WalSettings
from squall.runtime.real.runtime import RealRuntime
from tests.unit.cluster.ledger.lab.ledgers import Words, open_alone, say

SETTINGS = LedgerSettings(wal=WalSettings(segment_bytes=4096))


async def fill(folder: Path) -> None:
    runtime = RealRuntime("m1", data_dir=folder)
    ledger = await open_alone(runtime, Words(), SETTINGS)
    for n in range(40):
        # One record each, as a group of one stores lone commands.
        await say(ledger, f"{n}".ljust(200))
    await ledger.snapshots.checkpoint()
    await say(ledger, "one", "two")
    await ledger.close()
    await runtime.close()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    asyncio.run(fill(tmp_path / "data"))
    return tmp_path / "data"


def test_a_sound_log_verifies(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place in ("", "ledger", "ledger/wal"):
        assert main(["wal", "verify", str(data / place)]) == 0
        shown = capsys.readouterr().out
        assert "sound: records 1 to 45" in shown
        assert "closed in order" in shown
        assert "whole, continues at record 43" in shown


def test_inspect_shows_segments_and_records(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["wal", "inspect", str(data), "--records", "1..3"]) == 0
    shown = capsys.readouterr().out.splitlines()
    segments = len(list((data / "ledger/wal").iterdir()))
    assert len(shown) == 1 + segments + 3
    assert "op 1 form" in shown[-3]
    assert "op 2 view" in shown[-2]
    assert "op 3 command v1 200 bytes" in shown[-1]


def test_damage_is_named_and_fails(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segment = sorted((data / "ledger/wal").iterdir())[1]
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)
    assert main(["wal", "verify", str(data)]) == 1
    assert f"DAMAGED ledger/wal/{segment.name} at byte" in capsys.readouterr().out
    assert main(["wal", "inspect", str(data), "--records", "1..43"]) == 1
    shown = capsys.readouterr().out
    assert shown.count("skipped: bytes") == 1
    assert "op 1 form" in shown
    assert "op 43 command" in shown
    assert segment.read_bytes() == content


def test_a_torn_tail_is_reported_and_is_no_damage(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    segment = max((data / "ledger/wal").iterdir())
    segment.write_bytes(segment.read_bytes() + b"torn")
    assert main(["wal", "verify", str(data)]) == 0
    assert "torn tail: 4 bytes" in capsys.readouterr().out


def test_a_mistake_is_one_line(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    for words in (
        ["verify", str(tmp_path / "none")],
        ["verify", str(tmp_path / "empty")],
        ["inspect", str(data), "--records", "a..b"],
    ):
        assert main(["wal", *words]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
