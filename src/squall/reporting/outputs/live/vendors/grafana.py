"""An annotation in Grafana from the start to the end of the run: `grafana=URL,token=env:TOKEN`.

Squall creates it at the start and makes it a region with the verdict at the end. A dashboard shows
it by its tags: `squall`, the run, the tags of the run.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

import msgspec

from squall.api.reporting import LiveReporter, LiveRun
from squall.reporting.outputs.live.http import HTTPPoster
from squall.reporting.outputs.targets import Secret
from squall.stats.snapshot import Snapshot

_HEADERS = {"Content-Type": "application/json"}


class GrafanaConfig(msgspec.Struct, frozen=True):
    url: str
    token: Annotated[str, Secret("GRAFANA_TOKEN")] = ""
    dashboard: str = ""
    """The uid of a dashboard; without, the annotation is for all of them."""


class _Annotation(msgspec.Struct):
    id: int


class GrafanaAnnotation(LiveReporter):
    """Marks the time of the run in all dashboards, or in one."""

    def __init__(self, config: GrafanaConfig) -> None:
        headers = {"Authorization": f"Bearer {config.token}"} if config.token else {}
        self._poster = HTTPPoster(config.url, headers)
        self._dashboard = config.dashboard
        self._id: int | None = None
        self._name = ""

    async def start(self, run: LiveRun) -> None:
        self._name = f"{run.file} {' + '.join(run.workflows)}, run {run.id}"
        tags = ["squall", f"run:{run.id}", *(f"{key}:{value}" for key, value in run.tags.items())]
        content: dict[str, Any] = {
            "time": int(run.started_at * 1000),
            "tags": tags,
            "text": self._name,
        }
        if self._dashboard:
            content["dashboardUID"] = self._dashboard
        answer = self._send("POST", "/api/annotations", content)
        self._id = msgspec.json.decode(answer, type=_Annotation).id

    async def tick(self, snapshot: Snapshot) -> None:
        """Does nothing: an annotation has only a start and an end."""

    async def end(self, document: dict[str, Any] | None) -> None:
        state = "left no results"
        if document is not None:
            state = f"{document['status']}, {document['verdict']['state']}"
        content = {"timeEnd": int(time.time() * 1000), "text": f"{self._name}: {state}"}
        self._send("PATCH", f"/api/annotations/{self._id}", content)
        self._poster.close()

    def _send(self, method: str, path: str, content: dict[str, Any]) -> bytes:
        return self._poster.post(path, msgspec.json.encode(content), _HEADERS, method=method)
