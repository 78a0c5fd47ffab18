"""`squall submit FILE`: hands a run to a cluster, prints the job's id and leaves."""

from __future__ import annotations

import sys
from argparse import Namespace

from squall.cli.jobs import print_json
from squall.cli.options import run_options
from squall.cli.remote import destination_of, submit_only
from squall.cli.streams import print_or_drop


def execute(arguments: Namespace) -> int:
    return submit(arguments, as_json=bool(arguments.as_json))


def submit(arguments: Namespace, *, as_json: bool) -> int:
    arguments.detach = True
    options = run_options(arguments)
    destination = destination_of(arguments)
    assert destination is not None, "a detached run has a destination"
    job, created = submit_only(options, destination)
    if as_json:
        return print_json({"job": job, "created": created})
    if not created:
        print(f"squall submit: job {job} was submitted before with this key", file=sys.stderr)
    print_or_drop(job)
    return 0
