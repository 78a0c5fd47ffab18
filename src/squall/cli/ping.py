"""`squall ping URL`: one request and its timings."""

from __future__ import annotations

import asyncio
from argparse import Namespace

from squall.cli.options import readable_file, resolve_map
from squall.clients.http import ping


def execute(arguments: Namespace) -> int:
    url: str = arguments.url
    result = asyncio.run(
        ping(
            url if "://" in url else f"http://{url}",
            resolve=resolve_map(arguments.resolve),
            insecure=arguments.insecure,
            ca_file=readable_file(arguments.cacert, "--cacert"),
        )
    )
    print(result.render())
    return 0
