"""A worker and clients that know managers by a name of a real DNS server only."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.lab.group import add_manager, states, until
from tests.cluster.lab.nodes import Cluster, Ended
from tests.lab.dns_server import DNSServer, dns_server
from tests.lab.exit_codes import check_code
from tests.lab.ports import free_ports
from tests.lab.target import TargetHandle

SERVICE = "_squall._tcp.test"
NAME = f"srv:{SERVICE}"
PLAN = 20
LOAD = f"""
class Load(Workflow):
    vus = 2
    iterations = {PLAN}

    @step()
    async def get(self, url: URL = "/?delay=10ms") -> HTTPResponse:
        return await self.client.http.get(url, headers=SENDER)
"""


class NamedCluster(Cluster):
    """Every command and node asks the DNS server of the test."""

    dns: DNSServer

    @property
    def environment(self) -> dict[str, str]:
        return super().environment | {"SQUALL_CLUSTER__DNS_SERVER": self.dns.address}


def manager_moves(made: Cluster, port: int) -> None:
    """The machine of the only manager is replaced: same disk, another address."""
    words = made.nodes["m1"].words
    words[words.index("--listen") + 1] = f"127.0.0.1:{port}"
    words[words.index("--members") + 1] = f"m1=127.0.0.1:{port}"
    made.kill("m1")
    made.start("m1")


def check_run(made: Cluster, ended: Ended, before: int) -> None:
    check_code(ended)
    counted = made.target.counts()["total"] - before
    assert counted == ended.document["workflows"][0]["requests"]["sent"] == PLAN


def test_a_name_leads_to_managers_that_were_all_replaced(
    tmp_path: Path, cluster_target: TargetHandle
) -> None:
    cluster_target.reset()
    (new, dead) = free_ports(2)
    with dns_server() as dns:
        made = NamedCluster(tmp_path, cluster_target, managers=1, workers=1, least_factor=2.0)
        made.dns = dns
        worker = made.nodes["w1"]
        old = int(made.addresses.rpartition(":")[2])
        dns.publish_service(SERVICE, [dead, old])
        worker.words[worker.words.index("--managers") + 1] = NAME
        with made:
            flow = made.write(LOAD)
            before = cluster_target.counts()["total"]
            check_run(made, made.run(flow, to=NAME).end(), before)

            # Worker and client remember managers that are gone; the name leads to the new one.
            manager_moves(made, new)
            dns.publish_service(SERVICE, [new])
            before = cluster_target.counts()["total"]
            check_run(made, made.run(flow, to=NAME).end(), before)

            # A server that is down is no loss: the managers of the last run are remembered.
            dns.stop()
            before = cluster_target.counts()["total"]
            check_run(made, made.run(flow, to=NAME).end(), before)

            dns.publish("host-record=other.test,127.0.0.1")
            ended = made.squall("nodes", "--to", "dns:missing.test")
            assert ended.code != 0 and ended.err.count("\n") == 1
            assert f"dns:missing.test:7400: no such name; asked {dns.address}" in ended.err


@pytest.mark.nightly
def test_a_rolling_replacement_of_all_managers_strands_neither_worker_nor_client(
    tmp_path: Path, cluster_target: TargetHandle
) -> None:
    cluster_target.reset()
    with Cluster(tmp_path, cluster_target, managers=3, workers=1, least_factor=2.0) as made:
        until(lambda: set(states(made).values()) == {"leads", "follows"}, "all members answer")
        first = made.addresses
        flow = made.write(LOAD)
        check_run(made, made.run(flow, to=first).end(), 0)
        addresses = dict(zip(("m1", "m2", "m3"), first.split(","), strict=True))
        for old, new in (("m1", "m4"), ("m2", "m5"), ("m3", "m6")):
            near = ",".join(f"{name}={address}" for name, address in addresses.items())
            addresses[new] = add_manager(made, new, near)
            del addresses[old]
            ended = made.squall(
                "group", "replace", old, f"{new}={addresses[new]}", "--to", first, within_s=90.0
            )
            assert ended.code == 0, ended.err
            made.kill(old)
        # The client still names the first three, which are all gone; so does the worker, which
        # starts again.
        made.kill("w1")
        made.start("w1")
        before = cluster_target.counts()["total"]
        check_run(made, made.run(flow, to=first).end(), before)
