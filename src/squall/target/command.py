"""`squall target`: options, processes, start and end of the server.

With `--workers` above 1 this process only starts and stops the others, which share the port.
It prints `listening on URL` once, when every process accepts connections, and nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from squall.api.errors import ExitCode, SquallError, UsageError
from squall.runtime.real.pem_files import PemError, load_certificate
from squall.target.control import Control
from squall.target.counts import Counts
from squall.target.server import Site, TargetConnection
from squall.target.shop import Shop

# Enough for a connect storm while the server is frozen; the kernel may allow less.
BACKLOG = 4096

EPILOG = """\
any path takes these parameters in its query:
  status=503 | status=200:9,503:1     errors=0.1 (500)   resets=0.01 (no answer)
  delay=20ms | 5ms..50ms | uniform:5ms..50ms | exp:20ms | lognormal:20ms,0.5
  size=1000  chunked=1  gzip=1        close=1  cut=1  hang=1  slow_headers=200ms
  redirect=/x  redirects=3            cookie=name:value  header=X-Time:12
  count_field=user (/counts lists the values)

paths about the target itself, never counted:
  /counts (JSON)   /reset   /freeze?for=1s[&after=2s] (the whole server freezes)
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Parses the options and serves until it is stopped; returns the exit code."""
    return run(build_parser().parse_args(argv))


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="squall target",
        description="Start an HTTP server to test against; query parameters control its answers.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser)
    return parser


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command to a parser, which may be a subparser."""
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    add("--port", type=int, default=8080, help="port to listen on; 0 takes a free one")
    add("--workers", type=int, default=1, help="processes that share the port (default 1)")
    add("--seed", type=int, default=None, help="makes random choices and tokens repeatable")
    add("--cert", default=None, help="certificate chain (PEM); serves https")
    add("--key", default=None, help="private key (PEM) of the certificate")
    add(
        "--count-field",
        action="append",
        default=[],
        metavar="NAME",
        help="count the values of this query, form or JSON field (repeatable)",
    )
    add("--exit-with-stdin", action="store_true", help="stop when standard input closes")
    # Only the first process passes these, to the others.
    add("--worker", type=int, default=None, help=argparse.SUPPRESS)
    add("--socket-fd", type=int, default=None, help=argparse.SUPPRESS)
    add("--control-dir", default=None, help=argparse.SUPPRESS)
    add("--secret", default=None, help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> int:
    """Serves with parsed options; reports a user's mistake in one line on stderr."""
    try:
        _check(options)
        if options.worker is not None:
            return _serve_process(options, socket.socket(fileno=options.socket_fd))
        if options.secret is None:
            options.secret = _secret(options.seed).hex()
        if options.workers > 1:
            return _start_workers(options)
        return _serve_process(options, _bind(options.host, options.port))
    except SquallError as error:
        print(f"squall target: {error}", file=sys.stderr)
        return int(error.exit_code)


def _check(options: argparse.Namespace) -> None:
    if options.workers < 1:
        raise UsageError(f"--workers {options.workers}: must be at least 1")
    if not 0 <= options.port <= 65535:
        raise UsageError(f"--port {options.port}: must be between 0 and 65535")
    if options.key and not options.cert:
        raise UsageError("--key needs --cert")


def _secret(seed: int | None) -> bytes:
    if seed is None:
        return secrets.token_bytes(16)
    return hashlib.blake2s(str(seed).encode(), digest_size=16).digest()


def _bind(host: str, port: int, shared: bool = False) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        text = error.strerror or str(error)
        raise UsageError(f"cannot listen on {host}:{port}: {text}; try --port 0") from error
    return bound


def _url(options: argparse.Namespace, bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if options.cert else 'http'}://{shown}:{port}"


def _announce(text: str) -> None:
    print(text, flush=True)


# One process.


def _serve_process(options: argparse.Namespace, bound: socket.socket) -> int:
    tls = _tls_context(options)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(options, bound, tls))
    return int(ExitCode.PASSED)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def _tls_context(options: argparse.Namespace) -> ssl.SSLContext | None:
    if not options.cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        load_certificate(context, options.cert, options.key)
    except PemError as error:
        raise UsageError(f"--cert and --key: {error}") from error
    context.set_alpn_protocols(["http/1.1"])
    return context


