"""What a person asked for on the command line or from Python, as plain data."""

from __future__ import annotations

import msgspec


class ProfileFlags(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says about load; None (or no stages) leaves it to the file."""

    vus: int | str | None = None
    duration: int | float | str | None = None
    iterations: int | str | None = None
    rate: int | float | str | None = None
    stages: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return self == ProfileFlags()


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One run. `profiles` maps a workflow's name to its flags; "" means "the one
    test workflow", or every one of them for flags that do not name a workflow."""

    file: str = ""
    """Path as typed, or empty when `url` is set."""
    url: str = ""
    """A URL in place of a file: one GET step named `get`."""
    workers: int | None = None
    host: str = ""
    env: dict[str, str] = {}
    secrets: dict[str, str] = {}
    """Like `env`, redacted wherever values are shown."""
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
    ca_file: str = ""
    command: tuple[str, ...] = ()
    """The words of the command line, for the results document."""
    timeout_s: float | None = None
    """Upper bound on the whole run (`LocalRunner.run(timeout=...)`)."""
    on_agent_loss: str = "replan"
    """What becomes of the load of a machine that is lost: "replan" gives it to others,
    "continue" goes on with less, and lets a machine run on that is only cut off."""
    outage_tolerance_s: float = 300.0
    """With "continue": how long a machine that is cut off runs on. Part of the job, so that
    all who reckon with it know the same length."""

    @property
    def lease_min_s(self) -> float:
        """The least length of an execution lease of what runs of this job."""
        return self.outage_tolerance_s if self.on_agent_loss == "continue" else 0.0
