"""`python -m lab`: run seeds of a scenario, replay one, hunt for mutants, list what exists.

`run` prints a failing seed, the end of its trace and the command that replays it, and exits
with 1, also when the failure is a mutant that `--mutant` switched on. `mutants` does the
opposite: it switches on one mutant after the other and exits with 1 if the seeds miss one.
"""

from __future__ import annotations

import shlex
import sys
import time
from argparse import ArgumentParser, Namespace

from lab.mutants.pinned_seeds import pin
from lab.scenarios.campaign import Result, run_campaign
from lab.scenarios.registry import find, names
from lab.sim.run import Outcome, Scenario, run_seed
from squall.api.errors import ExitCode, UsageError


def main(argv: list[str] | None = None) -> int:
    """Runs one command; the value is the exit code of the process."""
    try:
        return _execute(_parser().parse_args(argv))
    except UsageError as error:
        print(f"lab: {error}", file=sys.stderr)
        return int(error.exit_code)


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="python -m lab", description="Squall's code under simulated faults."
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    run = commands.add_parser("run", help="run many seeds of a scenario")
    run.add_argument("--seeds", default="1..100", metavar="A..B", help="default 1..100")
    run.add_argument("--jobs", default="1", metavar="N", help="processes, default 1")
    mutants = commands.add_parser("mutants", help="check that the seeds find every known bug")
    mutants.add_argument("--seeds", default="1..1000", metavar="A..B", help="default 1..1000")
    mutants.add_argument("--pin", action="store_true", help="write the seeds to pinned_seeds.toml")
    mutants.add_argument("--jobs", default="1", metavar="N", help="processes, default 1")
    replay = commands.add_parser("replay", help="run one seed and print its trace")
    replay.add_argument("--seed", required=True, metavar="N")
    replay.add_argument("--verbose", action="store_true", help="print every event, also packets")
    for command in (run, replay, mutants):
        command.add_argument("scenario", metavar="SCENARIO", help="`list` names them")
        command.add_argument("--mutant", metavar="NAME", help="a known bug; `list` names them")
        command.add_argument(
            "--set", action="append", default=[], metavar="K=N", help="parameter (repeatable)"
        )
    commands.add_parser("list", help="print the scenarios and their mutants")
    return parser


def _execute(arguments: Namespace) -> int:
    if arguments.command == "list":
        return _list()
    if arguments.command == "replay":
        return _replay(arguments)
    if arguments.command == "mutants":
        return _mutants(arguments)
    return _run(arguments)


def _list() -> int:
    for name in names():
        scenario = find(name)
        print(f"{name:<12} {scenario.summary}")
        for mutant, text in scenario.mutants.items():
            print(f"  --mutant {mutant:<20} {text}")
    return 0


def _run(arguments: Namespace) -> int:
    scenario = _scenario(arguments)
    seeds = _seeds(arguments.seeds)
    jobs = _positive(arguments.jobs, "--jobs")
    parameters = _parameters(arguments.set)
    started = time.perf_counter()
    shown = _Progress(len(seeds))
    result = run_campaign(
        scenario.name,
        seeds,
        jobs=jobs,
        mutant=arguments.mutant,
        parameters=parameters,
        on_outcome=shown.add,
    )
    shown.clear()
    for failed in result.failures:
        _print_failure(failed, scenario, arguments)
    print(_summary(scenario.name, result, time.perf_counter() - started))
    return int(ExitCode.INTERNAL) if result.failures else 0


