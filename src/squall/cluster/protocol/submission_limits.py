"""The limits of a submission. A manifest comes from a client, so nothing in it is trusted (R3).

Three places check: the client before it sends anything; the manager before it proposes a job, so
that the client gets one line; and the state machine when it applies the command, so that no job
that breaks a limit reaches the rules of the director. All use `submission_fault`.
It is pure and must give the same answer on every member, so a limit may only change together with
the version of the commands.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping

from squall.cluster.protocol.submission import (
    BUNDLE_MAX_BYTES,
    Submission,
    SubmissionPart,
    Targets,
)
from squall.engine.load.datacenter_split import DATACENTERS_MAX, WEIGHTS_SUM_MAX
from squall.engine.load_change import RATE_MAX_PER_S, USERS_MAX, change_fault
from squall.engine.run_options import ProfileFlags, RunOptions
from squall.stats.manifest import FileManifest, Profile, StepManifest, WorkflowManifest

DAY_S = 86_400.0
DURATION_MAX_S = 30 * DAY_S
"""Of a workflow or stage. A job of 500 such workflows is still far below 2^63 milliseconds."""
TIMEOUT_MAX_S = 60 * DAY_S
PAUSE_MAX_S = DAY_S
"""Think time, pacing, grace, and the timeout of a step."""
OUTAGE_MAX_S = 7 * DAY_S
"""It becomes a lease (`RunOptions.lease_min_s`), and no attempt is lost before its lease ends."""
ITERATIONS_MAX = 1_000_000_000
CONNECTIONS_MAX = 1_000
WORKFLOWS_MAX = 500
STEPS_MAX = 1_000
STAGES_MAX = 1_000
ITEMS_MAX = 1_000
"""Of any other list in a manifest: dependencies, checks, metrics, thresholds, feeds ..."""
FILES_MAX = 10_000
DESCRIPTION_MAX_BYTES = 256 * 1024
"""Of everything in a submission, encoded: it is part of one command (R1)."""
KEY_MAX_CHARACTERS = 200
"""Of the idempotency key that comes with a submission."""
REQUEST_ID_MAX_CHARACTERS = 64
NAME_MAX = 200
TEXT_MAX = 4_000
SHAPE_MAX = 64_000
"""The drawing of a workflow's steps, and the value of a variable."""
INTEGER_MAX = 2**63 - 1
"""The log stores whole numbers in 64 bits."""

# Control characters, line separators and marks that turn the direction of text: names are printed
# in one line. By code point and not by `str.isprintable`, whose answer changes with the version of
# Python and could differ between members.
_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


class LimitExceeded(Exception):
    """The text is one line that names the field, its value and the limit."""


def submission_fault(submission: Submission) -> str:
    """Returns why a submission cannot be a job, or ""."""
    try:
        _check(submission)
    except LimitExceeded as fault:
        return str(fault)
    return ""


def description_fault(size: int) -> str:
    """Returns why a submission of this size, in bytes, cannot be a job, or ""."""
    if size <= DESCRIPTION_MAX_BYTES:
        return ""
    return (
        f"the description of the job (manifest and options) has {size:,} bytes; "
        f"at most {DESCRIPTION_MAX_BYTES:,} are allowed"
    )


def key_fault(key: str) -> str:
    """Returns why a key cannot identify a submission, or ""."""
    if 1 <= len(key) <= KEY_MAX_CHARACTERS:
        return ""
    return f"the key has {len(key):,} characters; it must have 1 to {KEY_MAX_CHARACTERS}"


def reason_fault(reason: str) -> str:
    """Returns why a text cannot be the reason of a cancellation or an adjustment, or ""."""
    if len(reason) > NAME_MAX:
        return f"the reason has {len(reason):,} characters; at most {NAME_MAX} are allowed"
    return "the reason contains control characters" if _UNFIT.search(reason) else ""


def adjustment_fault(rate_per_s: float | None, vus: int | None, request_id: str = "") -> str:
    """Returns why a running load cannot be changed to these values, or ""."""
    if len(request_id) > REQUEST_ID_MAX_CHARACTERS:
        return f"a request id may have {REQUEST_ID_MAX_CHARACTERS} characters at most"
    return change_fault(rate_per_s, vus)


