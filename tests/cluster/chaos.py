"""The matrix of faults and moments with the timers that people get: `make chaos`.

    make chaos ARGS="--only worker: --moment mid"
    make chaos ARGS="--managers 5 --all-moments"
    make chaos ARGS="--gates 3"

Every case is a datacenter of its own that lives through its job; a case mostly waits, so two run
beside each other. It prints a line for each case, and at the end the table that docs/guarantees.md
publishes. Exit code 1 if any case shows a problem.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from tests.cluster.lab import gate_cases
from tests.cluster.lab.chaos_cases import (
    GROUP,
    MOMENTS,
    ONE_MANAGER,
    SUBMIT,
    moments_of,
    play,
)
from tests.cluster.lab.chaos_rows import Row, not_played, tell, tell_head, tell_summary
from tests.lab.arrivals import ArrivalsTarget, running_arrivals_target

LANES = 2
Case = Callable[[], Row]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="faults whose name holds this text")
    moments = dict.fromkeys((*MOMENTS, SUBMIT, *gate_cases.MOMENTS, gate_cases.BEFORE))
    parser.add_argument("--moment", choices=tuple(moments), help="only this moment")
    parser.add_argument("--all-moments", action="store_true", help="hours")
    parser.add_argument("--managers", type=int, choices=(3, 5), help="groups of this size only")
    parser.add_argument(
        "--gates", type=int, choices=(3, 5),
        help="the faults of so many gates and of their two datacenters instead",
    )  # fmt: skip
    parser.add_argument("--lanes", type=int, default=LANES, help="cases beside each other")
    parser.add_argument(
        "--timers", choices=("lan", "fast"), default="lan",
        help="fast: those of the tests, which recover sooner and suit an idle machine",
    )  # fmt: skip
    options = parser.parse_args()
    cases = gate_choice(options) if options.gates else datacenter_choice(options)
    rows: list[Row] = []
    tell_head()
    with ThreadPoolExecutor(options.lanes) as lanes:
        for row in lanes.map(lambda case: case(), cases):
            rows.append(row)
            tell(row)
    bad = sum(bool(row.found) for row in rows)
    print(f"{len(cases)} cases, {bad} with problems")
    tell_summary([((), row) for row in rows])
    return 1 if bad else 0


def datacenter_choice(options: argparse.Namespace) -> list[Case]:
    faults = [fault for fault in (*ONE_MANAGER, *GROUP) if options.only in fault.name]
    if options.managers:
        faults = [each for each in faults if each in GROUP]
        faults = [replace(e, managers=max(e.managers, options.managers)) for e in faults]
    every = options.all_moments or options.moment is not None
    return [
        partial(played, fault.name, moment, partial(play, fault, moment, timers=options.timers))
        for fault in faults
        for moment in moments_of(fault, every=every)
        if options.moment in (None, moment)
    ]


def gate_choice(options: argparse.Namespace) -> list[Case]:
    faults = [
        replace(each, gates=max(each.gates, options.gates))
        for each in gate_cases.GATES
        if options.only in each.name
    ]
    every = options.all_moments or options.moment is not None
    return [
        partial(
            played,
            fault.name,
            moment,
            partial(gate_cases.play, fault, moment, profile=options.timers),
        )
        for fault in faults
        for moment in gate_cases.moments_of(fault, every=every)
        if options.moment in (None, moment)
    ]


def played(fault: str, moment: str, play_at: Callable[[ArrivalsTarget], Row]) -> Row:
    try:
        with running_arrivals_target() as target:
            return play_at(target)
    except Exception as error:
        return not_played(fault, moment, error)


if __name__ == "__main__":
    sys.exit(main())
