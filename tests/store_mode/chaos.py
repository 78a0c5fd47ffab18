"""The matrix of stores and faults with the timers that people get: `make chaos-store`.

    make chaos-store ARGS="--store redis --only stopped"

Every case has a store and three agents of its own and runs its job to the end; a case mostly waits,
so two run beside each other. It prints a line for each case, and at the end the table that
docs/guarantees.md publishes. Exit code 1 if any case shows a problem.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from concurrent.futures import ThreadPoolExecutor

from tests.cluster.lab.chaos_rows import Row, not_played, tell, tell_head, tell_summary
from tests.lab.arrivals import running_arrivals_target
from tests.store_mode.lab.agents import KINDS, moto_running
from tests.store_mode.lab.chaos_cases import FAULTS, MOMENTS, Fault, play

LANES = 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--store", choices=KINDS, help="only this kind of store")
    parser.add_argument("--only", default="", help="faults whose name holds this text")
    parser.add_argument("--moment", choices=MOMENTS, help="only this moment; default: mid")
    parser.add_argument("--all-moments", action="store_true", help="hours")
    parser.add_argument("--lanes", type=int, default=LANES, help="cases beside each other")
    parser.add_argument(
        "--timers", choices=("normal", "fast"), default="normal",
        help="fast: those of the tests, which recover sooner and suit an idle machine",
    )  # fmt: skip
    options = parser.parse_args()
    moments = MOMENTS if options.all_moments else (options.moment or "mid",)
    cases = [
        (kind, fault, moment)
        for kind in ((options.store,) if options.store else KINDS)
        for fault in FAULTS
        for moment in moments
        if kind in fault.kinds and options.only in fault.name
    ]

    def one(case: tuple[str, Fault, str]) -> Row:
        kind, fault, moment = case
        try:
            with contextlib.ExitStack() as made:
                target = made.enter_context(running_arrivals_target())
                # One of its own: a case may take it away.
                moto = made.enter_context(moto_running()) if kind == "s3" else None
                return play(kind, fault, moment, target, moto, timers=options.timers)
        except Exception as error:
            return not_played(fault.name, moment, error)

    rows: list[tuple[tuple[str, ...], Row]] = []
    tell_head("store")
    with ThreadPoolExecutor(options.lanes) as lanes:
        for (kind, _, _), row in zip(cases, lanes.map(one, cases), strict=True):
            rows.append(((kind,), row))
            tell(row, kind)
    bad = sum(bool(row.found) for _, row in rows)
    print(f"{len(cases)} cases, {bad} with problems")
    tell_summary(rows, "store")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
