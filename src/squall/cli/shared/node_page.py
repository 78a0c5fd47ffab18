"""`--web` of a node: the page of `squall web`, served beside the node by a process of its own.

The page is a client like any other and has the node's credentials. It cannot slow the node: the
node's process only waits for it in a thread, and it has a lower priority. If it dies it is started
again; the socket and the tokens belong to the node, so open pages go on. It ends with the node,
however that ends, because it reads from a pipe that the node holds open.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec

from squall.api.errors import UsageError
from squall.cluster.settings_tree import Settings
from squall.runtime.addresses import shown_address
from squall.runtime.backoff import Backoff, Retries
from squall.runtime.interfaces import Address
from squall.runtime.log import Log, StreamSink
from squall.runtime.real.disk import PRIVATE
from squall.runtime.real.runtime import CLOCK
from squall.web.access import access_for
from squall.web.server import BoundPage, bind_page

FOLDER = "web"
"""In the data directory of the node: the addresses, and what the page remembers as a client."""
# A page that ran this long had no trouble to start.
STEADY_S = 60.0
RESTARTS = Backoff(first_s=1.0, cap_s=30.0)
STOP_S = 3.0
NICENESS = 10


class HandedPage(msgspec.Struct, frozen=True):
    """What the process of the page reads first. Tokens are not for command lines."""

    listener: int
    host: str
    control_token: str
    view_token: str


@contextmanager
def page_of_node(
    arguments: Namespace,
    settings: Settings,
    reach: Sequence[str],
    *,
    data: Path | None,
    environment: Mapping[str, str] | None = None,
) -> Generator[None]:
    """Serves the page while the node runs; nothing without `--web`. `reach` are the words with
    which `squall web` finds the node. A wrong address, a taken port and missing libraries are
    reported here, before the node starts."""
    if arguments.web is None:
        yield
        return
    bound = bind_page(arguments.web)
    words = ["web", "--of-node", *reach]
    for flag in ("secret_file", "cluster"):
        if getattr(arguments, flag):
            words += [f"--{flag.replace('_', '-')}", getattr(arguments, flag)]
    sink = StreamSink(sys.stderr, as_json=settings.log.json)
    log = Log(sink, CLOCK, level=settings.log.level).bind(node=arguments.name or "agent")
    with contextlib.ExitStack() as stack:
        if data is None:
            data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="squall-page-")))
        folder = data / FOLDER
        path = _write_addresses(folder, bound)
        stack.callback(path.unlink, missing_ok=True)
        # The page keeps what a client remembers with the node: a service has no home.
        own = {**(environment or {}), "XDG_STATE_HOME": str(folder)}
        kept = {k: v for k, v in os.environ.items() if k not in ("SQUALL_TO", "SQUALL_STORE")}
        log.info("page_served", address=bound.address, address_file=str(path))
        page = _PageProcess(bound, words, kept | own, log)
        stack.callback(page.stop)
        page.start()
        yield


def reach_of(listen: Address, others: Sequence[Address]) -> tuple[str, ...]:
    """The words with which the page finds a manager or gate: itself first, then its group."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listen[0], listen[0])
    own = (host, listen[1])
    return "--to", ",".join(map(shown_address, dict.fromkeys((own, *others))))


def handed_page() -> BoundPage:
    """In the process of the page: what the node bound for it. From now on this process ends when
    the node does."""
    os.nice(NICENESS)
    handed = msgspec.json.decode(sys.stdin.buffer.readline(), type=HandedPage)
    tokens = {"control_token": handed.control_token, "view_token": handed.view_token}
    access = replace(access_for(handed.host), **tokens)
    threading.Thread(target=_end_with_node, name="end with the node", daemon=True).start()
    return BoundPage(socket.socket(fileno=handed.listener), handed.host, access)


def _end_with_node() -> None:
    """The node holds the other end of the pipe until it ends. The signal works at every moment,
    also while the page waits for a store that does not answer."""
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


def address_file(data: Path) -> Path:
    """Where a node writes the addresses of its page."""
    return data / FOLDER / "address"


def _write_addresses(folder: Path, bound: BoundPage) -> Path:
    """Whoever may read this file may control all jobs of the cluster."""
    path = address_file(folder.parent)
    try:
        # One by one: `parents` would leave the data directory open to others.
        folder.parent.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        folder.mkdir(mode=PRIVATE, exist_ok=True)
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise UsageError(f"--web: cannot write the address to {path}: {error.strerror}") from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(f"page  {bound.control_address}\npage to read only  {bound.view_address}\n")
    return path


class _PageProcess:
    """Keeps the process of a page running, from `start` to `stop`."""

    def __init__(
        self, bound: BoundPage, words: Sequence[str], environment: dict[str, str], log: Log
    ) -> None:
        self._bound = bound
        self._words = words
        self._environment = environment
        self._log = log
        self._lock = threading.Lock()
        # Both are changed under the lock, so that no process starts after `stop`.
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="page of the node", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._lock:
            self._is_stopping.set()
            process = self._process
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        self._thread.join(STOP_S)
        if process is not None and self._thread.is_alive():
            process.kill()
            self._thread.join()

    def _keep(self) -> None:
        retries = Retries(RESTARTS)
        while True:
            began = time.monotonic()
            try:
                ended = self._run()
            except OSError as error:
                ended = f"cannot be started: {error}"
            if ended is None or self._is_stopping.is_set():
                return
            if time.monotonic() - began >= STEADY_S:
                retries.succeeded()
            delay_s = retries.next_delay_s() or 0.0
            self._log.warning("page_ended", why=ended, again_in_s=delay_s)
            self._is_stopping.wait(delay_s)

    def _run(self) -> str | None:
        """Runs one process to its end; returns why it ended, None if it was not to start."""
        with self._lock:
            if self._is_stopping.is_set():
                return None
            process = self._process = self._started()
        assert process.stdin is not None, "a pipe"
        assert process.stderr is not None, "a pipe"
        access = self._bound.access
        handed = HandedPage(
            self._bound.listener.fileno(),
            self._bound.host,
            access.control_token,
            access.view_token,
        )
        # It may have ended at once, or have been stopped.
        with contextlib.suppress(OSError, ValueError):
            process.stdin.write(msgspec.json.encode(handed) + b"\n")
            process.stdin.flush()
        said = b""
        for line in process.stderr:
            said = line
        code = process.wait()
        process.stderr.close()
        with contextlib.suppress(OSError):
            process.stdin.close()
        return said.decode(errors="replace").strip() or f"exit code {code}"

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            # -P: modules in the working directory must not hide those of Squall and Python.
            [sys.executable, "-P", "-m", "squall", *self._words],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=self._environment,
            pass_fds=(self._bound.listener.fileno(),),
            # Ctrl-C is for the node, which ends the page.
            process_group=0,
        )
