"""`compare`: what counts as a change, what is too little, what cannot be compared."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from squall.cli.main import main
from squall.reporting.compare.bootstrap import student_t
from squall.reporting.compare.changes import (
    ONE_RUN,
    ColumnChange,
    Comparison,
    compare,
    never_judged,
)
from squall.reporting.compare.text import render_comparison, render_comparison_markdown
from squall.reporting.document.model import typed
from squall.reporting.document.read import ResultsFile
from squall.stats.manifest import FileManifest, Profile, WorkflowManifest
from tests.unit.reporting.compare.lab.documents import service_run, written

PAIRS = 20
WANTED = 19


def pair(number: int, **other: Any) -> tuple[ResultsFile, ResultsFile]:
    return service_run(1000 + number), service_run(2000 + number, **other)


def change(result: Comparison, step: str, column: str) -> ColumnChange:
    found = next(each for each in result.steps if each.name == step)
    return next(each for each in found.changes if each.column == column)


def test_two_runs_of_the_same_code_show_no_difference_in_19_of_20_pairs() -> None:
    quiet = 0
    for number in range(PAIRS):
        before, after = pair(number)
        result = compare([before], [after])
        assert result.number("few") == 0, "all twelve numbers were judged"
        quiet += result.number("same") == 12
    assert quiet >= WANTED


def test_a_step_slower_by_a_tenth_is_found_in_19_of_20_pairs() -> None:
    found = 0
    for number in range(PAIRS):
        before, after = pair(number, slower={"pay": 1.10})
        result = compare([before], [after])
        found += change(result, "pay", "p50").judgement == "worse"
    assert found >= WANTED


def test_with_several_runs_a_side_a_noisy_service_is_judged_as_well() -> None:
    quiet = found = 0
    for number in range(4):
        runs = [
            service_run(seed * 100 + number, run_noise=0.015, seconds=30) for seed in range(1, 7)
        ]
        slow = [
            service_run(seed * 100 + number, run_noise=0.015, seconds=30, slower={"cart": 1.15})
            for seed in range(7, 10)
        ]
        quiet += compare(runs[:3], runs[3:]).number("same") == 12
        found += change(compare(runs[:3], slow), "cart", "p50").judgement == "worse"
    assert quiet >= 3
    assert found >= 3


def test_a_faster_step_is_better_and_its_interval_holds_the_change() -> None:
    before, after = pair(1, slower={"pay": 0.8})
    found = change(compare([before], [after]), "pay", "p50")
    assert found.judgement == "better"
    assert found.low < -0.2 < found.high < 0
    assert found.relative == pytest.approx(-0.2, abs=0.05)


def test_a_lower_rate_is_worse_and_a_higher_one_better() -> None:
    slow, fast = service_run(1, rate=80), service_run(2, rate=100)
    for read in (slow, fast):
        read.results.workflows[0].profile.rate_per_s = 100.0
    assert change(compare([fast], [slow]), "pay", "rate").judgement == "worse"
    assert change(compare([slow], [fast]), "pay", "rate").judgement == "better"


def test_more_failures_are_worse_also_from_none() -> None:
    for share in (0.0, 0.001):
        before = service_run(1, failing={"pay": share})
        after = service_run(2, failing={"pay": 0.01})
        assert change(compare([before], [after]), "pay", "errors").judgement == "worse"
        assert change(compare([after], [before]), "pay", "errors").judgement == "better"


def test_a_change_below_the_least_is_none_and_the_least_can_be_set() -> None:
    before, after = pair(3, slower={"pay": 1.10})
    assert change(compare([before], [after]), "pay", "p50").judgement == "worse"
    found = change(compare([before], [after], min_change=0.25), "pay", "p50")
    assert found.judgement == "same"
    assert found.low > 0, "certain, but too small to matter"


def test_a_time_must_change_by_a_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tests.unit.reporting.compare.lab.documents.STEPS", {"fast": 0.002, "slow": 0.020}
    )
    before = service_run(1)
    after = service_run(2, slower={"fast": 1.3, "slow": 1.3})
    result = compare([before], [after])
    assert change(result, "fast", "p50").judgement == "same"
    assert change(result, "fast", "p50").low > 0.05
    assert change(result, "slow", "p50").judgement == "worse"


@pytest.mark.parametrize(
    ("seconds", "rate", "few"),
    [
        (19, 100, ("rate", "p50", "p99", "errors")),
        (20, 4, ("rate", "p50", "p99", "errors")),
        (25, 15, ("p99",)),
        (25, 40, ()),
    ],
)
def test_too_few_windows_or_samples_are_not_judged(
    seconds: int, rate: int, few: tuple[str, ...]
) -> None:
    before, after = (service_run(seed, seconds=seconds, rate=rate) for seed in (1, 2))
    result = compare([before], [after])
    pay = result.steps[2].changes
    assert tuple(each.column for each in pay if each.judgement == "few") == few
    assert ("too few samples" in render_comparison(result)) is bool(few)


def test_the_same_documents_give_the_same_answer() -> None:
    before, after = pair(5, slower={"cart": 1.2})
    assert compare([before], [after]) == compare([before], [after])


def test_the_last_second_and_the_warm_up_are_left_out() -> None:
    before, after = pair(6)
    for read in (before, after):
        read.document["run"]["warmup_s"] = 2.0
    one = ResultsFile("a", before.document, typed(before.document))
    clean = compare([one], [ResultsFile("b", after.document, typed(after.document))])
    windows = after.document["workflows"][0]["steps"][2]["windows"]
    for place in (0, 1):
        windows["buckets"][place] = [(1800, 5000)]
        windows["count"][place] = windows["failed"][place] = 5000
    windows["buckets"].append([(1800, 5000)])
    for column in ("count", "failed"):
        windows[column].append(5000)
    spoilt = compare([one], [ResultsFile("b", after.document, typed(after.document))])
    assert spoilt.steps == clean.steps


def invalid(read: ResultsFile) -> ResultsFile:
    verdict = {"state": "INVALID", "reasons": ["generator at 98 % CPU"]}
    document = read.document | {"verdict": verdict}
    return ResultsFile(read.path, document, typed(document))


def test_an_invalid_side_is_said_first_and_not_judged_unless_forced() -> None:
    before, after = pair(7, slower={"pay": 2.0})
    result = compare([before], [invalid(after)])
    assert not result.judged and result.number("open") == 12
    lines = render_comparison(result).splitlines()
    assert lines[0].endswith("1 INVALID of 2, same profile, same machine kind")
    assert lines[1] == "2007.json is INVALID: generator at 98 % CPU"
    assert lines[2] == "nothing is judged; add --force to judge anyway"
    assert lines[-1] == "not judged"
    assert compare([before], [invalid(after)], force=True).number("worse") > 0


def test_different_profiles_are_said_first_and_not_judged_unless_forced() -> None:
    before, after = service_run(1), service_run(2, rate=120)
    result = compare([before], [after])
    text = render_comparison(result)
    assert not result.judged
    assert "2.json and 1.json have different profiles: Shop: open 120/s for 1m and open" in text
    assert "different profiles, same machine kind" in text.splitlines()[0]
    assert compare([before], [after], force=True).judged


def test_a_step_that_is_not_in_every_run_is_reported_and_left_out() -> None:
    before, after = pair(8)
    del after.results.workflows[0].steps[0]
    result = compare([before], [after])
    assert [step.name for step in result.steps] == ["cart", "pay"]
    assert "login is not in every run; left out" in render_comparison(result)
    back = compare([after], [before])
    assert "Shop.login is not in every run; left out" in render_comparison(back)


def test_the_text_has_a_line_per_step_and_the_sentence_for_one_run_each() -> None:
    before, after = pair(9, slower={"pay": 1.5})
    lines = render_comparison(compare([before], [after])).splitlines()
    assert lines[0].startswith("1009.json (1 run) -> 2009.json (1 run)          both VALID, ")
    assert lines[1].split() == ["step", "rate", "/s", "p50", "ms", "p99", "ms", "errors"]
    assert "worse +49 % [+" in lines[4] and lines[4].startswith("pay ")
    assert lines[2].count("  =") == 4
    assert lines[-2:] == [ONE_RUN, "2 worse, 0 better, 10 no difference"]
    several = render_comparison(compare([before, service_run(3)], [after]))
    assert ONE_RUN not in several and "1009.json (2 runs)" in several


def test_markdown_says_the_same() -> None:
    before, after = pair(9, slower={"pay": 1.5})
    text = render_comparison_markdown(compare([before], [after]))
    assert text.startswith("**2 worse, 0 better, 10 no difference**: 1009.json (1 run) -> ")
    assert "| pay |" in text and "**worse** +49 %" in text
    assert ONE_RUN in text


@pytest.mark.parametrize(
    ("confidence", "freedom", "wanted"),
    [(0.95, 1, 12.706), (0.95, 4, 2.776), (0.99, 10, 3.169), (0.95, 1000, 1.962)],
)
def test_students_t_is_that_of_the_tables(confidence: float, freedom: float, wanted: float) -> None:
    assert student_t(confidence, freedom) == pytest.approx(wanted, rel=2e-3)
    assert math.isfinite(student_t(0.9999, 1))


def run_command(*words: str) -> int:
    return main(["compare", *words])


def test_the_exit_code_is_99_for_worse_only_when_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = pair(10, slower={"pay": 1.5})
    a, b = written(before, tmp_path / "a.json"), written(after, tmp_path / "b.json")
    assert run_command(a, "--", b) == 0
    assert run_command(a, "--", b, "--fail-on-worse") == 99
    assert run_command(b, "--", a, "--fail-on-worse") == 0, "better is not worse"
    assert run_command("--fail-on-worse", a, b) == 99, "two files need no --"
    assert run_command("--fail-on-worse", "--min-change", "80%", a, "--", b) == 0
    assert "0 worse, 0 better, 12 no difference" in capsys.readouterr().out


def test_a_gate_that_judged_nothing_does_not_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = pair(11)
    a, b = written(before, tmp_path / "a.json"), written(invalid(after), tmp_path / "b.json")
    assert run_command(a, "--", b) == 0
    assert run_command(a, "--", b, "--fail-on-worse") == 98
    assert run_command(a, "--", b, "--fail-on-worse", "--force") == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "name the results of both sides"),
        (["a.json"], "name the results of both sides"),
        (["a.json", "--"], "name the results of both sides"),
        (["a.json", "b.json", "c.json"], "separate the sides"),
        (["a.json", "--", "b.json"], "a.json: there is no such file"),
        (["a.json", "b.json", "--min-change", "some"], "--min-change some: write a percentage"),
        (["a.json", "b.json", "--markdown", "no/m.md"], "--markdown no/m.md: there is no dir"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(
    words: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(*words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("squall compare: ") and part in captured.err
    assert captured.err.count("\n") == 1


def test_markdown_is_written_beside_the_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = pair(12)
    a, b = written(before, tmp_path / "a.json"), written(after, tmp_path / "b.json")
    assert run_command(a, "--", b, "--markdown", str(tmp_path / "m.md")) == 0
    assert (tmp_path / "m.md").read_text().startswith("**0 worse")
    assert "0 worse" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("seconds", "rate", "said"),
    [
        (10, 40, "runs of 21s would have them"),
        (30, 10, "runs of 54s would have them"),
        (30, 2, "runs of 6m07s would have them"),
    ],
)
def test_too_few_samples_say_the_rule_and_how_long_would_do(
    seconds: int, rate: int, said: str
) -> None:
    before, after = (service_run(seed, seconds=seconds, rate=rate) for seed in (1, 2))
    result = compare([before], [after])
    line = next(x for x in render_comparison(result).splitlines() if x.startswith("too few"))
    assert line == (
        "too few samples: each side needs 20 whole windows and 100 samples, p99 500 samples; "
        + said
    )


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        (Profile(duration_s=60.0), ""),
        (Profile(duration_s=20.0), "Shop has 15 whole seconds, and a comparison needs 20"),
        (
            Profile(model="open", rate_per_s=1.0, duration_s=60.0),
            "Shop makes 60 iterations, and a comparison needs 100 samples of each step",
        ),
        (
            Profile(model="iterations", iterations=50, duration_s=86400.0),
            "Shop makes 50 iterations, and a comparison needs 100 samples of each step",
        ),
        (Profile(model="iterations", iterations=500, duration_s=86400.0), ""),
    ],
)
def test_runs_that_can_never_be_judged_are_known_before_the_first(
    profile: Profile, said: str
) -> None:
    manifest = FileManifest(path="a.py", workflows=[WorkflowManifest(name="Shop", profile=profile)])
    lines = never_judged(manifest, warmup_s=5.0)
    assert [line.startswith(said) for line in lines] == ([True] if said else [])
