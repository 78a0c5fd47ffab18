"""Runs one workflow in this process, without a parent: for profilers and cachegrind.

`python -m squall.engine.run.in_process FILE --host URL --vus 64 --iterations N` runs the first
workflow of a file and prints what was sent and how long it took, as JSON. Nothing runs by the
clock: no heartbeat, folds, timeouts or watchdog. A profiler slows the process down, and would count
these the more often the slower the machine is.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from time import perf_counter

import msgspec

from squall.clients.calls.arrivals import ArrivalLoop
from squall.engine.core_protocol import CoreRefused, Crashed, Ended, Go, Loaded, Prepare, Ready
from squall.engine.core_protocol import ToParent as Message
from squall.engine.load.share_specs import share_specs
from squall.engine.process.core import CoreProcess
from squall.engine.run.local_run import load_message
from squall.engine.run_options import ProfileFlags, RunOptions
from squall.stats.reports import RequestsDelta, WindowReport


async def run_in_process(
    file: str, host: str, vus: int, iterations: int, *, insecure: bool = False
) -> dict[str, float]:
    """Sends a `CoreProcess` the messages of one run, as the parent would."""
    inbox: asyncio.Queue[Message] = asyncio.Queue()
    core = CoreProcess(0, inbox.put_nowait, by_clock=False)
    flags = ProfileFlags(vus=vus, iterations=iterations, duration="1h")
    options = RunOptions(file=file, host=host, insecure=insecure, profiles={"": flags})
    requests = RequestsDelta()
    ended: Ended | None = None
    await core.handle(load_message(options))
    while ended is None:
        message = await inbox.get()
        match message:
            case CoreRefused() | Crashed():
                raise SystemExit(getattr(message, "text", "") or getattr(message, "traceback", ""))
            case Loaded():
                workflow = message.manifest.workflows[0]
                specs = share_specs(workflow, 1, seed=0, values={}, received={}, exports=[])
                await core.handle(Prepare(specs))
            case Ready():
                now = perf_counter()
                await core.handle(Go(now, now))
            case WindowReport():
                requests.sent += message.requests.sent
                requests.answered += message.requests.answered
            case Ended():
                ended = message
            case _:
                pass
    return {
        "sent": requests.sent,
        "answered": requests.answered,
        "elapsed_s": ended.elapsed_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m squall.engine.run.in_process", description=__doc__
    )
    parser.add_argument("file")
    parser.add_argument("--host", default="")
    parser.add_argument("--vus", type=int, default=64)
    parser.add_argument("--iterations", type=int, default=10_000)
    parser.add_argument("--insecure", action="store_true")
    given = parser.parse_args()
    out = sys.__stdout__
    with asyncio.Runner(loop_factory=ArrivalLoop) as runner:
        result = runner.run(
            run_in_process(
                given.file, given.host, given.vus, given.iterations, insecure=given.insecure
            )
        )
    assert out is not None, "a command has a standard output"
    out.write(msgspec.json.encode(result).decode() + "\n")


if __name__ == "__main__":
    main()
