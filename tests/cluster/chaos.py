"""The matrix of faults and moments with the timers that people get: `make chaos`.

    make chaos ARGS="--only worker: --moment mid"
    make chaos ARGS="--managers 5 --all-moments"

Every case is a datacenter of its own that lives through its job; a case mostly waits, so two run
beside each other. It prints a line for each case, and at the end the table that docs/guarantees.md
publishes. Exit code 1 if any case shows a problem.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from tests.cluster.lab.chaos_cases import (
    GROUP,
    MOMENTS,
    ONE_MANAGER,
    SUBMIT,
    Fault,
    moments_of,
    play,
)
from tests.cluster.lab.chaos_rows import Row, not_played, tell, tell_head, tell_summary
from tests.lab.arrivals import running_arrivals_target

LANES = 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="faults whose name holds this text")
    parser.add_argument("--moment", choices=(*MOMENTS, SUBMIT), help="only this moment")
    parser.add_argument("--all-moments", action="store_true", help="hours")
    parser.add_argument("--managers", type=int, choices=(3, 5), help="groups of this size only")
    parser.add_argument("--lanes", type=int, default=LANES, help="cases beside each other")
    parser.add_argument(
        "--timers", choices=("lan", "fast"), default="lan",
        help="fast: those of the tests, which recover sooner and suit an idle machine",
    )  # fmt: skip
    options = parser.parse_args()
    faults = [fault for fault in (*ONE_MANAGER, *GROUP) if options.only in fault.name]
    if options.managers:
        faults = [each for each in faults if each in GROUP]
        faults = [replace(e, managers=max(e.managers, options.managers)) for e in faults]
    every = options.all_moments or options.moment is not None
    cases = [
        (fault, moment)
        for fault in faults
        for moment in moments_of(fault, every=every)
        if options.moment in (None, moment)
    ]

    def one(case: tuple[Fault, str]) -> Row:
        fault, moment = case
        try:
            with running_arrivals_target() as target:
                return play(fault, moment, target, timers=options.timers)
        except Exception as error:
            return not_played(fault.name, moment, error)

    rows: list[Row] = []
    tell_head()
    with ThreadPoolExecutor(options.lanes) as lanes:
        for row in lanes.map(one, cases):
            rows.append(row)
            tell(row)
    bad = sum(bool(row.found) for row in rows)
    print(f"{len(cases)} cases, {bad} with problems")
    tell_summary([((), row) for row in rows])
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
