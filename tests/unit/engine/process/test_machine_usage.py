"""How busy a machine is, by the kernel's files."""

from __future__ import annotations

from pathlib import Path

from squall.engine.process.machine_usage import MachineUsage, UsageMeter

MEMORY = "MemTotal:        1000 kB\nMemFree:          100 kB\nMemAvailable:     250 kB\n"


def test_the_processors_are_measured_between_two_readings(tmp_path: Path) -> None:
    stat, memory = tmp_path / "stat", tmp_path / "meminfo"
    stat.write_text("cpu  100 0 100 700 100 0 0 0 50 0\ncpu0 1 2 3\n")
    memory.write_text(MEMORY)
    meter = UsageMeter(stat, memory)
    assert meter.read() == MachineUsage(None, 0.75)
    stat.write_text("cpu  130 0 130 730 110 0 0 0 90 0\n")
    assert meter.read() == MachineUsage(0.6, 0.75)
    # No time has passed.
    assert meter.read().cpu is None


def test_a_system_without_these_files_says_nothing(tmp_path: Path) -> None:
    meter = UsageMeter(tmp_path / "stat", tmp_path / "meminfo")
    assert meter.read() == meter.read() == MachineUsage()