def _mutants(arguments: Namespace) -> int:
    scenario = _scenario(arguments)
    if not scenario.mutants:
        raise UsageError(f"{scenario.name} has no mutants")
    hunted = [arguments.mutant] if arguments.mutant else list(scenario.mutants)
    seeds = _seeds(arguments.seeds)
    jobs = _positive(arguments.jobs, "--jobs")
    parameters = {**scenario.hunt, **_parameters(arguments.set)}
    found: dict[str, int] = {}
    for mutant in hunted:
        result = run_campaign(scenario.name, seeds, jobs=jobs, mutant=mutant, parameters=parameters)
        verdicts = [failure for failure in result.failures if failure.is_verdict]
        if verdicts:
            first = verdicts[0]
            found[mutant] = first.seed
            print(f"{mutant:<28} seed {first.seed:>4}  {first.failure}", flush=True)
        elif result.failures:
            print(f"{mutant:<28} BROKEN  {result.failures[0].failure}", flush=True)
        else:
            print(f"{mutant:<28} NOT FOUND in {len(seeds):,} seeds", flush=True)
    missed = len(hunted) - len(found)
    print(f"{scenario.name}: {len(hunted)} mutants, {missed or 'none'} missed")
    if arguments.pin:
        pin(scenario.name, found, keep=scenario.mutants)
    return int(ExitCode.INTERNAL) if missed else 0


def _replay(arguments: Namespace) -> int:
    scenario = _scenario(arguments)
    outcome = run_seed(
        scenario,
        _positive(arguments.seed, "--seed"),
        mutant=arguments.mutant,
        parameters=_parameters(arguments.set),
        echo=print if arguments.verbose else None,
    )
    if not arguments.verbose:
        print("\n".join(outcome.tail))
    if outcome.details:
        print(outcome.details)
    verdict = outcome.failure or "clean"
    print(
        f"seed {outcome.seed}: {verdict}\n"
        f"{outcome.lines:,} events in {outcome.simulated_s:.1f} simulated s, "
        f"trace {outcome.digest}"
    )
    return 0 if outcome.clean else int(ExitCode.INTERNAL)


def _print_failure(outcome: Outcome, scenario: Scenario, arguments: Namespace) -> None:
    print("\n".join(outcome.tail))
    if outcome.details:
        print(outcome.details)
    words = ["python", "-m", "lab", "replay", scenario.name, "--seed", str(outcome.seed)]
    if arguments.mutant:
        words += ["--mutant", arguments.mutant]
    for setting in arguments.set:
        words += ["--set", setting]
    print(f"\nseed {outcome.seed} failed: {outcome.failure}")
    print(f"see it again: {shlex.join([*words, '--verbose'])}")


def _summary(name: str, result: Result, real_s: float) -> str:
    speed = result.simulated_s / real_s if real_s else 0.0
    failed = f"{len(result.failures)} failed" if result.failures else "all clean"
    counted = "".join(f", {count:,} {what}" for what, count in sorted(result.tally.items()))
    return (
        f"{name}: {result.seeds:,} seeds, {failed}, {result.simulated_s:,.0f} simulated s "
        f"in {real_s:.1f} s ({speed:.0f} x){counted}"
    )


class _Progress:
    """One line that counts, on a terminal only."""

    def __init__(self, seeds: int) -> None:
        self._seeds = seeds
        self._done = 0
        self._shown = sys.stderr.isatty()

    def add(self, outcome: Outcome) -> None:
        self._done += 1
        if self._shown:
            print(f"\r{self._done}/{self._seeds} seeds", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _scenario(arguments: Namespace) -> Scenario:
    scenario = find(arguments.scenario)
    if arguments.mutant and arguments.mutant not in scenario.mutants:
        known = ", ".join(scenario.mutants) or "none"
        raise UsageError(f"{scenario.name} has no mutant {arguments.mutant!r}; it has: {known}")
    return scenario


def _seeds(text: str) -> range:
    first, separator, last = text.partition("..")
    try:
        seeds = range(int(first), int(last if separator else first) + 1)
    except ValueError:
        seeds = range(0)
    if not seeds:
        raise UsageError(f"--seeds {text}: give one seed or a range, for example 1..500")
    return seeds


def _positive(text: str, option: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise UsageError(f"{option} {text}: give a whole number above 0")
    return int(text)


def _parameters(settings: list[str]) -> dict[str, str]:
    parameters: dict[str, str] = {}
    for setting in settings:
        name, separator, value = setting.partition("=")
        if not separator or not value.isdecimal():
            raise UsageError(f"--set {setting}: give NAME=NUMBER, for example nodes=10")
        parameters[name] = value
    return parameters
