"""The options of a run from the command line or from Python, as plain data."""

from __future__ import annotations

import msgspec


class ProfileFlags(msgspec.Struct, frozen=True, kw_only=True):
    """The load that the command line asks for; None (or no stages) leaves it to the file."""

    vus: int | str | None = None
    duration: int | float | str | None = None
    iterations: int | str | None = None
    rate: int | float | str | None = None
    stages: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return self == ProfileFlags()


PROXY_AUTH = "SQUALL_PROXY_AUTH"
"""The secret with the credentials for the proxy: `user:password`."""
CLIENT_CERTIFICATE = "SQUALL_CLIENT_CERTIFICATE"
"""The secret with the client's certificate and private key, as PEM."""


class URLRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request of a run of one URL. Its step is named after the method."""

    method: str = "GET"
    headers: dict[str, str] = {}
    body: bytes | None = None


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """All options of one run. `profiles` maps a workflow's name to its flags; the name "" stands
    for the only test workflow, or for all of them if a flag names none."""

    file: str = ""
    """Path as typed, or empty when `url` is set."""
    url: str = ""
    """Runs one step instead of a file: `request` sent to this address."""
    request: URLRequest = URLRequest()
    workers: int | None = None
    host: str = ""
    env: dict[str, str] = {}
    secrets: dict[str, str] = {}
    """Like `env`, but redacted wherever values are shown."""
    profiles: dict[str, ProfileFlags] = {}
    thresholds: tuple[str, ...] = ()
    once: bool = False
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    seed: int = 0
    tags: dict[str, str] = {}
    warmup_s: float = 0.0
    resolve: dict[str, str] = {}
    """"host:port" -> address."""
    insecure: bool = False
    http2: bool = False
    """`self.client.http` lets servers choose HTTP/2, whatever the file says."""
    traceparent: bool = False
    """Each request of HTTP carries a trace of its own."""
    ca_file: str = ""
    proxy: str = ""
    """An HTTP proxy for all requests, without credentials."""
    command: tuple[str, ...] = ()
    """The words of the command line, for the results document."""
    timeout_s: float | None = None
    """Upper bound on the whole run (`--timeout`, `squall.run(timeout=...)`)."""
    on_control_loss: str = ""
    """"stop" or "continue": whether workers run on without a manager; "" leaves it to the file."""
    on_agent_loss: str = "replan"
    """What happens to the load of a lost machine: "replan" gives it to others; "continue"
    accepts less load, and lets a machine that is only cut off run on."""
    outage_tolerance_s: float = 300.0
    """With "continue": how long a machine that is cut off runs on. Part of the job, so that
    managers and workers use the same length."""

    @property
    def lease_min_s(self) -> float:
        """The shortest execution lease that a worker may have for this job."""
        return self.outage_tolerance_s if self.on_agent_loss == "continue" else 0.0
