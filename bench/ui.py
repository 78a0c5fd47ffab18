"""What the live screen costs: the rate with it over the rate without it, on one shared core; and
what a page with two viewers costs.

nginx has core 0; the command, its core process and the screen share core 1, in a terminal of
80x24. Runs minutes apart cannot be compared to a few per cent on a machine that others use, so
the ratio is taken within a run: the screen draws in every second second only, and a second with
a frame is held against the two beside it. The CPU of the parent, which draws, is shown for a
whole run with `--ui full` and one with `--ui ci`.

The page is served by a thread of the parent. Its cost is the CPU of the parent with a page and two
viewers less that of the parent alone, and iterations per CPU second of the core process with and
without it: both are CPU times, which other programs of the machine do not change much. The lag of
the event loop that makes the load is shown for both.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nginx_target import Nginx

HERE = Path(__file__).resolve().parent
SQUALL = str(Path(sys.executable).with_name("squall"))
CORE = 1
USERS = 64
WARMUP_S = 3
"""Imports, connections, and the first drawing of everything."""
PLAIN_S = 8
LEAST = 0.97
"""Of the rate without the screen; of the iterations per CPU second without the page."""
VIEWERS = 2
PAGE_MOST = 0.03
"""Of a core, for the page and all its viewers."""
ALT_SCREEN = b"\x1b[?1049h"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3, help="runs (3)")
    parser.add_argument("--seconds", type=int, default=40, help="length of each (40)")
    parser.add_argument("--size", default="80x24", help="of the terminal (80x24)")
    parser.add_argument("--quick", action="store_true", help="1 run of 12 s, to see it work")
    parser.add_argument("--check", action="store_true", help="exit code 1 if it costs too much")
    parser.add_argument("--inside", nargs=3, metavar="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        return every_second_second(*options.inside)
    if options.quick:
        options.rounds, options.seconds = 1, 12
    if (os.cpu_count() or 1) < 2:
        print("two cores are needed: one for nginx, one for the generator", file=sys.stderr)
        return 1
    width, height = (int(part) for part in options.size.split("x"))
    ratios: list[float] = []
    parent: dict[str, float] = {}
    with Nginx(core=0) as nginx:
        for _ in range(options.rounds):
            ratios += ratios_of(alternating(nginx.url, options.seconds, (width, height)))
        for mode in ("full", "ci"):
            document = whole_run(nginx.url, mode, (width, height))
            parent[mode] = document["generator"]["parent_cpu"]
        pairs = [
            (page_run(nginx.url, options.seconds, page=False), page_run(nginx.url, options.seconds))
            for _ in range(options.rounds)
        ]
    low, ratio, high = statistics.quantiles(ratios, n=4)
    holds = ratio >= LEAST
    shown = f"{ratio:.3f} ({low:.3f} to {high:.3f})"
    mark = "ok" if holds else "FAIL"
    print(
        f"\nlive screen of {options.size}, one shared core, {len(ratios)} frames: median, quartiles"
    )
    print(f"  {'rate with a frame / without':<34}{shown:<24}{f'>= {LEAST}':<12}{mark}")
    print(f"  {'CPU of the parent, screen / lines':<34}{parent['full']:.1%} / {parent['ci']:.1%}")
    holds = page_rows(pairs) and holds
    return 1 if options.check and not holds else 0


@dataclass(frozen=True)
class PageCost:
    parent: float
    """Of a core."""
    per_cpu_s: float
    """Iterations for each CPU second of the core process."""
    lag_ms: float
    """p99 of the event loop that makes the load."""

    @classmethod
    def of(cls, document: dict[str, Any]) -> PageCost:
        generator = document["generator"]
        (process,) = generator["processes"]
        count: int = document["workflows"][0]["iteration"]["count"]
        cpu_s = process["cpu"] * process["seconds"]
        return cls(generator["parent_cpu"], count / cpu_s, generator["loop_lag_ms"]["p99"])


def page_rows(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> bool:
    """Prints the rows of the page; whether it costs no more than it may."""
    costs = [(PageCost.of(alone), PageCost.of(page)) for alone, page in pairs]
    cost = statistics.median(page.parent - alone.parent for alone, page in costs)
    ratio = statistics.median(page.per_cpu_s / alone.per_cpu_s for alone, page in costs)
    without, beside = (statistics.median(each[at].lag_ms for each in costs) for at in (0, 1))
    print(f"\npage with {VIEWERS} viewers, {len(costs)} pairs of runs: medians")
    rows = [
        ("CPU of the page", f"{cost:.2%} of a core", f"<= {PAGE_MOST:.0%}", cost <= PAGE_MOST),
        ("load per CPU second, with / without", f"{ratio:.3f}", f">= {LEAST}", ratio >= LEAST),
    ]
    for name, shown, bar, holds in rows:
        print(f"  {name:<38}{shown:<20}{bar:<12}{'ok' if holds else 'FAIL'}")
    print(f"  {'loop lag p99, with / without':<38}{beside:.2f} / {without:.2f} ms")
    return all(holds for *_, holds in rows)


def page_run(url: str, seconds: int, *, page: bool = True) -> dict[str, Any]:
    """The document of a run with a page and its viewers, or of one without a page."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.json"
        words = [SQUALL, "run", str(HERE / "hello.py"), "--host", url, "--json", str(path)]
        words += ["-u", str(USERS), "-d", f"{seconds}s", "--workers", "1", "--ui", "ci"]
        words += ["--web", "0"] if page else []
        process = subprocess.Popen(
            ["taskset", "-c", str(CORE), *words],
            env=os.environ | {"XDG_STATE_HOME": folder},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None, "a pipe"
        seen: list[int] = []
        viewers: list[threading.Thread] = []
        if page:
            address, _, token = process.stderr.readline().split()[1].partition("#token=")
            viewers = [
                threading.Thread(target=view, args=(address, token, seen)) for _ in range(VIEWERS)
            ]
            for viewer in viewers:
                viewer.start()
        said = process.stderr.read()
        process.wait()
        for viewer in viewers:
            viewer.join()
        # Seconds come once each; a viewer that fell behind would have missed some.
        if not path.exists() or (page and min(seen) < seconds - 2):
            raise SystemExit(f"not the run that was wanted, {seen}:\n{said[-2000:]}")
        return json.loads(path.read_text())


def view(address: str, token: str, seen: list[int]) -> None:
    """Reads the events of a page to the end, as a browser does, and the report."""
    request = urllib.request.Request(f"{address}api/events", headers={"X-Squall-Token": token})
    seconds = 0
    with urllib.request.urlopen(request, timeout=60.0) as answer:
        for line in answer:
            seconds += line == b"event: second\n"
            if line == b"event: end\n":
                break
    with urllib.request.urlopen(f"{address}report.html", timeout=60.0) as report:
        report.read()
    seen.append(seconds)


def ratios_of(document: dict[str, Any]) -> list[float]:
    """Odd seconds have a frame; each is held against its two neighbours."""
    counts: list[int] = document["workflows"][0]["steps"][0]["windows"]["count"]
    # The last second is seldom whole.
    frames = range(WARMUP_S + WARMUP_S % 2 + 1, len(counts) - 2, 2)
    return [2 * counts[at] / (counts[at - 1] + counts[at + 1]) for at in frames]


def every_second_second(url: str, seconds: str, path: str) -> int:
    """In the terminal: a run whose screen hears of every second snapshot only."""
    from squall.cli.run.command import perform
    from squall.cli.shared.live_screen import LiveScreen
    from squall.engine.run_options import ProfileFlags, RunOptions
    from squall.reporting.document.build import write_document
    from squall.reporting.redaction import Redactor
    from squall.reporting.text.progress_lines import ProgressLines
    from squall.stats.snapshot import Snapshot

    class Blinking(LiveScreen):
        def on_snapshot(self, snapshot: Snapshot) -> None:
            if round(snapshot.elapsed_s) % 2:
                super().on_snapshot(snapshot)

    flags = ProfileFlags(vus=USERS, duration=float(seconds))
    options = RunOptions(file=str(HERE / "hello.py"), host=url, workers=1, profiles={"": flags})
    write_document(path, perform(options, Blinking(ProgressLines(Redactor()))))
    return 0


def alternating(url: str, seconds: int, size: tuple[int, int]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.json"
        inside = [sys.executable, str(Path(__file__).resolve()), "--inside", url, str(seconds)]
        return _in_terminal([*inside, str(path)], path, size, screen=True)


def whole_run(url: str, mode: str, size: tuple[int, int]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.json"
        words = ["run", str(HERE / "hello.py"), "--host", url, "--ui", mode, "--json", str(path)]
        words += ["-u", str(USERS), "-d", f"{PLAIN_S}s", "--workers", "1"]
        return _in_terminal([SQUALL, *words], path, size, screen=mode == "full")


def _in_terminal(
    command: list[str], path: Path, size: tuple[int, int], *, screen: bool
) -> dict[str, Any]:
    """The document that the command writes; somebody reads the terminal meanwhile."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    process = subprocess.Popen(
        ["taskset", "-c", str(CORE), *command],
        env=os.environ | {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    shown = b""
    while process.poll() is None:
        if select.select([ours], [], [], 0.1)[0]:
            try:
                shown += os.read(ours, 65536)
            except OSError:
                break
    process.wait()
    os.close(ours)
    if not path.exists() or (ALT_SCREEN in shown) is not screen or b"screen failed" in shown:
        raise SystemExit(f"not the run that was wanted:\n{shown.decode(errors='replace')[-2000:]}")
    return json.loads(path.read_text())


if __name__ == "__main__":
    sys.exit(main())
