"""What is checked before a browser starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from squall.api.errors import ConfigError
from squall.clients.browser import process
from squall.clients.browser.process import free_memory


def test_a_missing_browser_and_too_many_users_are_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(process.PROGRAM, "/nowhere/chromium")
    with pytest.raises(ConfigError, match="SQUALL_CHROMIUM=/nowhere/chromium: no such program"):
        process.program()
    monkeypatch.delenv(process.PROGRAM)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="which is not installed: apt-get install chromium"):
        process.program()
    monkeypatch.setattr(process, "free_memory", lambda: 4 << 30)
    process.check_memory(10, 2)
    with pytest.raises(ConfigError, match=r"200 users .* need about 12\.5 GB .* 60 fit"):
        process.check_memory(100, 2)


def test_the_memory_of_a_container_counts_if_it_is_less(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  4000 kB\nMemAvailable:  2000 kB\n")
    assert free_memory(meminfo=meminfo, group=tmp_path) == 2000 * 1024
    (tmp_path / "memory.max").write_text("1500000\n")
    (tmp_path / "memory.current").write_text("500000\n")
    assert free_memory(meminfo=meminfo, group=tmp_path) == 1_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory(meminfo=meminfo, group=tmp_path) == 2000 * 1024
    assert free_memory(meminfo=tmp_path / "no", group=tmp_path / "no") is None
