"""Mutual TLS between real processes: which peers are accepted, and what the others are answered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from squall.cluster.client.access import link_tls
from squall.cluster.wire.links.switchboard import LinkTLS
from squall.settings.shared_sections import TLSSettings
from tests.cluster.lab.group import states, until
from tests.cluster.lab.nodes import Cluster, slower_timers
from tests.lab.certificates import Authority
from tests.lab.target import TargetHandle

FLOW = """
class Load(Workflow):
    vus = 4
    duration = "1s"

    @step()
    async def get(self, url: URL = "/?delay=10ms") -> HTTPResponse:
        return await self.client.http.get(url)
"""


class TLSCluster(Cluster):
    """A group of three managers with certificates, and a worker."""

    def __init__(self, folder: Path, target: TargetHandle) -> None:
        self.authority = Authority(folder / "authority")
        stranger = Authority(folder / "stranger")
        self.files = {
            "client": (*self.authority.issue("client", "client"), self.authority.ca),
            "m": (*self.authority.issue("m", "node"), self.authority.ca),
            "w1": (*self.authority.issue("w1", "worker:w1"), self.authority.ca),
            # Of another role, and of another authority than the one it trusts.
            "w2": (*self.authority.issue("w2", "client"), self.authority.ca),
            "w3": (*stranger.issue("w3", "worker"), self.authority.ca),
        }
        super().__init__(folder, target, managers=3, workers=4)
        self.strangers = {name: self.nodes.pop(name) for name in ("w2", "w3", "w4")}

    @property
    def environment(self) -> dict[str, str]:
        return super().environment | self._tls("client")

    @property
    def tls(self) -> LinkTLS | None:
        certificate, key, ca = map(str, self.files["client"])
        return link_tls(TLSSettings(certificate=certificate, key=key, ca=ca))

    def environment_of(self, name: str) -> dict[str, str]:
        plain = super().environment
        if name.startswith("m"):
            return plain | slower_timers(self.factor) | self._tls("m")
        return plain | (self._tls(name) if name in self.files else {})

    def _tls(self, name: str) -> dict[str, str]:
        keys = ("CERTIFICATE", "KEY", "CA")
        files = zip(keys, self.files[name], strict=True)
        return {f"SQUALL_TLS__{key}": str(file) for key, file in files}

    def said_by_managers(self) -> str:
        return "\n".join(self.nodes[name].said() for name in self.managers())


@pytest.fixture(scope="module")
def secured(
    tmp_path_factory: pytest.TempPathFactory, cluster_target: TargetHandle
) -> Iterator[TLSCluster]:
    with TLSCluster(tmp_path_factory.mktemp("tls"), cluster_target) as made:
        yield made


def test_a_job_runs_on_nodes_that_know_each_other_by_certificate(secured: TLSCluster) -> None:
    ended = secured.run(secured.write(FLOW)).end()
    assert ended.document["status"] == "completed"
    until(
        lambda: sorted(states_of(secured)) == ["follows", "follows", "leads"],
        "all members answer",
    )


def states_of(made: TLSCluster) -> list[str]:
    return list(states(made).values())


@pytest.mark.parametrize(
    ("worker", "its_line", "managers_line"),
    [
        ("w2", "its certificate claims client, and it connects as worker w2", "claims client"),
        ("w3", "it does not accept our certificate", "not signed by our authority"),
        ("w4", "it speaks TLS and this side does not", "it does not speak TLS"),
    ],
    ids=["another role", "another authority", "no certificate"],
)
def test_a_worker_without_the_right_certificate_is_refused_in_words(
    secured: TLSCluster, worker: str, its_line: str, managers_line: str
) -> None:
    secured.nodes[worker] = secured.strangers[worker]
    secured.start(worker)
    try:
        until(lambda: its_line in secured.nodes[worker].said(), "the worker says why")
        # A manager may write its line after the worker has its answer.
        until(lambda: "peer_refused" in secured.said_by_managers(), "the managers say so")
        until(lambda: managers_line in secured.said_by_managers(), "with the reason")
        assert worker not in [node["name"] for node in secured.ask("nodes")["nodes"]]
    finally:
        secured.kill(worker)
        del secured.nodes[worker]


def test_a_client_without_the_right_certificate_is_told_why(
    secured: TLSCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(secured.files, "client", secured.files["w1"])
    ended = secured.squall("nodes", "--to", secured.addresses)
    assert ended.code == 3
    assert "its certificate claims worker:w1, and it connects as client" in ended.err
