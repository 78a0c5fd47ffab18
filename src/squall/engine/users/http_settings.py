"""Makes the shared HTTP state of a share from the workflow's settings and the run's options."""

from __future__ import annotations

from pathlib import Path

from squall.clients.http import HTTPShared
from squall.engine.plan.workflow_plan import WorkflowPlan
from squall.engine.run_options import CLIENT_CERTIFICATE, PROXY_AUTH, RunOptions

DEFAULT_TIMEOUT_S = 60.0


def http_shared(plan: WorkflowPlan, options: RunOptions, base_dir: Path) -> HTTPShared:
    settings = plan.settings
    return HTTPShared(
        host=options.host or settings.get("host", ""),
        resolve=_resolutions(options.resolve),
        verify=not options.insecure,
        ca_file=options.ca_file or None,
        certificate=options.secrets.get(CLIENT_CERTIFICATE, ""),
        proxy=options.proxy,
        proxy_auth=options.secrets.get(PROXY_AUTH, ""),
        timeout_s=settings.get("timeout", DEFAULT_TIMEOUT_S),
        connections=settings.get("connections", "vu"),
        streams=settings.get("streams", 10),
        pool_size=settings.get("pool_size", 10),
        negotiates=options.http2 or settings.get("http") == "auto",
        session=settings.get("session", "iteration"),
        base_dir=base_dir,
    )


def _resolutions(entries: dict[str, str]) -> dict[tuple[str, int], str]:
    found: dict[tuple[str, int], str] = {}
    for name, address in entries.items():
        host, _, port = name.rpartition(":")
        found[(host, int(port))] = address
    return found