def _check(submission: Submission) -> None:
    digest = submission.bundle
    if digest and (len(digest) != 64 or not set(digest) <= set("0123456789abcdef")):
        raise LimitExceeded(f"bundle is {_shown(digest)}; it must be a SHA-256 digest in hex")
    _number("bundle_size", submission.bundle_size, 0, BUNDLE_MAX_BYTES)
    contents = submission.contents
    _text("contents.entry", contents.entry, TEXT_MAX)
    _name("contents.python", contents.python, empty=True)
    _count("contents.files", contents.files, FILES_MAX)
    for file in contents.files:
        _text("contents.files.path", file.path, TEXT_MAX)
        _name("contents.files.sha256", file.sha256)
        _number("contents.files.size", file.size, 0, BUNDLE_MAX_BYTES)
    _names("contents.requirements", contents.requirements)
    _names("contents.environment", contents.environment)
    if submission.timeout_s is not None:
        _number("timeout_s", submission.timeout_s, 0.0, TIMEOUT_MAX_S, above=True)
    _choice("on_control_loss", submission.on_control_loss, ("stop", "continue"))
    _options(submission.options)
    _manifest(submission.manifest)
    if submission.targets:
        _targets(submission.targets)
    if submission.part:
        _part(submission.part)


def _targets(targets: Targets) -> None:
    _count("targets.weights", targets.weights, DATACENTERS_MAX)
    for name, weight in targets.weights:
        _name("targets.weights", name)
        _number(f"targets.weights.{_shown(name)}", weight, 0.0, 1.0, above=True)
    whole = math.fsum(weight for _, weight in targets.weights)
    if targets.weights and abs(whole - 1.0) > 1e-6:
        raise LimitExceeded(f"targets.weights add up to {whole:g}; they must add up to 1")
    if len({name for name, _ in targets.weights}) < len(targets.weights):
        raise LimitExceeded("targets.weights name a datacenter twice")
    _number("targets.count", targets.count, 0, DATACENTERS_MAX)
    if targets.weights and targets.count:
        raise LimitExceeded("targets have weights and a count; they must have one of them")
    if not isinstance(targets.fallback, bool):
        _names("targets.fallback", targets.fallback)


def _part(part: SubmissionPart) -> None:
    _name("part.datacenter", part.datacenter)
    _weights("part", part.index, part.weights)
    _count("part.workflows", part.workflows, WORKFLOWS_MAX)
    for name, place in part.workflows.items():
        _name("part.workflows", name)
        _weights("part.workflows", place.index, place.weights)
        _number("part.workflows.users_before", place.users_before, 0, USERS_MAX)
        _number("part.workflows.users_in_all", place.users_in_all, 0, USERS_MAX)
        _number("part.workflows.iterations_before", place.iterations_before, 0, ITERATIONS_MAX)


def _weights(field: str, index: int, weights: tuple[int, ...]) -> None:
    _count(f"{field}.weights", weights, DATACENTERS_MAX)
    _number(f"{field}.index", index, 0, len(weights) - 1)
    for weight in weights:
        _number(f"{field}.weights", weight, 1, WEIGHTS_SUM_MAX)
    _number(f"{field}.weights in all", sum(weights), 1, WEIGHTS_SUM_MAX)


def _options(options: RunOptions) -> None:
    for field, text in (
        ("file", options.file),
        ("url", options.url),
        ("host", options.host),
        ("ca_file", options.ca_file),
        ("proxy", options.proxy),
    ):
        _text(f"options.{field}", text, TEXT_MAX)
    _name("options.request.method", options.request.method)
    _table("options.request.headers", options.request.headers)
    if options.workers is not None:
        _number("options.workers", options.workers, 1, USERS_MAX)
    for field, table in (
        ("env", options.env),
        ("secrets", options.secrets),
        ("tags", options.tags),
        ("resolve", options.resolve),
    ):
        _table(f"options.{field}", table)
    _count("options.profiles", options.profiles, ITEMS_MAX)
    for name, flags in options.profiles.items():
        _name("options.profiles", name, empty=True)
        _flags(f"options.profiles.{_shown(name)}", flags)
    _texts("options.thresholds", options.thresholds)
    _names("options.only", options.only)
    _names("options.skip", options.skip)
    _texts("options.command", options.command)
    _number("options.seed", options.seed, -INTEGER_MAX, INTEGER_MAX)
    _number("options.warmup_s", options.warmup_s, 0.0, DURATION_MAX_S)
    if options.timeout_s is not None:
        _number("options.timeout_s", options.timeout_s, 0.0, TIMEOUT_MAX_S, above=True)
    _choice("options.on_control_loss", options.on_control_loss, ("", "stop", "continue"))
    _choice("options.on_agent_loss", options.on_agent_loss, ("replan", "continue"))
    _number("options.outage_tolerance_s", options.outage_tolerance_s, 0.0, OUTAGE_MAX_S)


