"""Serves an application over HTTP in a thread with an event loop of its own.

A viewer, a slow connection or the encoding of a report never delays the event loop of the run. The
thread ends with the process. uvicorn gets no signal handlers: Ctrl-C belongs to the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Coroutine, Generator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from squall.api.errors import ConfigError, SquallError, UsageError
from squall.web.access import Access, access_for

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

T = TypeVar("T")
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8650
START_S = 30.0
STOP_S = 5.0


class BoundPage:
    """A listening socket and the access rules of the page on it."""

    def __init__(self, listener: socket.socket, host: str, access: Access | None = None) -> None:
        self.listener = listener
        self.host = host
        self.port: int = listener.getsockname()[1]
        self.access: Access = access or access_for(host)

    @property
    def address(self) -> str:
        """The address at which a browser on this machine reaches the page."""
        name = socket.gethostname() if self.host in ("0.0.0.0", "::") else self.host
        return f"http://{f'[{name}]' if ':' in name else name}:{self.port}/"

    @property
    def control_address(self) -> str:
        """The address with the control token, which stands behind `#`: browsers never send that."""
        return f"{self.address}#token={self.access.control_token}"

    @property
    def view_address(self) -> str:
        if self.access.is_loopback:
            return self.address
        return f"{self.address}#token={self.access.view_token}"


def bind_page(wanted: str, flag: str = "--web") -> BoundPage:
    """Binds `PORT`, `HOST:PORT` or "", which is the usual port or any other if that is taken.
    Raises one line before anything else happens."""
    check_libraries(flag)
    host, port = page_place(wanted, flag)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    tries = [DEFAULT_PORT, 0] if port is None else [port]
    for each in tries:
        try:
            listener = socket.create_server((host, each), family=family)
        except OSError as error:
            if each != tries[-1]:
                continue
            raise UsageError(
                f"{flag} {wanted}: cannot listen there: {error.strerror or error}"
            ) from None
        return BoundPage(listener, host)
    raise AssertionError("the last try returns or raises")


def check_libraries(flag: str) -> None:
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"{flag} needs {' and '.join(missing)}, which this installation does not have: "
            "pip install 'squall[web]'"
        )


def page_place(wanted: str, flag: str) -> tuple[str, int | None]:
    """The host and the port; no port: the usual one, or any."""
    host, colon, text = wanted.rpartition(":")
    if not wanted:
        return DEFAULT_HOST, None
    host = host.strip("[]") if colon else DEFAULT_HOST
    if not text.isdecimal() or int(text) > 65535 or not host:
        raise UsageError(f"{flag} {wanted}: write PORT or HOST:PORT")
    return host, int(text)


class PageServer:
    """One application in one thread, from `start` to `stop`."""

    def __init__(self, bound: BoundPage, make_app: Callable[[], ASGIApp]) -> None:
        """The thread calls `make_app`, whose imports may take long."""
        self.bound = bound
        self._make_app = make_app
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: uvicorn.Server | None = None
        self._started = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="web page", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait_started(self) -> None:
        """Returns when the page is served; raises `SquallError` if it cannot be."""
        self._started.wait(START_S)
        if self._error is not None:
            raise SquallError(f"the page cannot be served: {self._error}") from self._error

    def post(self, function: Callable[..., object], *arguments: Any) -> None:
        """Schedules a function in the loop of the server. Does nothing if the server is gone."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(function, *arguments)

    def wait_for(self, coroutine: Coroutine[Any, Any, T], timeout_s: float) -> T | None:
        """Runs a coroutine in the loop of the server; None if the server is gone or too slow."""
        if self._loop is None or self._loop.is_closed():
            coroutine.close()
            return None
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            return None

    def stop(self) -> None:
        if self._server is not None:
            self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(STOP_S)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._error = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        await serve_here(self.bound, self._make_app(), on_server=self._note)

    def _note(self, server: uvicorn.Server) -> None:
        self._loop, self._server = asyncio.get_running_loop(), server
        self._started.set()


async def serve_here(
    bound: BoundPage,
    app: ASGIApp,
    *,
    on_server: Callable[[uvicorn.Server], object] = lambda server: None,
) -> None:
    """Serves in the running loop until `should_exit` is set."""
    import uvicorn

    from squall.web.run_app import guarded

    class Quiet(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Generator[None]:
            yield

    config = uvicorn.Config(
        guarded(app, bound.access),
        log_config=None,
        log_level="critical",
        access_log=False,
        lifespan="off",
        loop="none",
        http="httptools",
        ws="none",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
    )
    server = Quiet(config)
    on_server(server)
    await server.serve(sockets=[bound.listener])
