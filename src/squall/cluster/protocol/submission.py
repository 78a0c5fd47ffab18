"""What a client submits: the code, its manifest, and how to run it.

The bundle is a blob named by its digest; everything else is plain data. Environment values and
secrets are in `options`: they travel encrypted, and a manager stores secrets only encrypted (R17).
"""

from __future__ import annotations

import hashlib

import msgspec

from squall.engine.run_options import RunOptions
from squall.stats.manifest import FileManifest

BUNDLE_MAX_BYTES = 64 * 1024 * 1024


class BundleFile(msgspec.Struct, frozen=True):
    path: str
    """Relative to the bundle's root, "/" separates."""
    sha256: str
    size: int


class BundleManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The table of contents, inside the bundle and, without the files, in the submission."""

    entry: str
    """Path of the author's file in the bundle; empty for a URL."""
    python: str
    """"3.11": the version that made the manifest."""
    files: tuple[BundleFile, ...] = ()
    requirements: tuple[str, ...] = ()
    """Third-party top-level modules that the code imports: checked on the worker."""
    environment: tuple[str, ...] = ()
    """Names, never values."""


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    bundle: str
    """Digest of the bundle blob; empty for a URL run."""
    bundle_size: int
    contents: BundleManifest
    manifest: FileManifest
    options: RunOptions
    timeout_s: float | None = None
    """For the whole job, from its creation; None: the length of the plan plus a margin."""
    on_control_loss: str = "stop"
    """Or "continue": run on without a manager to the execution timeout, which the result reports
    as "may overlap"."""


def fingerprint(submission: Submission) -> str:
    """Equal for two submissions that ask for the same: a repeated key must have an equal one (R13).

    The seed and the words of the command line differ between two tries of the same command, so
    they do not count.
    """
    options = msgspec.structs.replace(submission.options, seed=0, command=())
    asked = (
        submission.bundle,
        submission.contents.entry,
        msgspec.to_builtins(options),
        submission.timeout_s,
        submission.on_control_loss,
    )
    return hashlib.sha256(msgspec.json.encode(asked, order="sorted")).hexdigest()
