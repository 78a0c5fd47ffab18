"""`squall submit FILE`: submits a run to a cluster and prints the job's id."""

from __future__ import annotations

import sys
from argparse import Namespace

from squall.cli.shared.cluster_run import destination_of, submit_only
from squall.cli.shared.run_options import run_options
from squall.cli.shared.split_run import refuse_split
from squall.reporting.text.standard_streams import print_json, print_or_drop


def execute(arguments: Namespace) -> int:
    return submit(arguments, as_json=bool(arguments.as_json))


def submit(arguments: Namespace, *, as_json: bool) -> int:
    arguments.detach = True
    refuse_split(arguments)
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
