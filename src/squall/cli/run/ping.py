"""`squall ping URL`: sends one request and shows its timings."""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace

from squall.api.errors import ExitCode
from squall.cli.shared.run_options import connection_flags, resolve_map, seconds
from squall.clients.calls.arrivals import ArrivalLoop
from squall.clients.ping import ping
from squall.engine.run_options import CLIENT_CERTIFICATE, PROXY_AUTH
from squall.reporting.text.standard_streams import print_or_drop


def execute(arguments: Namespace) -> int:
    url: str = arguments.url
    resolve: dict[tuple[str, int], str] = {}
    for place, address in resolve_map(arguments.resolve).items():
        host, _, port = place.rpartition(":")
        resolve[host, int(port)] = address
    connection = connection_flags(vars(arguments))
    with asyncio.Runner(loop_factory=ArrivalLoop) as runner:
        result = runner.run(
            ping(
                url if "://" in url else f"http://{url}",
                resolve=resolve,
                insecure=arguments.insecure,
                http2=arguments.http2,
                ca_file=connection.ca_file or None,
                certificate=connection.secrets.get(CLIENT_CERTIFICATE, ""),
                proxy=connection.proxy,
                proxy_auth=connection.secrets.get(PROXY_AUTH, ""),
                timeout_s=seconds(arguments.timeout, "--timeout"),
            )
        )
    if result.ok:
        print_or_drop(result.render())
    else:
        print(result.render(), file=sys.stderr)
    return 0 if result.ok else int(ExitCode.INTERNAL)
