"""Plays a job over three regions of which one is unplugged for a while. It runs in the namespace of
the hub and prints what is wrong, a line each.

    python -m tests.cluster.lab.region_case PREFIX RTT_MS LOSS_PERCENT SECONDS UNPLUGGED_S FOLDER
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from tests.cluster.lab.gates import GatedDatacenters
from tests.cluster.lab.judge import Load, problems
from tests.cluster.lab.namespaces import Regions
from tests.lab.arrivals import Arrival, seen_of
from tests.lab.programs import ROOT, program
from tests.lab.target import TargetHandle, url_of

REGIONS = ("eu", "us", "ap")
UNPLUGGED = "us"
RATE_PER_S = 60
SPLIT = "eu=50%,us=25%,ap=25%"
MID_S = 5.0
GET = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1], None, 60).read().decode())"
OPEN = """
class Load(Workflow):
    rate = {rate}
    max_vus = 50
    duration = "{seconds}s"

    @step()
    async def get(self) -> HTTPResponse:
        return await self.client.http.get("/?delay=20ms", headers=SENDER)
"""


class RegionTargets:
    """A target in each region, on the same port of its loopback: load never leaves a region."""

    def __init__(self, regions: Regions, url: str) -> None:
        self._regions = regions
        self.url = url

    def counts(self) -> dict[str, Any]:
        return {"total": sum(json.loads(self._get(each, "/total")) for each in REGIONS)}

    def seen(self) -> dict[str, Any]:
        raw = [row for each in REGIONS for row in json.loads(self._get(each, "/arrivals"))]
        now_s = time.time()
        return seen_of(sorted(Arrival(at, end or now_s, who) for at, end, who in raw))

    def _get(self, region: str, path: str) -> bytes:
        words = [*self._regions.within(region), sys.executable, "-c", GET, f"{self.url}{path}"]
        return subprocess.run(words, capture_output=True, check=True, timeout=90.0).stdout


class FarDatacenters(GatedDatacenters):
    """A gate, a manager and a worker in each region."""

    def __init__(self, regions: Regions, folder: Path, target: RegionTargets) -> None:
        self._regions = regions
        super().__init__(
            folder,
            cast("TargetHandle", target),
            gates=len(REGIONS),
            datacenters=REGIONS,
            timers="lan",
        )

    def region_of(self, name: str) -> str:
        dc, dash, _ = name.partition("-")
        return dc if dash else REGIONS[int(name[1:]) - 1]

    def host_of(self, name: str) -> str:
        return self._regions.address(self.region_of(name))

    def _within(self, name: str) -> list[str]:
        return self._regions.within(self.region_of(name))


@contextlib.contextmanager
def targets(regions: Regions) -> Generator[RegionTargets]:
    with contextlib.ExitStack() as stack:
        url, port = "", "0"
        for region in REGIONS:
            words = [*regions.within(region), *program("tests.lab.arrivals_server", port)]
            process = stack.enter_context(
                subprocess.Popen(
                    words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
                )
            )
            stack.callback(process.kill)
            url = url_of(process)
            port = url.rpartition(":")[2].strip("/")
        yield RegionTargets(regions, url)


@contextlib.contextmanager
def lines(regions: Regions) -> Generator[Callable[[str, bool], None]]:
    """Plugs a region in or out."""
    if not any(regions.far):
        yield lambda region, is_in: regions.plug(region, is_in=is_in)
        return
    rtt_ms, loss_percent = regions.far
    words = (regions.prefix, f"{rtt_ms / 2:g}", f"{loss_percent:g}", *regions.names)
    with subprocess.Popen(
        program("tests.cluster.lab.far_lines", *words),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        cwd=ROOT,
    ) as router:
        stdin, stdout = router.stdin, router.stdout
        assert stdin is not None and stdout is not None
        assert stdout.readline() == "done\n", "the router did not start"

        def plug(region: str, is_in: bool) -> None:
            print("in" if is_in else "out", region, file=stdin, flush=True)
            assert stdout.readline() == "done\n", "the router ended"

        try:
            yield plug
        finally:
            router.kill()


def play(regions: Regions, folder: Path, seconds: int, unplugged_s: float) -> Iterator[str]:
    with lines(regions) as plug, targets(regions) as target:
        with FarDatacenters(regions, folder, target) as lab:
            file = lab.write(OPEN.format(rate=RATE_PER_S, seconds=seconds))
            command = lab.run(file, "--dc", SPLIT)
            lab.wait_load(RATE_PER_S)
            time.sleep(MID_S)
            plug(UNPLUGGED, False)
            time.sleep(unplugged_s)
            plug(UNPLUGGED, True)
            ended = command.end(seconds + 240.0)
            if not ended.results.exists():
                yield f"no results document; exit code {ended.code}: {ended.err[-500:]}"
                return
            document, counts = ended.document, target.seen()
            yield from problems(document, counts, Load(rate_per_s=RATE_PER_S), worker_lost=False)
            sent = sum(each["requests"]["sent"] for each in document["workflows"])
            if not sent == counts["total"] == RATE_PER_S * seconds:
                yield (
                    f"{RATE_PER_S * seconds} requests were planned, {sent} counted, the targets saw"
                    f" {counts['total']}"
                )
            if document["status"] != "completed":
                yield f"status {document['status']}"


def main(words: Sequence[str]) -> int:
    prefix, rtt_ms, loss_percent, seconds, unplugged_s, folder = words
    regions = Regions(prefix, REGIONS, (float(rtt_ms), float(loss_percent)))
    found = list(play(regions, Path(folder), int(seconds), float(unplugged_s)))
    print("\n".join(found), end="")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
