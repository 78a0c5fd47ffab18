"""A real DNS server on loopback: dnsmasq, with the records of a test and nothing else."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Generator, Sequence

import pytest

from tests.lab.ports import free_ports

READY_S = 20.0
ZONE = "test"
TTL_S = 1


class DNSServer:
    """Answers for the zone `test`; refuses every other question."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        (self.port,) = free_ports(1)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def publish(self, *records: str, ttl_s: int = TTL_S) -> None:
        """Replaces all records, which are options of dnsmasq without the dashes:
        host-record=NAME,IP or srv-host=NAME,HOST,PORT,PRIORITY,WEIGHT."""
        self.stop()
        words = [
            "keep-in-foreground", "conf-file=/dev/null", "no-resolv", "no-hosts", "pid-file",
            "bind-interfaces", "listen-address=127.0.0.1", f"port={self.port}", f"local=/{ZONE}/",
            f"local-ttl={ttl_s}", "log-facility=/dev/null", "user=", "group=", *records,
        ]  # fmt: skip
        self._process = subprocess.Popen(
            [self._program, *(f"--{word}" for word in words)],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        self._wait_ready(self._process)

    def publish_service(self, name: str, ports: Sequence[int], ttl_s: int = TTL_S) -> None:
        """SRV records of managers that listen at these ports of this machine."""
        services = [f"srv-host={name},localhost.{ZONE},{port}" for port in ports]
        self.publish(f"host-record=localhost.{ZONE},127.0.0.1", *services, ttl_s=ttl_s)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> None:
        """It answers TCP too, so a connection shows that it listens."""
        until = time.monotonic() + READY_S
        while True:
            if process.poll() is not None:
                raise AssertionError(f"dnsmasq ended: {process.communicate()[1].decode()}")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            assert time.monotonic() < until, "dnsmasq does not listen"
            time.sleep(0.01)


@contextlib.contextmanager
def dns_server() -> Generator[DNSServer]:
    program = shutil.which("dnsmasq") or shutil.which("dnsmasq", path="/usr/sbin:/sbin")
    if program is None:
        missing = "dnsmasq is not installed: apt-get install dnsmasq-base"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    server = DNSServer(program)
    try:
        yield server
    finally:
        server.stop()
