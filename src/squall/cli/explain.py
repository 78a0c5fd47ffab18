"""`squall explain`: reads the file and prints the plan; no request is sent.

With `--store` also what a run through that store would ask of it; the store is not asked."""

from __future__ import annotations

import asyncio
from argparse import Namespace

from squall.api.errors import ConfigError, UsageError
from squall.api.quantities import parse_count
from squall.cli.options import run_options
from squall.engine.limits import raise_descriptor_limit
from squall.engine.local import load_manifest, worker_count
from squall.reporting.explain import planned_length_s, render_explain
from squall.reporting.format import data_size, length, plural
from squall.stats.manifest import FileManifest

DEFAULT_AGENTS = 3


def execute(arguments: Namespace) -> int:
    options = run_options(arguments)
    if arguments.agents and not arguments.store:
        raise UsageError("--agents is for a run through a store: add --store URL")
    agents = _agents(arguments.agents)
    manifest = asyncio.run(load_manifest(options))
    limit = raise_descriptor_limit()
    print(render_explain(manifest, cores=worker_count(options), descriptor_limit=limit))
    if arguments.store:
        print("\n".join(cost_lines(arguments.store, agents, manifest)))
    return 0


def cost_lines(url: str, agents: int, manifest: FileManifest) -> list[str]:
    from squall.nodes.agent.cost import rates_of, store_cost
    from squall.nodes.agent.opening import check_url

    rates = rates_of(check_url(url))
    head = f"store  {url.partition(':')[0]}, {plural(agents, 'agent')}"
    if rates is None:
        return [f"{head}: a file of this machine; nobody else is asked"]
    run_s = planned_length_s(manifest)
    cost = store_cost(url, rates, agents, run_s)
    lines = [
        head,
        f"       idle     {cost.idle.requests:,.0f} requests, "
        f"{data_size(cost.idle.bytes)} a minute",
        f"       running  {cost.running.requests:,.0f} requests, "
        f"{data_size(cost.running.bytes)} a minute "
        f"({cost.running.requests / agents / 60.0:.1f} requests per agent and second)",
        f"       of both  {cost.schedules.requests:,.0f} requests a minute look for schedules",
        f"       this run of {length(run_s)}: about {cost.run_requests:,.0f} requests, "
        f"{data_size(cost.run_bytes)}",
    ]
    if cost.run_price is not None and cost.idle_hour_price is not None:
        lines.append(
            f"       requests at AWS list prices: {cost.run_price:.2f} USD for this run, "
            f"{cost.idle_hour_price:.2f} USD for an hour of waiting agents"
        )
    return lines


def _agents(text: str | None) -> int:
    if text is None:
        return DEFAULT_AGENTS
    try:
        return parse_count(text, "--agents")
    except ConfigError as error:
        raise UsageError(str(error)) from None
