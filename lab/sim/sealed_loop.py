"""The parts of an event loop that would reach the real world: all refused, by name.

Simulated code gets network, disk and processes from its `Runtime` only.
"""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

from lab.sim.errors import OutsideWorldError


def _refuse(what: str) -> NoReturn:
    raise OutsideWorldError(
        f"{what} reaches outside of the simulation: use the node's Runtime instead"
    )


class SealedLoop(asyncio.AbstractEventLoop):
    """An event loop without a way out."""

    def run_in_executor(self, *args: Any, **options: Any) -> Any:
        _refuse("run_in_executor (a thread)")

    def set_default_executor(self, *args: Any, **options: Any) -> None:
        _refuse("set_default_executor (threads)")

    async def getaddrinfo(self, *args: Any, **options: Any) -> Any:
        _refuse("getaddrinfo (name resolution)")

    async def getnameinfo(self, *args: Any, **options: Any) -> Any:
        _refuse("getnameinfo (name resolution)")

    async def create_connection(self, *args: Any, **options: Any) -> Any:
        _refuse("create_connection (a socket)")

    async def create_server(self, *args: Any, **options: Any) -> Any:
        _refuse("create_server (a socket)")

    async def create_unix_connection(self, *args: Any, **options: Any) -> Any:
        _refuse("create_unix_connection (a socket)")

    async def create_unix_server(self, *args: Any, **options: Any) -> Any:
        _refuse("create_unix_server (a socket)")

    async def create_datagram_endpoint(self, *args: Any, **options: Any) -> Any:
        _refuse("create_datagram_endpoint (a socket)")

    async def connect_accepted_socket(self, *args: Any, **options: Any) -> Any:
        _refuse("connect_accepted_socket (a socket)")

    async def start_tls(self, *args: Any, **options: Any) -> Any:
        _refuse("start_tls (a socket)")

    async def sendfile(self, *args: Any, **options: Any) -> Any:
        _refuse("sendfile (a socket)")

    async def connect_read_pipe(self, *args: Any, **options: Any) -> Any:
        _refuse("connect_read_pipe (a pipe)")

    async def connect_write_pipe(self, *args: Any, **options: Any) -> Any:
        _refuse("connect_write_pipe (a pipe)")

    async def subprocess_exec(self, *args: Any, **options: Any) -> Any:
        _refuse("subprocess_exec (a process)")

    async def subprocess_shell(self, *args: Any, **options: Any) -> Any:
        _refuse("subprocess_shell (a process)")

    def add_reader(self, *args: Any, **options: Any) -> None:
        _refuse("add_reader (a file descriptor)")

    def remove_reader(self, fd: Any) -> bool:
        _refuse("remove_reader (a file descriptor)")

    def add_writer(self, *args: Any, **options: Any) -> None:
        _refuse("add_writer (a file descriptor)")

    def remove_writer(self, fd: Any) -> bool:
        _refuse("remove_writer (a file descriptor)")

    async def sock_recv(self, *args: Any, **options: Any) -> Any:
        _refuse("sock_recv (a socket)")

    async def sock_sendall(self, *args: Any, **options: Any) -> Any:
        _refuse("sock_sendall (a socket)")

    async def sock_connect(self, *args: Any, **options: Any) -> Any:
        _refuse("sock_connect (a socket)")

    async def sock_accept(self, *args: Any, **options: Any) -> Any:
        _refuse("sock_accept (a socket)")

    def add_signal_handler(self, *args: Any, **options: Any) -> None:
        _refuse("add_signal_handler (a signal)")

    def remove_signal_handler(self, sig: int) -> bool:
        _refuse("remove_signal_handler (a signal)")

    def call_soon_threadsafe(self, *args: Any, **options: Any) -> Any:
        _refuse("call_soon_threadsafe (another thread)")
