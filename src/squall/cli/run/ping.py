"""`squall ping URL`: sends one request and shows its timings."""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace

from squall.api.errors import ExitCode
from squall.cli.shared.run_options import readable_file, resolve_map, seconds
from squall.clients.http import ping
from squall.reporting.text.standard_streams import print_or_drop


def execute(arguments: Namespace) -> int:
    url: str = arguments.url
    resolve: dict[tuple[str, int], str] = {}
    for place, address in resolve_map(arguments.resolve).items():
        host, _, port = place.rpartition(":")
        resolve[host, int(port)] = address
    result = asyncio.run(
        ping(
            url if "://" in url else f"http://{url}",
            resolve=resolve,
            insecure=arguments.insecure,
            ca_file=readable_file(arguments.cacert, "--cacert") or None,
            timeout_s=seconds(arguments.timeout, "--timeout"),
        )
    )
    if result.ok:
        print_or_drop(result.render())
    else:
        print(result.render(), file=sys.stderr)
    return 0 if result.ok else int(ExitCode.INTERNAL)
