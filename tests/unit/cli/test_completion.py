"""`squall completion`: the scripts know every command, flag and choice, and shells read them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from squall.cli.dev.completion import RENDERERS, all_nodes
from squall.cli.main import COMMANDS, build_parser, main

SHELLS = [
    pytest.param(shell, marks=pytest.mark.skipif(not shutil.which(shell), reason="not installed"))
    for shell in RENDERERS
]


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def test_every_command_and_its_flags_are_there() -> None:
    nodes = {node.path: node for node in all_nodes(build_parser())}
    assert set(nodes[""].commands) == set(COMMANDS)
    assert all(nodes[""].commands.values())
    assert " coord signal send" in nodes or " coord signal" in nodes
    flags = {name: flag for flag in nodes[" run"].flags for name in flag.names}
    assert flags["--json"].takes_value and not flags["--once"].takes_value
    assert flags["--on-agent-loss"].choices == ("replan", "continue")
    assert "--headless" not in flags
    assert nodes[" target"].flags


@pytest.mark.parametrize("shell", RENDERERS)
def test_the_script_has_every_word(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = script(shell, capsys)
    for node in all_nodes(build_parser()):
        for flag in node.flags:
            for name in flag.names:
                # fish names a flag without its dashes, after -l or -s.
                word = name.lstrip("-") if shell == "fish" else name
                assert re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text), name


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_reads_the_script(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "script"
    path.write_text(script(shell, capsys), encoding="utf-8")
    ended = subprocess.run([shell, "-n", str(path)], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


def bash_completes(path: Path, *words: str) -> list[str]:
    line = f"source {path}; COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _squall; "
    command = line + 'printf "%s\\n" "${COMPREPLY[@]}"'
    ended = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, cwd=path.parent, check=True
    )
    return ended.stdout.split()


def test_bash_completes_commands_flags_choices_and_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "script"
    path.write_text(script("bash", capsys), encoding="utf-8")
    (tmp_path / "shop.py").touch()
    assert bash_completes(path, "squall", "ex") == ["explain"]
    assert bash_completes(path, "squall", "run", "sh") == ["shop.py"]
    assert bash_completes(path, "squall", "run", "--json") == ["--json-body", "--json"]
    assert bash_completes(path, "squall", "run", "--on-agent-loss", "re") == ["replan"]
    assert bash_completes(path, "squall", "coord", "sig") == ["signals", "signal"]
    assert bash_completes(path, "squall", "completion", "f") == ["fish"]


@pytest.mark.skipif(not shutil.which("fish"), reason="not installed")
def test_fish_completes_commands_and_flags(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "script"
    path.write_text(script("fish", capsys), encoding="utf-8")

    def completes(text: str) -> list[str]:
        command = f"source {path}; complete -C '{text}'"
        ended = subprocess.run(["fish", "-c", command], capture_output=True, text=True, check=True)
        return [line.split("\t")[0] for line in ended.stdout.splitlines()]

    assert completes("squall ex") == ["explain"]
    assert completes("squall run --onc") == ["--once"]
    assert completes("squall run --on-agent-loss re") == ["replan"]
    assert "signal" in completes("squall coord s")
