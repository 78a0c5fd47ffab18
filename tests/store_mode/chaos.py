"""The whole matrix of stores, faults and moments, with a printed table: `make chaos-store`.

    make chaos-store ARGS="--store redis --only SIGSTOP --moment mid --stop-s 20"

Exit code 1 if any case shows a problem. It takes a while: each case starts its own store and
three agents, and runs its job to the end.
"""

from __future__ import annotations

import argparse
import sys

from tests.cluster.lab.chaos_rows import not_played, tell, tell_head
from tests.lab.target import running_target
from tests.store_mode.lab.agents import KINDS, moto_running
from tests.store_mode.lab.chaos_cases import FAULTS, MOMENTS, play


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--store", choices=KINDS, help="only this kind of store")
    parser.add_argument("--only", default="", help="faults whose name holds this text")
    parser.add_argument("--moment", choices=MOMENTS, help="only this moment; default: mid")
    parser.add_argument("--all-moments", action="store_true")
    parser.add_argument("--stop-s", type=float, default=20.0, help="length of a SIGSTOP or outage")
    options = parser.parse_args()
    moments = MOMENTS if options.all_moments else (options.moment or "mid",)
    kinds = (options.store,) if options.store else KINDS
    faults = [fault for fault in FAULTS if options.only in fault.name]
    cases = bad = 0
    tell_head("store")
    with running_target(["--seed", "7"]) as target, moto_running() as moto:
        for kind in kinds:
            for fault in faults:
                for moment in moments if kind in fault.kinds else ():
                    cases += 1
                    try:
                        row = play(kind, fault, moment, target, moto, stop_s=options.stop_s)
                    except Exception as error:
                        row = not_played(fault.name, moment, error)
                    bad += bool(row.found)
                    tell(row, kind)
    print(f"{cases} cases, {bad} with problems")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
