"""`squall explain`: reads the file and prints the plan; no request is sent."""

from __future__ import annotations

import asyncio
from argparse import Namespace

from squall.cli.options import run_options
from squall.engine.limits import raise_descriptor_limit
from squall.engine.local import load_manifest, worker_count
from squall.reporting.explain import render_explain


def execute(arguments: Namespace) -> int:
    options = run_options(arguments)
    manifest = asyncio.run(load_manifest(options))
    limit = raise_descriptor_limit()
    print(render_explain(manifest, cores=worker_count(options), descriptor_limit=limit))
    return 0
