"""A `squall target` of its own for each test, in a process of its own.

Every test may ask for the fixture `target` by name. A test that needs options (workers,
TLS, seed) uses `running_target(["--workers", "2"])` of this module. The process ends with
the test run even if that is killed, because it watches its standard input.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import subprocess
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.lab.programs import ROOT

SOURCE = ROOT / "src"
ANSWER_TIMEOUT_S = 60.0


class TargetHandle:
    """A running target: where it is, what it counted, and how to end it."""

    def __init__(self, url: str, process: subprocess.Popen[str]) -> None:
        self.url = url
        self.process = process
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None
        self.host = parts.hostname
        self.port = parts.port
        self.tls = parts.scheme == "https"

    def counts(self) -> dict[str, Any]:
        """The target's own counts; asking does not change them."""
        return json.loads(self.get("/counts"))

    def reset(self) -> None:
        """Start counting anew."""
        self.get("/reset")

    def freeze(self, for_s: float, after_s: float = 0.0) -> None:
        """Make the whole target stand still; returns at once."""
        self.get(f"/freeze?for={for_s:g}s&after={after_s:g}s")

    def get(self, path: str) -> bytes:
        """One GET on a connection of its own, for set-up and questions."""
        connection = self.connect()
        try:
            connection.request("GET", path, headers={"Connection": "close"})
            return connection.getresponse().read()
        finally:
            connection.close()

    def connect(self) -> http.client.HTTPConnection:
        """A plain HTTP client; with TLS it accepts any certificate."""
        if not self.tls:
            return http.client.HTTPConnection(self.host, self.port, timeout=ANSWER_TIMEOUT_S)
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return http.client.HTTPSConnection(
            self.host, self.port, timeout=ANSWER_TIMEOUT_S, context=context
        )

    def stop(self) -> int:
        """End the target with SIGTERM and return its exit code; may be called twice."""
        process = self.process
        if process.poll() is None:
            process.terminate()
        try:
            return process.wait(timeout=ANSWER_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()
        finally:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


def start_target(*options: str) -> TargetHandle:
    """Start a target on a free port and wait until it accepts; the caller stops it."""
    command = [sys.executable, "-m", "squall.target", "--port", "0", "--exit-with-stdin"]
    path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH", "")]))
    process = subprocess.Popen(
        [*command, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    return TargetHandle(url_of(process), process)


def url_of(process: subprocess.Popen[str]) -> str:
    """The address that a target prints when it accepts connections."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line.startswith("listening on "):
        code = process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        raise RuntimeError(f"the target did not start (exit code {code}): {line!r}")
    return line.removeprefix("listening on ")


@contextmanager
def running_target(options: Sequence[str] = ()) -> Generator[TargetHandle]:
    handle = start_target(*options)
    try:
        yield handle
    finally:
        handle.stop()


@pytest.fixture
def target() -> Iterator[TargetHandle]:
    """A fresh target on 127.0.0.1 with one process and no options."""
    with running_target() as handle:
        yield handle
