"""The author's code on a worker gets neither the cluster's secrets nor their files' names, and no
descriptor but its own two.
"""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from squall.engine.process.core_pool import CoreHandle, WorkerHosting, author_environment
from squall.engine.process.lease import LeaseMemory

SECRETS = (
    "SQUALL_SECRET",
    "SQUALL_SECRET_FILE",
    "SQUALL_CLUSTER_SECRET_FILE",
    "SQUALL_CLUSTER__SECRET_FILE",
    "SQUALL_CLUSTER__ACCEPTED_SECRET_FILES",
    "SQUALL_TLS__KEY",
    "SQUALL_STORE",
    "SQUALL_COORD_STORE",
    "BLOCKING_COORDINATION_SECRET",
)
OTHERS = ("PATH", "HOME", "API_SECRET", "SQUALL_ATTEMPT", "SQUALL_CLUSTER_ID")


@pytest.mark.parametrize("name", SECRETS)
def test_a_variable_that_holds_or_names_a_secret_is_left_out(name: str) -> None:
    assert author_environment({name: "x"}) == {}


@pytest.mark.parametrize("name", OTHERS)
def test_every_other_variable_stays(name: str) -> None:
    assert author_environment({name: "x"}) == {name: "x"}


def test_a_core_process_of_a_worker_starts_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, Any]] = []

    class Started:
        pid = 1

        def __init__(self, command: list[str], **options: Any) -> None:
            started.append(options)

    monkeypatch.setattr(subprocess, "Popen", Started)
    monkeypatch.setenv("SQUALL_SECRET", "of the cluster")
    monkeypatch.setenv("API_SECRET", "of the author")
    lease = LeaseMemory()
    core = CoreHandle(0, WorkerHosting(lease, 0, {"SQUALL_MARK": "m"}))
    (options,) = started
    assert "SQUALL_SECRET" not in options["env"]
    assert options["env"]["API_SECRET"] == "of the author"
    assert options["env"]["SQUALL_MARK"] == "m"
    # Its stream and its lease; `close_fds`, the default, closes all others.
    assert len(options["pass_fds"]) == 2 and "close_fds" not in options
    assert options["start_new_session"]
    core._socket.close()  # pyright: ignore[reportPrivateUsage]
    lease.close()
