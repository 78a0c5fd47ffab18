"""`squall explain`: loads the file and prints the plan; sends no request.

With `--store` it also estimates the requests of a run through that store, without contacting it.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace

from squall.api.errors import ConfigError, UsageError
from squall.api.quantities import parse_count
from squall.cli.shared.run_options import run_options
from squall.engine.process.system_limits import raise_descriptor_limit
from squall.engine.run.local_run import load_manifest, worker_count
from squall.reporting.number_format import data_size, length, plural
from squall.reporting.text.explain import planned_length_s, render_explain
from squall.reporting.text.standard_streams import print_or_drop
from squall.stats.manifest import FileManifest
from squall.stats.thresholds.binding import bind_all, named_datacenters

DEFAULT_AGENTS = 3


def execute(arguments: Namespace) -> int:
    options = run_options(arguments)
    if arguments.agents and not arguments.store:
        raise UsageError("--agents needs a store: add --store URL")
    agents = _agents(arguments.agents)
    manifest = asyncio.run(load_manifest(options))
    # The run may name datacenters that this command does not know.
    bind_all(manifest, options.thresholds, named_datacenters(manifest, options.thresholds))
    limit = raise_descriptor_limit()
    print_or_drop(render_explain(manifest, cores=worker_count(options), descriptor_limit=limit))
    if arguments.store:
        print_or_drop("\n".join(cost_lines(arguments.store, agents, manifest)))
    return 0


def cost_lines(url: str, agents: int, manifest: FileManifest) -> list[str]:
    from squall.store_mode.open_store import check_url
    from squall.store_mode.request_cost import rates_of, store_cost

    rates = rates_of(check_url(url))
    head = f"store  {url.partition(':')[0]}, {plural(agents, 'agent')}"
    if rates is None:
        return [f"{head}: a file on this machine; no requests are sent"]
    run_s = planned_length_s(manifest)
    cost = store_cost(url, rates, agents, run_s)
    ends_itself = any(workflow.profile.model == "iterations" for workflow in manifest.workflows)
    most, about = ("at most ", "at most") if ends_itself else ("", "about")
    lines = [
        head,
        f"       idle     {cost.idle.requests:,.0f} requests, "
        f"{data_size(cost.idle.bytes)} a minute",
        f"       running  {cost.running.requests:,.0f} requests, "
        f"{data_size(cost.running.bytes)} a minute "
        f"({cost.running.requests / agents / 60.0:.1f} requests per agent and second)",
        f"       of both  {cost.schedules.requests:,.0f} requests a minute poll for schedules",
        f"       this run of {most}{length(run_s)}: {about} {cost.run_requests:,.0f} "
        f"requests, {data_size(cost.run_bytes)}",
    ]
    if cost.run_price is not None and cost.idle_hour_price is not None:
        lines.append(
            f"       requests at AWS list prices: {cost.run_price:.2f} USD for this run, "
            f"{cost.idle_hour_price:.2f} USD for an hour of idle agents"
        )
    return lines


def _agents(text: str | None) -> int:
    if text is None:
        return DEFAULT_AGENTS
    try:
        return parse_count(text, "--agents")
    except ConfigError as error:
        raise UsageError(str(error)) from None
