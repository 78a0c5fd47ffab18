"""One datacenter without faults, shared by the tests that do no damage; see `lab.nodes`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.lab.nodes import Cluster
from tests.lab.target import TargetHandle, running_target


@pytest.fixture(scope="session")
def cluster_target() -> Iterator[TargetHandle]:
    with running_target(["--seed", "7"]) as handle:
        yield handle


@pytest.fixture(scope="session")
def shared_cluster(
    tmp_path_factory: pytest.TempPathFactory, cluster_target: TargetHandle
) -> Iterator[Cluster]:
    """Two workers with two cores each. A test leaves it as it was: no job running."""
    folder: Path = tmp_path_factory.mktemp("cluster")
    with Cluster(folder, cluster_target, workers=2, cores=2) as made:
        yield made


@pytest.fixture
def dc(shared_cluster: Cluster) -> Cluster:
    shared_cluster.target.reset()
    return shared_cluster
