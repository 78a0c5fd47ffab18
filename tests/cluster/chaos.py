"""The whole matrix of faults and moments, with a printed table: `make chaos`.

    make chaos ARGS="--only SIGSTOP --moment mid --stop-s 20"
    make chaos ARGS="--managers 5"

Exit code 1 if any case shows a problem. It takes a while: every case is a datacenter of
its own that lives through its job.
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
from tests.cluster.lab.chaos_rows import Row, not_played, tell, tell_head
from tests.lab.target import running_target


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="faults whose name holds this text")
    parser.add_argument("--moment", choices=(*MOMENTS, SUBMIT), help="only this moment")
    parser.add_argument("--managers", type=int, choices=(3, 5), help="groups of this size only")
    parser.add_argument("--lanes", type=int, default=1, help="cases beside each other")
    parser.add_argument(
        "--timers", choices=("fast", "lan"), default="fast",
        help="lan: the timers of a datacenter, for a machine that is busy otherwise",
    )  # fmt: skip
    parser.add_argument("--stop-s", type=float, default=20.0, help="length of a SIGSTOP")
    options = parser.parse_args()
    faults = [fault for fault in (*ONE_MANAGER, *GROUP) if options.only in fault.name]
    if options.managers:
        faults = [each for each in faults if each in GROUP]
        faults = [replace(e, managers=max(e.managers, options.managers)) for e in faults]
    cases = [
        (fault, moment)
        for fault in faults
        for moment in moments_of(fault)
        if options.moment in (None, moment)
    ]

    def one(case: tuple[Fault, str]) -> Row:
        fault, moment = case
        try:
            with running_target(["--seed", "7"]) as target:
                return play(fault, moment, target, stop_s=options.stop_s, timers=options.timers)
        except Exception as error:
            return not_played(fault.name, moment, error)

    bad = 0
    tell_head()
    with ThreadPoolExecutor(options.lanes) as lanes:
        for row in lanes.map(one, cases):
            bad += bool(row.found)
            tell(row)
    print(f"{len(cases)} cases, {bad} with problems")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
