"""Makes the pictures of the README anew: `make screenshots`, two minutes.

A real run of `shop.py` against the built-in target, seen twice: its snapshots on the live
screen, its results as the HTML report. Both become PNG files by a headless Chromium, because
a picture must not depend on the fonts of its reader.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from squall.cli.dev.demo import running_target
from squall.engine.run.local_run import run_local
from squall.engine.run_options import ProfileFlags, RunOptions
from squall.reporting.document.build import build_document
from squall.reporting.page.render import render_html
from squall.reporting.text.summary import render_summary
from squall.stats.manifest import FileManifest
from squall.stats.snapshot import Snapshot
from squall.ui.app import RunScreen
from squall.ui.controls import Controls
from squall.ui.state import RunState
from squall.ui.terminal_style import TerminalStyle

HERE = Path(__file__).resolve().parent
SIZE = (100, 28)
SHOWN_SHARE = 0.8
"""Of the run, when the screen is taken."""
REPORT_SIZE = (1200, 1500)
CHROMIUM = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--force-device-scale-factor=1"),
)


def main() -> int:
    duration_s = float(sys.argv[1]) if len(sys.argv) > 1 else 90.0
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    if browser is None:
        print("chromium is needed to take the pictures", file=sys.stderr)
        return 1
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(running_target())
        manifest, snapshots, page = asyncio.run(load(url, duration_s))
        drawing = asyncio.run(drawn(manifest, snapshots[: int(len(snapshots) * SHOWN_SHARE)]))
        width, height = size_of(drawing)
        take(browser, folder, drawing, "svg", HERE / "screen.png", (width, height))
        take(browser, folder, page, "html", HERE / "report.png", REPORT_SIZE)
    return 0


async def load(url: str, duration_s: float) -> tuple[FileManifest, list[Snapshot], str]:
    """The run: what was planned, each of its seconds, and its report."""
    manifests: list[FileManifest] = []
    snapshots: list[Snapshot] = []

    def planned(manifest: FileManifest, processes: int) -> None:
        manifest.path = "shop.py"
        manifests.append(manifest)

    options = RunOptions(
        file=str(HERE / "shop.py"),
        host=url,
        profiles={"": ProfileFlags(duration=duration_s)},
        command=("run", "shop.py", "--html", "report.html"),
    )
    outcome = await run_local(options, on_manifest=planned, on_snapshot=snapshots.append)
    return manifests[0], snapshots, render_html(build_document(outcome), render_summary(outcome))


async def drawn(manifest: FileManifest, snapshots: list[Snapshot]) -> str:
    """The live screen after these snapshots, as SVG with the fonts of this machine."""
    state = RunState(manifest, processes=snapshots[-1].processes)
    controls = Controls(stop=lambda: None, stop_now=lambda: None)
    app = RunScreen(state, controls, TerminalStyle())
    async with app.run_test(size=SIZE) as pilot:
        for snapshot in snapshots:
            app.feed(snapshot)
        await pilot.press("down", "down", "down")
        await pilot.pause()
        drawing = app.export_screenshot(title="squall run shop.py")
    drawing = re.sub(r"@font-face \{.*?\}", "", drawing, flags=re.DOTALL)
    return drawing.replace("Fira Code", "DejaVu Sans Mono")


def size_of(drawing: str) -> tuple[int, int]:
    found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawing)
    assert found is not None, "an SVG of Textual has a view box"
    return int(float(found[1])) + 1, int(float(found[2])) + 1


def take(
    browser: str, folder: Path, page: str, kind: str, picture: Path, size: tuple[int, int]
) -> None:
    """One page as the browser shows it."""
    place = folder / f"page.{kind}"
    place.write_text(page, encoding="utf-8")
    command = [browser, *CHROMIUM, f"--user-data-dir={folder / ('profile-' + kind)}"]
    command += [f"--window-size={size[0]},{size[1]}", f"--screenshot={picture}", place.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    width, height = struct.unpack(">II", picture.read_bytes()[16:24])
    print(f"{picture.relative_to(HERE.parents[1])}  {width}x{height}")


if __name__ == "__main__":
    sys.exit(main())
