"""How a client finds the datacenter that `squall dev` runs on this machine: `--to dev`.

`squall dev` writes its address, its secret file and its cluster id to a file of its own while it
runs. If several run, the one that became ready last is found, and after its end the one before it.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path

import msgspec

from squall.api.errors import UsageError
from squall.cluster.client.access import AccessOptions
from squall.cluster.client.connection import is_alive, process_name, state_folder

NAME = "dev"
"""The address that stands for the local datacenter."""
NOT_RUNNING = "--to dev: no `squall dev` of yours runs on this machine; start one with: squall dev"


class LocalDatacenter(msgspec.Struct, frozen=True, kw_only=True):
    to: str
    secret_file: str
    cluster: str
    owner: str = ""
    """The process that runs it, with its start time."""


def announce(found: LocalDatacenter) -> bool:
    """Writes the file at once, so that a reader never sees half of it. It holds no secret, only
    the path of one. False: it cannot be written, and `--to dev` will not find this datacenter."""
    path = _own_path()
    unfinished = path.with_suffix(".new")
    owned = msgspec.structs.replace(found, owner=process_name(os.getpid()))
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_dead()
        unfinished.write_bytes(msgspec.json.encode(owned))
        unfinished.replace(path)
    except OSError:
        return False
    return True


def withdraw() -> None:
    """Removes the file of this process."""
    with contextlib.suppress(OSError):
        _own_path().unlink()


def resolved(options: AccessOptions) -> AccessOptions:
    """Puts the running datacenter in the place of `dev`. Its secret and id apply whatever the
    environment says about another cluster; only flags go before them."""
    if (options.to or os.environ.get("SQUALL_TO", "")) != NAME or options.store:
        return options
    running = [each for path in _paths() if (each := _read(path)) and is_alive(each.owner)]
    if not running:
        raise UsageError(NOT_RUNNING)
    found = running[-1]
    return replace(
        options,
        to=found.to,
        secret_file=options.secret_file or found.secret_file,
        cluster=options.cluster or found.cluster,
    )


def _own_path() -> Path:
    return state_folder() / f"dev-{os.getpid()}.json"


def _paths() -> list[Path]:
    """The files of all datacenters, the oldest first."""
    ages: list[tuple[int, Path]] = []
    with contextlib.suppress(OSError):
        for path in state_folder().glob("dev-*.json"):
            with contextlib.suppress(OSError):
                ages.append((path.stat().st_mtime_ns, path))
    return [path for _, path in sorted(ages)]


def _remove_dead() -> None:
    """Removes what processes left that were killed."""
    for path in _paths():
        found = _read(path)
        if found is not None and not is_alive(found.owner):
            with contextlib.suppress(OSError):
                path.unlink()


def _read(path: Path) -> LocalDatacenter | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=LocalDatacenter)
    except (OSError, msgspec.MsgspecError):
        return None
