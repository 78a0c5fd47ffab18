"""What a client submits: the code, its manifest, and how to run it.

The bundle is a blob named by its digest; everything else is plain data. Environment values and
secrets are in `options`: they travel encrypted, and a manager stores secrets only encrypted (R17).
"""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from squall.engine.run_options import RunOptions
from squall.stats.manifest import FileManifest, WorkflowPart

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


class Targets(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The datacenters that a job asks a gate for: those of `weights`, or the `count` best ones."""

    weights: tuple[tuple[str, float], ...] = ()
    """The named datacenters with their parts of the load, which add up to 1."""
    count: int = 0
    """Any so many datacenters, in equal parts."""
    fallback: tuple[str, ...] | bool = False
    """The datacenters that may run a part whose own datacenter cannot; True: any."""
    on_loss: Literal["wait", "drop"] = "wait"
    """If a datacenter is lost that runs a part, the job waits for it to its deadline, or counts
    the part as lost once the datacenter is unreachable."""


class SubmissionPart(msgspec.Struct, frozen=True, kw_only=True):
    """The part of one datacenter in a job that several datacenters run."""

    datacenter: str
    index: int
    """Its number among the datacenters of the job, from 0."""
    weights: tuple[int, ...]
    """The weights of all of them."""
    workflows: dict[str, WorkflowPart]
    """The place of each workflow of the manifest, which has only this datacenter's load."""


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
    # Unset in other jobs, so that the digest of a state does not depend on the version that knows
    # these fields.
    targets: Targets | msgspec.UnsetType = msgspec.UNSET
    """The datacenters to run it in; only gates take such a job."""
    part: SubmissionPart | msgspec.UnsetType = msgspec.UNSET
    """Set if the manifest is one datacenter's part of a job."""

    @property
    def split(self) -> SubmissionPart | None:
        return self.part if self.part else None


def fingerprint(submission: Submission) -> str:
    """Equal for two submissions that ask for the same: a repeated key must have an equal one (R13).

    The seed and the words of the command line differ between two tries of the same command, so
    they do not count.
    """
    options = msgspec.structs.replace(submission.options, seed=0, command=())
    asked: list[object] = [
        submission.bundle,
        submission.contents.entry,
        msgspec.to_builtins(options),
        submission.timeout_s,
        submission.on_control_loss,
    ]
    # Only where they are set: the fingerprints of other jobs stay what they were.
    if submission.targets:
        asked.append(msgspec.to_builtins(submission.targets))
    if submission.part:
        asked.append((submission.part.index, submission.part.weights))
    return hashlib.sha256(msgspec.json.encode(asked, order="sorted")).hexdigest()
