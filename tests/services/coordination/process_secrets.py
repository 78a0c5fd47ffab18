"""The watch over secrets, over the processes that tests start: what they leave in the folder of
their test shows none."""

from __future__ import annotations

from collections.abc import Iterator

import process_caller
import process_receiver
import process_sleeper
import process_worker
import pytest

from secret_watch import Watch

SECRETS = tuple(
    each.SECRET for each in (process_caller, process_receiver, process_sleeper, process_worker)
)


@pytest.fixture(autouse=True)
def processes_tell_nothing(
    request: pytest.FixtureRequest, nothing_secret_is_told: Watch
) -> Iterator[None]:
    nothing_secret_is_told.know(SECRETS)
    yield
    folder = request.node.funcargs.get("tmp_path")
    if folder is not None:
        nothing_secret_is_told.read(folder)
