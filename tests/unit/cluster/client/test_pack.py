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
