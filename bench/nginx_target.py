"""The server under load: nginx, one worker on a core of its own, fixed answers, with and without
TLS.

Everything it writes lives in a temporary folder. Its own request counter is the judge
of the counts that generators report; nothing here ever estimates one.
"""

from __future__ import annotations

import json
import re
import resource
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from types import TracebackType

START_LIMIT_S = 10.0
CONFIG = """\
daemon off;
worker_processes 1;
worker_rlimit_nofile {files};
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{
    worker_connections {connections};
}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_requests 1000000000;
    keepalive_timeout 1h;
    # wrk resumes its sessions where a server lets it; a new user has none. So both make whole
    # handshakes.
    ssl_session_cache off;
    ssl_session_tickets off;
    ssl_certificate {folder}/server.pem;
    ssl_certificate_key {folder}/server.key;
    server {{
        listen 127.0.0.1:{port} backlog=16384;
        listen 127.0.0.1:{tls_port} ssl backlog=16384;
        location / {{
            default_type text/plain;
            return 200 "hello world\\n";
        }}
        location = /items {{
            default_type application/json;
            return 200 '{items}';
        }}
        location = /orders {{
            default_type application/json;
            return 201 '{{"order": 1, "state": "accepted"}}';
        }}
        location = /status {{
            stub_status;
        }}
    }}
}}
"""
# What a shop lists: 20 items, 1.4 kB.
ITEMS = json.dumps(
    {
        "items": [
            {"id": n, "name": f"item {n}", "price": n * 1.25, "stock": n * 3} for n in range(1, 21)
        ]
    }
)
# An elliptic key: signing with an RSA key would make the server the limit of every handshake.
CURVE = "ec_paramgen_curve:prime256v1"
NEW_CERTIFICATE = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", CURVE, "-nodes"]
NEW_CERTIFICATE += ["-days", "2", "-subj", "/CN=bench"]


class Nginx:
    """`with Nginx(core=0) as nginx:` serves at `nginx.url` and `nginx.tls_url` until the block
    ends."""

    def __init__(self, core: int | None) -> None:
        self._core = core
        self._asked = 0
        self._folder = Path(tempfile.mkdtemp(prefix="squall-bench-"))
        self._process: subprocess.Popen[bytes] | None = None
        self.port, self.tls_port = _free_port(), _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.tls_url = f"https://127.0.0.1:{self.tls_port}"

    def __enter__(self) -> Nginx:
        _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
        files = min(most_files, 65536) if most_files > 0 else 65536
        config = self._folder / "nginx.conf"
        config.write_text(
            CONFIG.format(
                folder=self._folder,
                port=self.port,
                tls_port=self.tls_port,
                items=ITEMS,
                files=files,
                connections=files - 256,
            )
        )
        subprocess.run(
            [*NEW_CERTIFICATE, "-out", "server.pem", "-keyout", "server.key"],
            cwd=self._folder,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        pinned = [] if self._core is None else ["taskset", "-c", str(self._core)]
        self._process = subprocess.Popen(
            [*pinned, "nginx", "-p", str(self._folder), "-c", str(config)],
            stderr=subprocess.DEVNULL,
        )
        self._wait_until_ready()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def requests(self) -> int:
        """Requests answered so far, without those that asked for this number."""
        with urllib.request.urlopen(f"{self.url}/status", timeout=10) as answer:
            text = answer.read().decode()
        self._asked += 1
        found = re.search(r"^ \d+ \d+ (\d+)", text, re.MULTILINE)
        if found is None:
            raise RuntimeError(f"nginx does not tell its counts: {text!r}")
        return int(found[1]) - self._asked

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            try:
                self.requests()
                return
            except OSError as error:
                assert self._process is not None
                if self._process.poll() is not None or time.monotonic() > deadline:
                    log = self._folder / "error.log"
                    told = log.read_text() if log.exists() else str(error)
                    raise RuntimeError(f"nginx does not start: {told}") from error
                time.sleep(0.02)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
