"""`python -m lab`, as a developer uses it."""

from __future__ import annotations

import pytest

from lab import command
from lab.command import main
from lab.scenarios.campaign import Result, run_campaign
from lab.scenarios.registry import find


def test_a_found_bug_prints_its_seed_and_how_to_see_it_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["run", "wal", "--seeds", "1..50", "--mutant", "ack_before_sync"]
    assert main(words) == 1
    shown = capsys.readouterr().out
    again = next(line for line in shown.splitlines() if line.startswith("see it again: "))
    assert "  scenario   CheckFailed" in shown, "the tail of the trace"
    words = again.removeprefix("see it again: python -m lab ").split()
    assert main([word for word in words if word != "--verbose"]) == 1
    replayed = capsys.readouterr().out
    failure = next(line for line in shown.splitlines() if " failed: " in line)
    assert failure.partition(" failed: ")[2] in replayed


def test_mutants_are_looked_for_one_after_the_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []

    def campaign(name: str, seeds: range, *, mutant: str | None, **_: object) -> Result:
        asked.append(mutant)
        return run_campaign(name, seeds[:1], mutant="ack_before_sync")

    monkeypatch.setattr(command, "run_campaign", campaign)
    assert main(["mutants", "wal", "--seeds", "1..5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert asked == list(find("wal").mutants)
    assert [line.split()[:3] for line in lines[:-1]] == [[name, "seed", "1"] for name in asked]
    assert lines[-1] == f"wal: {len(asked)} mutants, none missed"
    monkeypatch.setattr(command, "run_campaign", lambda *_, **__: Result())  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    assert main(["mutants", "wal", "--seeds", "1..7"]) == 1
    shown = capsys.readouterr().out
    assert "NOT FOUND in 7 seeds" in shown and f"{len(asked)} missed" in shown
    assert main(["mutants", "ping"]) == 2


def test_clean_seeds_end_with_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "ping", "--seeds", "1..3", "--set", "nodes=3", "--set", "seconds=5"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("ping: 3 seeds, all clean, 16 simulated s in ")


def test_two_processes_run_the_same_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "ping", "--seeds", "1..12", "--jobs", "2"]
    assert main([*words, "--set", "nodes=3", "--set", "seconds=5"]) == 0
    assert "ping: 12 seeds, all clean, 66 simulated s" in capsys.readouterr().out


def test_replay_shows_every_packet_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["replay", "ping", "--seed", "1", "--set", "nodes=2", "--set", "seconds=2"]
    assert main(words) == 0
    assert "datagram" not in capsys.readouterr().out
    assert main([*words, "--verbose"]) == 0
    assert "n0 > n1 datagram 32 B" in capsys.readouterr().out


def test_the_list_names_scenarios_and_mutants(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    assert "wal" in shown
    assert "--mutant ack_before_sync" in shown


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["run", "nothing"], "no scenario 'nothing'"),
        (["run", "ping", "--mutant", "x"], "has no mutant 'x'"),
        (["run", "ping", "--seeds", "9..1"], "--seeds 9..1"),
        (["run", "ping", "--jobs", "0"], "--jobs 0"),
        (["run", "ping", "--set", "nodes"], "--set nodes"),
    ],
)
def test_a_wrong_command_is_one_line(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1
