"""Pause, resume and steps of the load, for a screen whose keys cannot wait for an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from squall.api.errors import SquallError
from squall.engine.load_change import LoadChange
from squall.engine.load_steps import LoadSteps
from squall.engine.run_controls import RunControls
from squall.stats.manifest import FileManifest
from squall.stats.snapshot import Snapshot


class LoadKeys:
    """Sends what keys ask for, one change after the other, and reports a refusal through `say`."""

    def __init__(
        self, manifest: FileManifest, controls: RunControls, say: Callable[[str], None]
    ) -> None:
        self._steps = LoadSteps(manifest)
        self._controls = controls
        self._say = say
        # Changes in the order of the keys: a resume must not overtake its pause.
        self._in_order = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def feed(self, snapshot: Snapshot) -> None:
        self._steps.feed(snapshot)

    def pause(self) -> None:
        self._send([LoadChange(paused=True)])

    def resume(self) -> None:
        self._send([LoadChange(paused=False)])

    def multiply(self, factor: float) -> None:
        changes = self._steps.by(factor)
        if changes:
            self._send(changes)
        else:
            self._say("there is no load to change now")

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _send(self, changes: Sequence[LoadChange]) -> None:
        task = asyncio.create_task(self._sent(changes))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _sent(self, changes: Sequence[LoadChange]) -> None:
        async with self._in_order:
            for change in changes:
                try:
                    await self._controls.change(change)
                except SquallError as error:
                    self._say(f"the load is not changed: {error}")
                    return