def _flags(field: str, flags: ProfileFlags) -> None:
    """The values are parsed where the file is read; here they are only kept small."""
    for name in ("vus", "duration", "iterations", "rate"):
        value: int | float | str | None = getattr(flags, name)
        if isinstance(value, str):
            _text(f"{field}.{name}", value, NAME_MAX)
        elif value is not None:
            _number(f"{field}.{name}", value, -INTEGER_MAX, INTEGER_MAX)
    _count(f"{field}.stages", flags.stages, STAGES_MAX)
    for stage in flags.stages:
        _text(f"{field}.stages", stage, NAME_MAX)


def _manifest(manifest: FileManifest) -> None:
    _text("manifest.path", manifest.path, TEXT_MAX)
    _texts("manifest.warnings", manifest.warnings)
    if not manifest.workflows:
        raise LimitExceeded("the file holds no workflow to run")
    _count("manifest.workflows", manifest.workflows, WORKFLOWS_MAX)
    for workflow in manifest.workflows:
        _name("manifest.workflows.name", workflow.name)
        _workflow(workflow)


def _workflow(workflow: WorkflowManifest) -> None:
    at = f"workflow {workflow.name}: "
    _profile(f"{at}profile", workflow.profile)
    _number(f"{at}line", workflow.line, 0, INTEGER_MAX)
    _number(f"{at}once_rows", workflow.once_rows, 0, INTEGER_MAX)
    _number(f"{at}connections_per_vu", workflow.connections_per_vu, 0, CONNECTIONS_MAX)
    for field, names in (
        ("depends", workflow.depends),
        ("wants", workflow.wants),
        ("checks", workflow.checks),
        ("metrics", [metric.name for metric in workflow.metrics]),
    ):
        _names(f"{at}{field}", names)
    for field, texts in (
        ("thresholds", workflow.thresholds),
        ("feeds", workflow.feeds),
        ("data_files", workflow.data_files),
        ("warnings", workflow.warnings),
        ("metrics.unit", [metric.unit for metric in workflow.metrics]),
    ):
        _texts(f"{at}{field}", texts)
    _text(f"{at}shape", workflow.shape, SHAPE_MAX)
    _text(f"{at}host", workflow.host, TEXT_MAX)
    _count(f"{at}check_steps", workflow.check_steps, ITEMS_MAX)
    for name, steps in workflow.check_steps.items():
        _name(f"{at}check_steps", name)
        _names(f"{at}check_steps", steps)
    _count(f"{at}provides", workflow.provides, ITEMS_MAX)
    for name, receivers in workflow.provides.items():
        _name(f"{at}provides", name)
        _names(f"{at}provides", receivers)
    _count(f"{at}uses", workflow.uses, ITEMS_MAX)
    for use in workflow.uses:
        _name(f"{at}uses.hook", use.hook)
        _names(f"{at}uses.sources", use.sources)
        _names(f"{at}uses.arguments", use.arguments)
        _names(f"{at}uses.collects", use.collects)
    _count(f"{at}steps", workflow.steps, STEPS_MAX)
    for step in workflow.steps:
        _name(f"{at}steps.name", step.name)
        _step(f"{at}step {step.name}", step)


def _step(at: str, step: StepManifest) -> None:
    _names(f"{at}: after", step.after)
    _number(f"{at}: layer", step.layer, 0, STEPS_MAX)
    _name(f"{at}: protocol", step.protocol, empty=True)
    _number(f"{at}: line", step.line, 0, INTEGER_MAX)
    if step.weight is not None:
        _number(f"{at}: weight", step.weight, 0, INTEGER_MAX)
    if step.timeout_s is not None:
        _number(f"{at}: timeout_s", step.timeout_s, 0.0, PAUSE_MAX_S, above=True)
    _count(f"{at}: expect", step.expect, ITEMS_MAX)
    for low, high in step.expect:
        _number(f"{at}: expect", low, 0, high)
        _number(f"{at}: expect", high, low, INTEGER_MAX)