async def _serve(
    options: argparse.Namespace, bound: socket.socket, tls: ssl.SSLContext | None
) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if options.exit_with_stdin:
        loop.add_reader(sys.stdin.fileno(), _stop_at_end_of_stdin, stop)
    site = _site(options, loop)
    control_server = None
    if options.control_dir is not None:
        own = str(_control_path(options.control_dir, options.worker))
        control_server = await asyncio.start_unix_server(site.control.serve_sibling, own)
    server = await loop.create_server(
        lambda: TargetConnection(site), sock=bound, backlog=BACKLOG, ssl=tls
    )
    # Objects of the start-up live as long as the process, so the collector may skip them.
    gc.freeze()
    ready = options.worker is not None
    _announce("ready" if ready else f"listening on {_url(options, bound)}")
    await stop.wait()
    server.close()
    if control_server is not None:
        control_server.close()
    for task in site.tasks:
        task.cancel()
    for connection in list(site.connections):
        connection.abort()


def _stop_at_end_of_stdin(stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        stop.set()
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())


def _site(options: argparse.Namespace, loop: asyncio.AbstractEventLoop) -> Site:
    counts = Counts()
    worker: int = options.worker or 0
    others = [k for k in range(options.workers) if k != worker]
    siblings = [str(_control_path(options.control_dir, k)) for k in others]
    seed = None if options.seed is None else options.seed * 1000 + worker
    return Site(
        loop=loop,
        counts=counts,
        shop=Shop(counts, bytes.fromhex(options.secret), worker, options.workers),
        control=Control(counts, siblings),
        random=Random(seed),
        count_fields=tuple(options.count_field),
    )


def _control_path(directory: str, worker: int) -> Path:
    return Path(directory) / f"worker-{worker}.sock"


# Several processes.


def _start_workers(options: argparse.Namespace) -> int:
    first = _bind(options.host, options.port, shared=True)
    host, port = first.getsockname()[:2]
    sockets = [first, *(_bind(host, port, shared=True) for _ in range(options.workers - 1))]
    children: list[subprocess.Popen[str]] = []
    with tempfile.TemporaryDirectory(prefix="squall-target-") as directory:
        try:
            for worker, bound in enumerate(sockets):
                children.append(_start_worker(options, worker, bound, directory))
                bound.close()
            for child in children:
                assert child.stdout is not None
                if child.stdout.readline() != "ready\n":
                    return child.wait() or int(ExitCode.INTERNAL)
            scheme = "https" if options.cert else "http"
            shown = f"[{host}]" if ":" in host else host
            _announce(f"listening on {scheme}://{shown}:{port}")
            return _watch(options, children)
        finally:
            _end(children)


def _start_worker(
    options: argparse.Namespace, worker: int, bound: socket.socket, directory: str
) -> subprocess.Popen[str]:
    given = ["--host", options.host, "--workers", str(options.workers)]
    for name, value in (("seed", options.seed), ("cert", options.cert), ("key", options.key)):
        given += [] if value is None else [f"--{name}", str(value)]
    for name in options.count_field:
        given += ["--count-field", name]
    given += ["--worker", str(worker), "--socket-fd", str(bound.fileno())]
    given += ["--control-dir", directory, "--secret", options.secret, "--exit-with-stdin"]
    # Its standard input is a pipe from this process, so it ends even if this one is killed.
    return subprocess.Popen(
        # -P: modules in the working directory must not hide those of Squall and Python.
        [sys.executable, "-P", "-m", "squall.target", *given],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[bound.fileno()],
    )


def _watch(options: argparse.Namespace, children: list[subprocess.Popen[str]]) -> int:
    """Waits for a signal, the end of standard input or the death of a child."""

    async def wait() -> int:
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        if options.exit_with_stdin:
            loop.add_reader(sys.stdin.fileno(), _stop_at_end_of_stdin, stop)
        for child in children:
            assert child.stdout is not None
            # A worker prints nothing more, so its output becomes readable when it ends.
            loop.add_reader(child.stdout.fileno(), stop.set)
        await stop.wait()
        dead = [child for child in children if child.poll()]
        return int(ExitCode.INTERNAL) if dead else int(ExitCode.PASSED)

    return asyncio.run(wait())


def _end(children: list[subprocess.Popen[str]]) -> None:
    for child in children:
        child.terminate()
    for child in children:
        try:
            child.wait(timeout=5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()
