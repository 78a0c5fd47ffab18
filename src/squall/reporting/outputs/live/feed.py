"""Feeds the live outputs of one run, on this machine, on a cluster or through a store.

The owner of the run calls `on_run`, `on_manifest` and `on_snapshot` like those of a presenter, and
`end` with the results document. `wait` returns the lines to print about the delivery.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from squall.api.reporting import LiveReporter, LiveRun, is_live_reporter
from squall.engine.run_options import RunOptions
from squall.reporting.outputs.delivery import PreparedOutput
from squall.reporting.outputs.registry import check_reporters
from squall.reporting.redaction import Redactor

if TYPE_CHECKING:
    from squall.reporting.outputs.live.delivery import LiveDelivery
    from squall.stats.manifest import FileManifest
    from squall.stats.snapshot import Snapshot

T = TypeVar("T")


class LiveFeed:
    """The live outputs of the command line, and those of the author's file."""

    def __init__(
        self,
        prepared: Sequence[PreparedOutput],
        options: RunOptions,
        redact: Redactor,
        *,
        uses_file: bool = True,
    ) -> None:
        """With `uses_file`, live reporters of the author's file are fed as well."""
        self._uses_file = uses_file
        self._prepared = [each for each in prepared if is_live_reporter(each.reporter)]
        self._options = options
        self._redact = redact
        self._run = ""
        self._delivery: LiveDelivery | None = None
        self._is_ended = False
        self.of_file: tuple[list[PreparedOutput], list[str]] | None = None
        """The reporters of the author's file, live ones and others, if they are loaded already,
        and the errors in loading them."""

    @property
    def wants_histograms(self) -> bool:
        return any(getattr(each.reporter, "wants_histograms", False) for each in self._prepared)

    @property
    def has_begun(self) -> bool:
        return self._delivery is not None

    def on_run(self, run: str) -> None:
        self._run = run

    def on_manifest(self, manifest: FileManifest) -> None:
        """Starts the outputs before the load. The run does not wait until they are connected."""
        if self._uses_file:
            check_reporters(manifest)
        if self._uses_file and any(workflow.live_reporting for workflow in manifest.workflows):
            from squall.reporting.outputs.user_reporters import reporters_of_file

            self.of_file = reporters_of_file(manifest, self._options)
            found = [each for each in self.of_file[0] if is_live_reporter(each.reporter)]
            self._prepared += found
        if not self._prepared:
            return
        from squall.reporting.outputs.live.delivery import LiveDelivery, LiveOutput

        outputs = [
            LiveOutput(each.name, each.reporter)
            for each in self._prepared
            if isinstance(each.reporter, LiveReporter)
        ]
        self._delivery = LiveDelivery(outputs)
        run = LiveRun(
            id=self._run,
            file=manifest.path,
            workflows=tuple(workflow.name for workflow in manifest.workflows),
            tags=dict(self._options.tags),
            started_at=time.time(),
        )
        self._delivery.start(run)

    def on_snapshot(self, snapshot: Snapshot) -> None:
        if self._delivery is not None:
            self._delivery.put(self._redacted(snapshot))

    def end(self, document: dict[str, Any] | None) -> None:
        """Ends the outputs with the results document; None if the run left no results."""
        if self._delivery is not None and not self._is_ended:
            self._is_ended = True
            self._delivery.end(document)

    def wait(self) -> list[str]:
        """Waits for the last delivery, for some seconds at most. Returns one line for each output
        that lost something."""
        if self._delivery is None:
            return []
        self.end(None)
        return [self._redact(line) for line in self._delivery.wait()]

    def _redacted(self, data: T) -> T:
        if not self._redact.has_secrets:
            return data
        import msgspec

        plain = msgspec.to_builtins(data)
        return msgspec.convert(self._redact.document(plain), type=type(data))
