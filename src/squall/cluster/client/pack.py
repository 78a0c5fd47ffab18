"""Packs a workflow file, with the modules and data files it needs, into a submission."""

from __future__ import annotations

import platform
from collections.abc import Sequence

import msgspec

from squall.api.errors import ConfigError, UsageError
from squall.cluster.protocol.bundle import Bundle, make_bundle
from squall.cluster.protocol.submission import BUNDLE_MAX_BYTES, Submission
from squall.cluster.protocol.submission_limits import description_fault, submission_fault
from squall.engine.core_protocol import Loaded
from squall.engine.plan.bundle_inputs import BundleInputs, read_bundle_inputs
from squall.engine.run.local_run import OnLog, load_with_imports
from squall.engine.run_options import RunOptions
from squall.stats.manifest import FileManifest
from squall.stats.thresholds.binding import bind_all


async def packed(
    options: RunOptions, on_log: OnLog | None = None, datacenters: Sequence[str] = ()
) -> tuple[Submission, Bundle]:
    """`datacenters` are those of the run, which a threshold may name."""
    loaded = await load_with_imports(options, on_log)
    return pack(loaded, read_bundle_inputs(loaded, options), datacenters=datacenters)


def pack(
    loaded: Loaded,
    contents: BundleInputs,
    *,
    max_bytes: int = BUNDLE_MAX_BYTES,
    datacenters: Sequence[str] = (),
) -> tuple[Submission, Bundle]:
    """Reports every mistake that can be found on this machine, before anything is sent."""
    options = contents.options
    bind_all(loaded.manifest, options.thresholds, datacenters)
    _check_warmup(loaded.manifest, options.warmup_s)
    bundle = make_bundle(
        contents.files,
        entry=contents.entry,
        python=".".join(platform.python_version_tuple()[:2]),
        requirements=loaded.requirements,
        environment=(*options.env, *options.secrets),
        max_bytes=max_bytes,
    )
    submission = Submission(
        bundle=bundle.digest,
        bundle_size=len(bundle.data),
        # The table of files is in the bundle. In the description of the job it would be too large:
        # 10,000 files have a table of 1 MB.
        contents=msgspec.structs.replace(bundle.manifest, files=()),
        manifest=loaded.manifest,
        options=options,
        timeout_s=options.timeout_s,
        on_control_loss=_on_control_loss(loaded.manifest, options),
    )
    size = len(msgspec.msgpack.encode(submission))
    fault = submission_fault(submission) or description_fault(size)
    if fault:
        raise ConfigError(fault)
    return submission, bundle


def _on_control_loss(manifest: FileManifest, options: RunOptions) -> str:
    """The option, or else what the workflows of the file say, which must agree: the managers keep
    one value for the whole job."""
    if options.on_control_loss:
        return options.on_control_loss
    chosen = [each for each in manifest.workflows if each.on_control_loss]
    for each in chosen[1:]:
        if each.on_control_loss != chosen[0].on_control_loss:
            raise ConfigError(
                f"{manifest.path}  {chosen[0].name} and {each.name} have different "
                "on_control_loss; a job has one for all its workflows: give them the same, "
                "or use --on-control-loss"
            )
    return chosen[0].on_control_loss if chosen else "stop"


def _check_warmup(manifest: FileManifest, warmup_s: float) -> None:
    longest_s = max((w.profile.duration_s for w in manifest.workflows if w.is_test), default=0)
    if 0 < longest_s <= warmup_s:
        raise UsageError(f"--warmup {warmup_s:g}s leaves nothing of a run of {longest_s:g}s")
