"""Makes the pictures of the pages about outputs: `.venv/bin/python docs/images/make_outputs.py`.

A real run of `shop.py` against the built-in target writes to a real Prometheus, whose own page is
the first picture, and to a file of SQLite, in which the second asks for the trend of several runs.
"""

from __future__ import annotations

import base64
import html
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from squall.cli.dev.demo import running_target  # noqa: E402
from tests.lab.browser import Browser, browser_program, running_browser  # noqa: E402
from tests.lab.prometheus_server import prometheus_server  # noqa: E402

SIZE = (1100, 500)
QUERY = 'max by (step) (squall_latency_now_seconds{quantile="0.95",step!="iteration"})'
TREND = """SELECT substr(r.started_at, 12, 8) AS started, r.verdict, s.step, s.count, s.failed,
       round(s.p95_ms, 2) AS p95_ms
FROM squall_runs AS r JOIN squall_steps AS s USING (run_id)
WHERE NOT s.is_iteration
ORDER BY s.step, r.started_at"""
DURATIONS = ("5s", "5s", "60s")


def main() -> int:
    program = browser_program()
    if program is None:
        print("chromium is needed to take the picture", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as name, running_target() as url:
        folder = Path(name)
        with (
            prometheus_server(folder) as prometheus,
            running_browser(program, folder / "profile") as browser,
        ):
            outputs = ("-o", f"remote-write={prometheus.url}/api/v1/write")
            for duration in DURATIONS:
                _run(url, folder / "results.db", duration, outputs)
            end = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
            words = f"g0.expr={quote(QUERY)}&g0.tab=0&g0.range_input=1m"
            words += f"&g0.end_input={quote(end)}&g0.step_input=1"
            _picture(browser, f"{prometheus.url}/graph?{words}", "outputs-live.png", 8.0)
            page = folder / "query.html"
            page.write_text(_query_page(folder / "results.db"), encoding="utf-8")
            _picture(browser, f"file://{page}", "outputs-databases.png", 0.5)
    return 0


def _run(url: str, database: Path, duration: str, outputs: tuple[str, ...]) -> None:
    squall = str(Path(sys.executable).with_name("squall"))
    command = [squall, "run", "shop.py", "--host", url, "-q", "-d", duration]
    subprocess.run(
        [*command, *outputs, "-o", f"sqlite={database}"],
        cwd=HERE,
        stdout=subprocess.DEVNULL,
        check=False,
        timeout=120,
    )


def _query_page(database: Path) -> str:
    connection = sqlite3.connect(database)
    found = connection.execute(TREND)
    names = [each[0] for each in found.description]
    rows = [names, *([str(cell) for cell in row] for row in found.fetchall())]
    connection.close()
    widths = [max(len(row[column]) for row in rows) for column in range(len(names))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
    text = "$ sqlite3 -column results.db\n" + TREND + ";\n\n" + "\n".join(lines)
    style = "margin:0;padding:24px;background:#11151c;color:#d8dee9;font:15px/1.45 monospace"
    return f'<meta charset="utf-8"><body style="{style}"><pre>{html.escape(text)}</pre>'


def _picture(browser: Browser, address: str, name: str, drawn_after_s: float) -> None:
    page = browser.open(address, width=SIZE[0], height=SIZE[1])
    time.sleep(drawn_after_s)
    height = page.ask("document.documentElement.scrollHeight")
    clip = {"x": 0, "y": 0, "width": SIZE[0], "height": height, "scale": 1}
    shot = page.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
    (HERE / name).write_bytes(base64.b64decode(shot["data"]))


if __name__ == "__main__":
    sys.exit(main())
