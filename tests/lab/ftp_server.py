"""An FTP server on the package `pyftpdlib`, in a thread of its own. It counts what it did."""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

with warnings.catch_warnings():
    # It stands on asyncore, which Python 3.11 calls deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from pyftpdlib.authorizers import DummyAuthorizer
    from pyftpdlib.handlers import FTPHandler, TLS_FTPHandler
    from pyftpdlib.ioloop import IOLoop
    from pyftpdlib.servers import FTPServer

USER, PASSWORD = "ada", "swordfish"


class FileServer:
    """What the server saw: connections, logins, and files by what happened to them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self.connections = 0
        self.thread: threading.Thread | None = None
        self.turns = 0
        # Of the control and data connections, those that negotiated TLS.
        self.handshakes = 0
        self.counted_logins: Counter[str] = Counter()
        self.counted_files: Counter[str] = Counter()

    @property
    def logins(self) -> Counter[str]:
        self._end_turn()
        return self.counted_logins

    @property
    def files(self) -> Counter[str]:
        self._end_turn()
        return self.counted_files

    def _end_turn(self) -> None:
        """The package reports what it did after it has answered, in the same turn of its loop."""
        wanted = self.turns + 2
        while self.turns < wanted and self.thread is not None and self.thread.is_alive():
            time.sleep(0.002)

    @property
    def url(self) -> str:
        return f"ftp://{USER}:{PASSWORD}@127.0.0.1:{self.port}"

    @property
    def anonymous_url(self) -> str:
        return f"ftp://127.0.0.1:{self.port}"

    def url_of(self, scheme: str) -> str:
        """The address with another scheme."""
        return f"{scheme}{self.url.removeprefix('ftp')}"


@contextmanager
def running_ftp_server(
    folder: Path,
    *,
    port: int = 0,
    server: FileServer | None = None,
    certificate: Path | None = None,
    implicit: bool = False,
) -> Generator[FileServer]:
    """The server of a folder. `server` continues the counts of an earlier one. With a certificate
    it refuses logins and data without TLS, which begins with AUTH, or with the first byte if it is
    `implicit`."""
    server = server or FileServer(folder)
    logging.getLogger("pyftpdlib").setLevel(logging.CRITICAL)
    kind = FTPHandler if certificate is None else _tls_handler(server, certificate, implicit)

    class Handler(kind):  # type: ignore[valid-type, misc]
        def on_connect(self) -> None:
            server.connections += 1

        def on_login(self, username: str) -> None:
            server.counted_logins[username] += 1

        def on_login_failed(self, username: str, password: str) -> None:
            server.counted_logins["refused"] += 1

        def on_file_sent(self, file: str) -> None:
            server.counted_files["sent"] += 1

        def on_file_received(self, file: str) -> None:
            server.counted_files["received"] += 1

        def ftp_DELE(self, path: str) -> Any:
            server.counted_files["deleted"] += 1
            return super().ftp_DELE(path)

        def ftp_MLSD(self, path: str) -> Any:
            server.counted_files["listed"] += 1
            return super().ftp_MLSD(path)

    Handler.authorizer = DummyAuthorizer()
    Handler.authorizer.add_user(USER, PASSWORD, str(folder), perm="elradfmw")
    Handler.authorizer.add_anonymous(str(folder))
    # A refused login is answered after this time.
    Handler.auth_failed_timeout = 0
    loop = IOLoop()
    made = FTPServer(("127.0.0.1", port), Handler, ioloop=loop)
    made.max_cons = 2048
    server.port = made.address[1]
    stopped = threading.Event()

    def serve() -> None:
        while not stopped.is_set():
            loop.loop(timeout=0.02, blocking=False)
            server.turns += 1
        made.close_all()

    server.thread = thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        stopped.set()
        thread.join(10)


def _tls_handler(server: FileServer, file: Path, implicit: bool) -> type[Any]:
    class DataHandler(TLS_FTPHandler.dtp_handler):  # type: ignore[misc]
        def handle_ssl_established(self) -> None:
            server.handshakes += 1
            super().handle_ssl_established()

    class Handler(TLS_FTPHandler):  # type: ignore[misc]
        certfile = str(file)
        tls_control_required = tls_data_required = True
        dtp_handler = DataHandler

        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            if implicit and self.connected:
                # RFC 4217 leaves this out; servers on port 990 protect the data, too.
                self._prot = True
                self.secure_connection(self.ssl_context)

        def handle_ssl_established(self) -> None:
            server.handshakes += 1
            super().handle_ssl_established()

    return Handler
