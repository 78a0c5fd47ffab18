"""A real Caddy: HTTP/1.1, HTTP/2 and HTTP/3 on one address, HTTP/2 in clear on another."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme

from tests.lab.ports import free_ports

START_TIMEOUT_S = 30.0
BIG = bytes(range(256)) * 8000

# Where it asks for certificates, Caddy 2.6 answers requests over HTTP/3 with 421 unless
# `strict_sni_host` is off.
_CONFIG = """
{{
  admin off
  auto_https disable_redirects
  skip_install_trust
  servers {{
    protocols h1 h2 h2c h3
    strict_sni_host insecure_off
  }}
}}
(site) {{
  log {{
    output file {dir}/access.log
  }}
  redir /moved /landed?a=1 301
  handle /cookie {{
    header Set-Cookie "sid=7; Path=/"
    respond "set"
  }}
  respond /seen "{{http.request.header.Cookie}}"
  respond /unavailable "busy" 503
  respond /nothing 204
  handle /files/* {{
    root * {dir}
    file_server
  }}
  respond "hello world"
}}
https://localhost:{port} {{
  tls {dir}/cert.pem {dir}/key.pem
  import site
}}
https://localhost:{mutual_port} {{
  tls {dir}/cert.pem {dir}/key.pem {{
    client_auth {{
      mode require_and_verify
      trusted_ca_cert_file {dir}/ca.pem
    }}
  }}
  import site
}}
http://127.0.0.1:{plain_port} {{
  import site
}}
"""


class Caddy:
    """`url` speaks all versions with TLS, `mutual_url` asks clients for a certificate such as
    `client_pem`, `plain_url` speaks HTTP/1.1 and HTTP/2 in clear."""

    def __init__(self, directory: Path, program: str) -> None:
        self.directory = directory
        port, plain_port, mutual_port = free_ports(3)
        self.url = f"https://localhost:{port}"
        self.mutual_url = f"https://localhost:{mutual_port}"
        self.plain_url = f"http://127.0.0.1:{plain_port}"
        self.ca_file = str(directory / "ca.pem")
        authority = trustme.CA()
        authority.cert_pem.write_to_path(self.ca_file)
        issued = authority.issue_cert("localhost")
        issued.private_key_pem.write_to_path(str(directory / "key.pem"))
        issued.cert_chain_pems[0].write_to_path(str(directory / "cert.pem"))
        client = authority.issue_cert("client.test")
        self.client_pem = client.private_key_and_cert_chain_pem.bytes().decode()
        (directory / "files").mkdir()
        (directory / "files" / "big.bin").write_bytes(BIG)
        config = directory / "Caddyfile"
        ports = {"port": port, "plain_port": plain_port, "mutual_port": mutual_port}
        config.write_text(_CONFIG.format(dir=directory, **ports))
        with (directory / "caddy.log").open("w") as log:
            self.process = subprocess.Popen(
                [program, "run", "--config", str(config), "--adapter", "caddyfile"],
                # It writes its own configuration and certificates to the home directory.
                env={"PATH": os.environ["PATH"], "HOME": str(directory)},
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        for each in ports.values():
            self._wait_for(each)

    def _wait_for(self, port: int) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return
            except OSError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    log = (self.directory / "caddy.log").read_text()
                    raise AssertionError(f"caddy does not start: {log[-500:]}") from None
                time.sleep(0.02)

    def logged(self, path: str, at_least: int) -> list[str]:
        """The protocols of the requests for a path that Caddy has counted itself."""
        log = self.directory / "access.log"
        until = time.monotonic() + START_TIMEOUT_S
        while True:
            lines = [json.loads(line)["request"] for line in log.read_text().splitlines()]
            found = [line["proto"] for line in lines if line["uri"] == path]
            if len(found) >= at_least or time.monotonic() > until:
                return found
            time.sleep(0.02)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


@contextmanager
def running_caddy(directory: Path) -> Generator[Caddy]:
    program = shutil.which("caddy")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("caddy not installed")
        pytest.skip("caddy not installed")
    caddy = Caddy(directory, program)
    try:
        yield caddy
    finally:
        caddy.stop()
