"""Makes the picture of the web page anew: `.venv/bin/python docs/images/make_web.py`, a minute.

A real run of `shop.py` against the built-in target with `--web`, in a headless Chromium that the
tests bring along.
"""

from __future__ import annotations

import base64
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from squall.cli.dev.demo import running_target  # noqa: E402
from tests.lab.browser import browser_program, running_browser  # noqa: E402

SIZE = (1200, 1130)
SHOWN_AT_S = 45
PAUSED_FOR_S = 5


def main() -> int:
    program = browser_program()
    if program is None:
        print("chromium is needed to take the picture", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder, running_target() as url:
        squall = str(Path(sys.executable).with_name("squall"))
        command = [squall, "run", "shop.py", "--host", url, "--web", "0", "-q", "-d", "2m"]
        run = subprocess.Popen(
            command, cwd=HERE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        assert run.stderr is not None
        address = re.search(r"http\S+", run.stderr.readline())
        assert address is not None, "the command prints the address of its page first"
        with running_browser(program, Path(folder)) as browser:
            page = browser.open(address[0], width=SIZE[0], height=SIZE[1])
            time.sleep(SHOWN_AT_S * 0.6)
            page.ask("document.getElementById('pause').click()")
            time.sleep(PAUSED_FOR_S)
            page.ask("document.getElementById('pause').click()")
            time.sleep(SHOWN_AT_S * 0.4)
            shot = page.call("Page.captureScreenshot")
            (HERE / "web.png").write_bytes(base64.b64decode(shot["data"]))
            page.ask("document.getElementById('stop').click()")
            run.communicate(timeout=60)
    return 0


if __name__ == "__main__":
    sys.exit(main())
