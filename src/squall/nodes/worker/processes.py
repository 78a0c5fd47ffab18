"""The real host of a worker's shares: core processes of this machine, bundles on its disk."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from squall.engine.folders import FolderCache
from squall.engine.hosted import CoreHost, HostedAttempt
from squall.engine.machine import mark
from squall.engine.protocol import Adjust, Load
from squall.nodes.bundle import unpack
from squall.nodes.identity import AttemptKey
from squall.nodes.worker.host import HostEvents, HostReport, Refusal, ShareOrder
from squall.stats.record import RecordEnd

ATTEMPT = "SQUALL_ATTEMPT"
"""In the environment of the author's code: which attempt it runs in, for logs and headers."""


class ProcessHost:
    """See `squall.nodes.worker.host.ShareHost`. Make it on the running loop, in the main
    thread; `folder` is the data directory of the worker."""

    def __init__(self, cores: int, folder: Path, boot: str) -> None:
        self._folders = FolderCache(folder / "bundles")
        self._events: HostEvents | None = None
        self._host: CoreHost[AttemptKey] = CoreHost(cores, self, mark(folder, boot))
        self._bundles: dict[AttemptKey, str] = {}

    def attach(self, events: HostEvents) -> None:
        self._events = events
        self._host.fill()

    async def has_bundle(self, digest: str) -> bool:
        return self._folders.has(digest)

    async def add_bundle(self, digest: str, content: bytes) -> None:
        _, files = unpack(content)
        await self._folders.add(digest, files)

    def prepare(self, order: ShareOrder) -> None:
        key, options = order.key, order.options
        path = ""
        if order.bundle:
            root = self._folders.use(order.bundle)
            self._bundles[key] = order.bundle
            path = str(root / order.entry) if order.entry else ""
            if options.ca_file:
                options = msgspec.structs.replace(options, ca_file=str(root / options.ca_file))
        options = msgspec.structs.replace(
            options, env={**options.env, ATTEMPT: str(key)}, workers=None
        )
        spec = msgspec.structs.replace(
            order.spec, attempt=int(key.attempt), iterations_done=order.iterations_done
        )
        load = Load(
            path=path,
            options=options,
            process=order.process,
            requirements=list(order.requirements),
            python=order.python if order.bundle else "",
        )
        self._host.prepare(key, spec, load)

    def go(self, key: AttemptKey, elapsed_s: float, run_elapsed_s: float) -> None:
        if (attempt := self._attempt(key)) is not None:
            attempt.go(elapsed_s, run_elapsed_s)

    def stop(self, key: AttemptKey, *, now: bool, cut: str) -> None:
        if (attempt := self._attempt(key)) is not None:
            attempt.stop(now=now, cut=cut)

    def kill(self, key: AttemptKey, cut: str) -> None:
        if (attempt := self._attempt(key)) is not None:
            attempt.kill(cut)

    def set_lease(self, key: AttemptKey, until: float, boot_until: float) -> None:
        if (attempt := self._attempt(key)) is not None:
            # The runtime's clock and `perf_counter` are the same clock of the kernel.
            attempt.set_lease(until, boot_until)

    def adjust(self, key: AttemptKey, load: Adjust) -> None:
        if (attempt := self._attempt(key)) is not None:
            attempt.adjust(load)

    async def close(self) -> None:
        await self._host.close()

    def _attempt(self, key: AttemptKey) -> HostedAttempt[AttemptKey] | None:
        return self._host.attempt(key)

    # What the processes tell; each in a turn of the loop of its own.

    def ready(self, key: AttemptKey) -> None:
        if self._events is not None:
            asyncio.get_running_loop().call_soon(self._events.on_ready, key)

    def refused(self, key: AttemptKey, text: str, exit_code: int, retryable: bool) -> None:
        self._release(key)
        if self._events is not None:
            refusal = Refusal(text=text, exit_code=exit_code, retryable=retryable)
            asyncio.get_running_loop().call_soon(self._events.on_refused, key, refusal)

    def report(self, key: AttemptKey, report: HostReport) -> None:
        if self._events is not None:
            asyncio.get_running_loop().call_soon(self._events.on_report, key, report)

    def held(self, key: AttemptKey, why: str, silent_s: float) -> None:
        if self._events is not None:
            asyncio.get_running_loop().call_soon(self._events.on_held, key, why, silent_s)

    def ended(self, key: AttemptKey, end: RecordEnd) -> None:
        self._release(key)
        if self._events is not None:
            asyncio.get_running_loop().call_soon(self._events.on_ended, key, end)

    def _release(self, key: AttemptKey) -> None:
        bundle = self._bundles.pop(key, None)
        if bundle is not None:
            self._folders.release(bundle)
