"""The page of a node, as an operator finds it: through the file in the node's data directory."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any


class NodePage:
    """Talks to the page whose addresses are in a file."""

    def __init__(self, file: Path) -> None:
        assert file.stat().st_mode & 0o777 == 0o600
        with_token = file.read_text().split()[1]
        self.address, _, self.token = with_token.partition("#token=")

    def asks(self, path: str, *, token: str = "", body: Any = None) -> tuple[int, Any]:
        """The status and the answer; status 0 while nothing answers."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "X-Squall-Token": token}
        request = urllib.request.Request(f"{self.address}{path}", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=30.0) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())
        except OSError:
            return 0, None

    def jobs(self) -> list[tuple[str, str]]:
        """Id and state of each job; none while the cluster does not answer."""
        status, found = self.asks("api/jobs")
        return [(each["job"], each["state"]) for each in found["jobs"]] if status == 200 else []


def page_processes(node: int) -> list[int]:
    """The processes of the page that a node runs, which are its children."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
            parent = (path.parent / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            # It ended meanwhile.
            continue
        if b"--of-node" in words and int(parent) == node:
            found.append(int(path.parent.name))
    return found


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"
