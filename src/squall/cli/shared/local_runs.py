"""Where the runs of this user and machine are that serve a page: `squall adjust` asks there.

One file for each, in the state directory, readable by its owner only, because it has the token.
The file of a process that was killed is removed by the next reader.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from squall.api.errors import SquallError, UsageError
from squall.cluster.client.connection import is_alive, process_name, state_folder
from squall.web.access import Access

LOCAL = "local"
ANSWER_S = 30.0


class LocalRun(msgspec.Struct, kw_only=True):
    """A run with a page."""

    address: str
    port: int
    token: str
    what: str
    """The file or URL that it runs."""
    owner: str
    """The process, with its start time."""


class LocalRunFile:
    """The file of this process."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    @classmethod
    def write(cls, address: str, port: int, access: Access, what: str) -> LocalRunFile:
        """A state directory that cannot be written costs `squall adjust`, not the run."""
        run = LocalRun(
            address=address,
            port=port,
            token=access.control_token,
            what=what,
            owner=process_name(os.getpid()),
        )
        path = _folder() / f"{os.getpid()}.json"
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.encode(run))
        except OSError:
            return cls(None)
        return cls(path)

    def remove(self) -> None:
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()


def is_local_name(job: str) -> bool:
    return job.partition(":")[0] == LOCAL


def local_runs() -> list[LocalRun]:
    found: list[LocalRun] = []
    for path in sorted(_folder().glob("*.json")):
        try:
            run = msgspec.json.decode(path.read_bytes(), type=LocalRun)
        except (OSError, msgspec.DecodeError):
            # Being written at this moment, or removed.
            continue
        if is_alive(run.owner):
            found.append(run)
        else:
            with contextlib.suppress(OSError):
                path.unlink()
    return found


def find_local_run(name: str) -> LocalRun:
    """`local`, or `local:PORT` where there are several."""
    runs = local_runs()
    _, _, port = name.partition(":")
    if port:
        runs = [run for run in runs if str(run.port) == port]
    if len(runs) == 1:
        return runs[0]
    if not runs:
        where = f" on port {port}" if port else ""
        raise UsageError(
            f"no run of yours on this machine serves a page{where}: start it with "
            "squall run FILE --web"
        )
    shown = ", ".join(f"{LOCAL}:{run.port} ({run.what})" for run in runs)
    raise UsageError(f"several runs of yours serve a page: name one of {shown}")


def ask_local_run(run: LocalRun, path: str, body: dict[str, object]) -> None:
    """Sends a request to the page of a run. Raises `SquallError` with its reason if it refuses."""
    from http.client import HTTPConnection, HTTPException
    from urllib.parse import urlsplit

    where = urlsplit(run.address)
    connection = HTTPConnection(where.hostname or "", run.port, timeout=ANSWER_S)
    try:
        headers = {"Content-Type": "application/json", "X-Squall-Token": run.token}
        connection.request("POST", path, msgspec.json.encode(body), headers)
        answer = connection.getresponse()
        content = answer.read()
    except (OSError, HTTPException) as error:
        raise SquallError(f"{run.what}: its page does not answer: {error}") from None
    finally:
        connection.close()
    if answer.status == 200:
        return
    try:
        reason = str(msgspec.json.decode(content)["error"])
    except (msgspec.DecodeError, KeyError, TypeError):
        reason = f"status {answer.status}"
    raise UsageError(reason)


def _folder() -> Path:
    return state_folder() / "pages"