def _profile(at: str, profile: Profile) -> None:
    # Only a ramp may begin without a user. The users of the other models are split over the
    # shares, and nothing cannot be split.
    least = 0 if profile.model == "ramp" else 1
    _number(f"{at}.vus", profile.vus, least, USERS_MAX)
    _number(f"{at}.max_vus", profile.max_vus, 0, USERS_MAX)
    _number(f"{at}.duration_s", profile.duration_s, 0.0, DURATION_MAX_S, above=True)
    _number(f"{at}.grace_s", profile.grace_s, 0.0, PAUSE_MAX_S)
    least = 1 if profile.model == "iterations" else 0
    _number(f"{at}.iterations", profile.iterations, least, ITERATIONS_MAX)
    _number(f"{at}.iterations_per_vu", profile.iterations_per_vu, 0, ITERATIONS_MAX)
    is_open = profile.model == "open"
    _number(f"{at}.rate_per_s", profile.rate_per_s, 0.0, RATE_MAX_PER_S, above=is_open)
    if profile.think_s is not None:
        low, high = profile.think_s
        _number(f"{at}.think_s", high, 0.0, PAUSE_MAX_S)
        _number(f"{at}.think_s", low, 0.0, high)
    if profile.pacing_s is not None:
        _number(f"{at}.pacing_s", profile.pacing_s, 0.0, PAUSE_MAX_S)
    _count(f"{at}.stages", profile.stages, STAGES_MAX)
    most = RATE_MAX_PER_S if profile.model == "open-ramp" else float(USERS_MAX)
    for stage in profile.stages:
        _number(f"{at}.stages.duration_s", stage.duration_s, 0.0, DURATION_MAX_S)
        _number(f"{at}.stages.target", stage.target, 0.0, most)
    if profile.model in ("ramp", "open-ramp"):
        _stages(at, profile)


def _stages(at: str, profile: Profile) -> None:
    length_s = math.fsum(stage.duration_s for stage in profile.stages)
    # The end of the plan is read from `duration_s` and its course from the stages: starts that
    # are planned after the end would all fall on the last moment.
    if length_s <= 0.0 or abs(length_s - profile.duration_s) > 0.001:
        raise LimitExceeded(
            f"{at}.stages take {length_s:g} s; they must take duration_s, "
            f"which is {profile.duration_s:g}, and more than 0"
        )


def _number(field: str, value: float, least: float, most: float, *, above: bool = False) -> None:
    """`above`: the value must be above `least`, not equal to it."""
    # Every comparison with nan is false.
    inside = least < value <= most if above else least <= value <= most
    if not inside:
        low = f"above {least:,.12g}" if above else f"at least {least:,.12g}"
        raise LimitExceeded(f"{field} is {value!r}; it must be {low} and at most {most:,.12g}")


def _count(field: str, items: Collection[object], most: int) -> None:
    if len(items) > most:
        raise LimitExceeded(f"{field} has {len(items):,} entries; at most {most:,} are allowed")


def _name(field: str, name: str, *, empty: bool = False) -> None:
    if len(name) > NAME_MAX or not (name or empty):
        text = f"{field} has {len(name):,} characters ({_shown(name)})"
        least = 0 if empty else 1
        raise LimitExceeded(f"{text}; a name must have {least} to {NAME_MAX}")
    if _UNFIT.search(name):
        raise LimitExceeded(
            f"{field} is {_shown(name)}; a name must be one line without control characters"
        )


def _text(field: str, text: str, most: int) -> None:
    if len(text) > most:
        raise LimitExceeded(
            f"{field} has {len(text):,} characters ({_shown(text)}); at most {most:,} are allowed"
        )


def _names(field: str, names: Collection[str]) -> None:
    _count(field, names, ITEMS_MAX)
    for name in names:
        _name(field, name)


def _texts(field: str, texts: Collection[str]) -> None:
    _count(field, texts, ITEMS_MAX)
    for text in texts:
        _text(field, text, TEXT_MAX)


def _table(field: str, table: Mapping[str, str]) -> None:
    _count(field, table, ITEMS_MAX)
    for name, value in table.items():
        _name(field, name)
        # The value may be a secret, so the line does not show it.
        if len(value) > SHAPE_MAX:
            length = f"{len(value):,} characters"
            raise LimitExceeded(f"{field} {name} has {length}; at most {SHAPE_MAX:,} are allowed")


def _choice(field: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise LimitExceeded(f"{field} is {_shown(value)}; it must be {' or '.join(choices)}")


def _shown(text: str) -> str:
    """Quoted, in one line, and short."""
    return ascii(text if len(text) <= 40 else f"{text[:37]}...")
