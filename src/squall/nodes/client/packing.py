"""From a loaded file and its contents to what a client submits."""

from __future__ import annotations

import platform

from squall.api.errors import UsageError
from squall.engine.contents import Contents
from squall.engine.protocol import Loaded
from squall.nodes.bundle import Bundle, make_bundle
from squall.nodes.submission import BUNDLE_MAX_BYTES, Submission
from squall.stats.manifest import FileManifest
from squall.stats.threshold_binding import bind_all


def pack(
    loaded: Loaded, contents: Contents, *, max_bytes: int = BUNDLE_MAX_BYTES
) -> tuple[Submission, Bundle]:
    """Mistakes that can be known here are told here, before anything is sent."""
    options = contents.options
    bind_all(loaded.manifest, options.thresholds)
    _check_warmup(loaded.manifest, options.warmup_s)
    bundle = make_bundle(
        contents.files,
        entry=contents.entry,
        python=".".join(platform.python_version_tuple()[:2]),
        requirements=loaded.requirements,
        environment=(*options.env, *options.secrets),
        max_bytes=max_bytes,
    )
    return (
        Submission(
            bundle=bundle.digest,
            bundle_size=len(bundle.data),
            contents=bundle.manifest,
            manifest=loaded.manifest,
            options=options,
            timeout_s=options.timeout_s,
        ),
        bundle,
    )


def _check_warmup(manifest: FileManifest, warmup_s: float) -> None:
    longest_s = max((w.profile.duration_s for w in manifest.workflows if w.is_test), default=0)
    if 0 < longest_s <= warmup_s:
        raise UsageError(f"--warmup {warmup_s:g}s leaves nothing of a run of {longest_s:g}s")
