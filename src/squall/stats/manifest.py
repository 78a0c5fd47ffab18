"""The manifest of a file: what is known before the first request, as plain data.

A core process reads the author's file and makes a `FileManifest`; only it ever
imports the file. The parent plans, judges thresholds and prints from this alone.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from squall.api.protocols.clients import CLIENT_NAMES

Model = Literal["closed", "iterations", "ramp", "open", "open-ramp", "once"]
Priority = Literal["low", "normal", "high", "exclusive", "auto"]
MetricKind = Literal["counter", "gauge", "rate", "sample"]
Field: TypeAlias = Literal["latency", "service", "first_byte"]
"""A time of a row; `latency` is the response time where a row has one."""
HTTP_PROTOCOLS = frozenset({"http", "http2", "http3"})
"""Protocols of rows whose outcomes are HTTP statuses."""
CLIENT_PROTOCOLS = HTTP_PROTOCOLS | frozenset(CLIENT_NAMES)
"""Protocols of rows whose exchanges a client of Squall made."""
CALL_PROTOCOLS = CLIENT_PROTOCOLS - HTTP_PROTOCOLS - {"graphql", "graphql2", "sse", "websocket"}
"""Of these, protocols without HTTP statuses in which each measured call is an exchange."""
ITERATION = "iteration"
"""The name of the row for whole iterations."""
START = "start"
"""The row of failures that kept a user from starting; it is no row of the step table."""


class Stage(msgspec.Struct, frozen=True):
    """Goes linearly from the last target to `target` (VUs or starts/s) within `duration_s`."""

    duration_s: float
    target: float


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """The load of a workflow. `once` is a workflow that is not a test: its DAG once per VU."""

    model: Model = "closed"
    vus: int = 1
    """Closed: users. Open: users ready at the start. Ramp: users at time 0 (often 0)."""
    max_vus: int = 0
    """Most users at any time, over all processes."""
    duration_s: float = 60.0
    """Length of the run; for `iterations` and `once` the upper bound."""
    iterations: int = 0
    """Of all users together."""
    iterations_per_vu: int = 0
    """Above zero: each user makes exactly so many."""
    rate_per_s: float = 0.0
    stages: tuple[Stage, ...] = ()
    think_s: tuple[float, float] | None = None
    pacing_s: float | None = None
    grace_s: float = 10.0
    start_after_s: float = 0.0
    """The part of `duration_s` before the load, in which the stages have the target 0."""

    @property
    def is_open(self) -> bool:
        return self.model in ("open", "open-ramp")


class WorkflowPart(msgspec.Struct, frozen=True, kw_only=True):
    """The place of one datacenter's part in the load of a workflow that several datacenters run.
    With it, rows and user ids are disjoint over the datacenters."""

    index: int
    """The datacenter's number, from 0."""
    weights: tuple[int, ...]
    """The weights of all datacenters."""
    users_before: int = 0
    """Planned users of the datacenters before it."""
    users_in_all: int = 0
    """Planned users of all datacenters."""
    iterations_before: int = 0
    """Planned iterations of the datacenters before it, in the `iterations` model."""


class StepManifest(msgspec.Struct, kw_only=True):
    name: str
    after: list[str] = []
    """Direct dependencies."""
    layer: int = 0
    protocol: str = ""
    """"http", "custom" ... for a measured step, "" for an action."""
    weight: int | None = None
    line: int = 0
    expect: list[tuple[int, int]] = msgspec.field(default_factory=lambda: [(200, 399)])
    """Inclusive status ranges that are ok."""
    timeout_s: float | None = None


class MetricManifest(msgspec.Struct, kw_only=True):
    name: str
    kind: MetricKind
    unit: str = ""


class UseManifest(msgspec.Struct, kw_only=True):
    """A `@state` hook that receives values: its arguments and their sources."""

    hook: str
    sources: list[str]
    arguments: list[str]
    collects: list[str] = []
    """Arguments that receive the values of all processes and sources: `All[T]`."""


class WorkflowManifest(msgspec.Struct, kw_only=True):
    name: str
    line: int = 0
    depends: list[str] = []
    always: bool = False
    """`@depends(..., when="always")`: also runs after a failure or an interruption."""
    is_test: bool = True
    priority: Priority = "auto"
    profile: Profile = Profile()
    steps: list[StepManifest] = []
    """In the order of the file."""
    shape: str = ""
    """`login -> (cart | offers) -> pay`"""
    connections_per_vu: int = 1
    checks: list[str] = []
    check_steps: dict[str, list[str]] = {}
    """The steps that a check needs, by its name."""
    metrics: list[MetricManifest] = []
    thresholds: list[str] = []
    threshold_lines: list[int] = []
    """The line of each threshold in the file; that of the workflow stands for those that miss."""
    host: str = ""
    on_control_loss: str = ""
    """"stop" or "continue" if the author chose one; a job has one value for all workflows."""
    provides: dict[str, list[str]] = {}
    """`@state` keys that this workflow provides, with the workflows that receive them."""
    uses: list[UseManifest] = []
    wants: list[str] = []
    """Arguments of its hooks that may come from a workflow it depends on."""
    feeds: list[str] = []
    once_rows: int = 0
    """The iterations that its `take="once"` feeds have rows for; 0 without such a feed."""
    data_files: list[str] = []
    reporting: bool = False
    """The class has its own reporters: the parent loads the file for them after the run."""
    live_reporting: bool = False
    """Some of them are live: the parent loads the file before the load begins."""
    outputs: list[str] = []
    """The built-in kinds among its reporters: whoever delivers needs their libraries."""
    warnings: list[str] = []


class FileManifest(msgspec.Struct, kw_only=True):
    path: str
    """As the author typed it; shown in output."""
    workflows: list[WorkflowManifest]
    warnings: list[str] = []

    @property
    def all_warnings(self) -> list[str]:
        """What is odd about the file and its workflows."""
        return [*self.warnings, *(text for each in self.workflows for text in each.warnings)]

    def workflow(self, name: str) -> WorkflowManifest:
        return next(workflow for workflow in self.workflows if workflow.name == name)
