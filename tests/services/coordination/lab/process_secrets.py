"""Checks that the processes which a test starts leave no secret in the folder of the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.secret_watch import Watch
from tests.services.coordination.programs import caller, receiver, sleeper, worker

SECRETS = tuple(each.SECRET for each in (caller, receiver, sleeper, worker))


@pytest.fixture(autouse=True)
def processes_tell_nothing(
    request: pytest.FixtureRequest, nothing_secret_is_told: Watch
) -> Iterator[None]:
    nothing_secret_is_told.know(SECRETS)
    yield
    folder = request.node.funcargs.get("tmp_path")
    if folder is not None:
        nothing_secret_is_told.read(folder)
