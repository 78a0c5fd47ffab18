"""The real host of a worker's shares: core processes of this machine, bundles on its disk."""

from __future__ import annotations

from pathlib import Path

import msgspec

from squall.cluster.protocol.bundle import unpack
from squall.cluster.protocol.job_keys import AttemptKey
from squall.cluster.worker.share_host import ShareOrder
from squall.engine.core_protocol import Load
from squall.engine.process.attempt_host import CoreHost
from squall.engine.process.bundle_cache import BundleCache
from squall.engine.process.machine import mark

ATTEMPT = "SQUALL_ATTEMPT"
"""In the environment of the author's code: which attempt it runs in, for logs and headers. Where
several run in one process, the first of them."""


class ProcessHost(CoreHost[AttemptKey]):
    """Implements `ShareHost`: a `CoreHost` with a cache of bundles. Make it on the running
    loop, in the main thread; `folder` is the data directory of the worker."""

    def __init__(self, cores: int, folder: Path, boot: str) -> None:
        super().__init__(cores, mark(folder, boot))
        self._folder = folder.resolve()
        self._folders = BundleCache(folder / "bundles")
        # The bundle that each attempt uses: the cache must not remove it meanwhile.
        self._bundles: dict[AttemptKey, str] = {}

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
        spec = msgspec.structs.replace(order.spec, iterations_done=order.iterations_done)
        load = Load(
            path=path,
            options=options,
            process=order.process,
            requirements=list(order.requirements),
            python=order.python if order.bundle else "",
        )
        # One process for what a core runs of a job. A later attempt may have ended a process, so
        # it keeps to others of its kind.
        group = (key.job, order.process, key.attempt)
        self.start(key, group, spec, load, str(self._folder / order.counters))

    def forget(self, key: AttemptKey) -> None:
        bundle = self._bundles.pop(key, None)
        if bundle is not None:
            self._folders.release(bundle)
        super().forget(key)
