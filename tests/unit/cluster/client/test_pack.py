"""A file becomes a submission: what breaks a limit is refused before anything is sent."""

from __future__ import annotations

import msgspec
import pytest

from squall.api.errors import ConfigError
from squall.cluster.client.pack import pack
from squall.cluster.protocol.submission_limits import DESCRIPTION_MAX_BYTES, FILES_MAX
from squall.engine.core_protocol import Loaded
from squall.engine.plan.bundle_inputs import BundleInputs
from squall.engine.run_options import RunOptions
from squall.stats.manifest import FileManifest, StepManifest, WorkflowManifest
from tests.fakes.datacenter import workflow


def loaded(*workflows: WorkflowManifest) -> Loaded:
    return Loaded(FileManifest(path="shop.py", workflows=list(workflows)), 1024)


def inputs(files: dict[str, bytes]) -> BundleInputs:
    return BundleInputs("shop.py", {"shop.py": b"", **files}, RunOptions(file="shop.py"))


def test_a_bundle_may_hold_as_many_files_as_its_limit_says() -> None:
    many = {f"data/customer-{n:06}.json": b"" for n in range(FILES_MAX - 1)}
    submission, bundle = pack(loaded(workflow("Shop")), inputs(many))
    assert len(bundle.manifest.files) == FILES_MAX
    assert len(msgspec.msgpack.encode(submission)) < DESCRIPTION_MAX_BYTES / 10


def test_what_breaks_a_limit_is_refused_on_this_machine() -> None:
    steps = [StepManifest(name=f"s{n}") for n in range(1_001)]
    long = msgspec.structs.replace(workflow("Shop"), steps=steps)
    with pytest.raises(ConfigError, match=r"steps has 1,001 entries; at most 1,000 are allowed"):
        pack(loaded(long), inputs({}))


def test_a_description_that_no_command_can_hold_is_refused_on_this_machine() -> None:
    drawn = [
        msgspec.structs.replace(workflow(f"Shop{n}"), shape="x" * 60_000, depends=[])
        for n in range(5)
    ]
    with pytest.raises(ConfigError, match=r"has 30\d,\d\d\d bytes; at most 262,144 are allowed"):
        pack(loaded(*drawn), inputs({}))


def with_choice(name: str, choice: str) -> WorkflowManifest:
    return msgspec.structs.replace(workflow(name), on_control_loss=choice, depends=[])


@pytest.mark.parametrize(
    ("flag", "in_the_file", "packed"),
    [
        ("", ["", ""], "stop"),
        ("", ["", "continue"], "continue"),
        ("stop", ["continue", "continue"], "stop"),
        ("continue", ["stop", ""], "continue"),
    ],
)
def test_the_flag_or_else_the_file_says_what_workers_do_without_a_manager(
    flag: str, in_the_file: list[str], packed: str
) -> None:
    workflows = [with_choice(f"Shop{n}", choice) for n, choice in enumerate(in_the_file)]
    made = inputs({})
    options = msgspec.structs.replace(made.options, on_control_loss=flag)
    submission, _ = pack(loaded(*workflows), BundleInputs(made.entry, made.files, options))
    assert submission.on_control_loss == packed


def test_workflows_of_one_job_cannot_differ_in_what_they_do_without_a_manager() -> None:
    both = [with_choice("Shop", "stop"), with_choice("Browse", "continue")]
    with pytest.raises(ConfigError, match="Shop and Browse have different on_control_loss"):
        pack(loaded(*both), inputs({}))
