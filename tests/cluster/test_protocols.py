"""Runs of several protocols on a datacenter count by protocol what the servers count."""

from __future__ import annotations

import pytest

from tests.cluster.lab.nodes import Cluster
from tests.lab.exit_codes import check_code
from tests.lab.protocol_servers import CLOSED, OPEN, running_protocol_servers


@pytest.mark.parametrize("load", [CLOSED, OPEN], ids=["closed", "open"])
def test_the_counts_of_each_protocol_are_those_of_its_server(dc: Cluster, load: str) -> None:
    with running_protocol_servers() as servers:
        ended = dc.run(
            dc.write(servers.workflow(load, dc.folder)), "--workers", "2", "--insecure"
        ).end()
        check_code(ended)
        servers.check(ended.document, dc.target.counts()["total"])
    assert "websocket" in ended.out and "messages" in ended.out
