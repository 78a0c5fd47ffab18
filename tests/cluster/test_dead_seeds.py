"""A worker whose list of managers is mostly out of date joins as fast as with a good one."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Generator
from pathlib import Path

from tests.cluster.lab.nodes import Cluster, cluster
from tests.lab.ports import free_ports
from tests.lab.target import TargetHandle

DIAL_TIMEOUT_S = 5.0
"""What each address that answers nothing would cost if it were waited for."""
SYN_SENT = "02"


@contextlib.contextmanager
def black_hole() -> Generator[int]:
    """The port of a listener that never answers: its queue is full, so the kernel drops new
    connections."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        for _ in range(8):
            knocking = stack.enter_context(socket.socket())
            knocking.settimeout(0.1)
            with contextlib.suppress(TimeoutError):
                knocking.connect(("127.0.0.1", port))
        yield port


def knocks_at(ports: list[int]) -> int:
    """Connections of this machine that wait for an answer of one of these ports."""
    found = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, _, remote, state = line.split()[:4]
        found += state == SYN_SENT and int(remote.rpartition(":")[2], 16) in ports
    return found


def joined_after_s(dc: Cluster, managers: list[int]) -> float:
    """How long a new boot of the worker takes until it is registered."""
    node = dc.nodes["w1"]
    dc.kill("w1")
    node.words[node.words.index("--managers") + 1] = ",".join(f"127.0.0.1:{p}" for p in managers)
    told = node.said().count("worker_registered")
    began = time.monotonic()
    dc.start("w1")
    while node.said().count("worker_registered") == told:
        assert time.monotonic() - began < 60.0, node.said()[-2000:]
        time.sleep(0.01)
    return time.monotonic() - began


def test_a_worker_joins_at_once_though_most_addresses_answer_nothing(
    tmp_path: Path, cluster_target: TargetHandle
) -> None:
    with (
        black_hole() as one,
        black_hole() as two,
        black_hole() as three,
        cluster(tmp_path, cluster_target, workers=1) as dc,
    ):
        (refusing,) = free_ports(1)
        live = int(dc.addresses.rpartition(":")[2])
        holes = [one, two, three]
        before = knocks_at(holes)
        straight_s = min(joined_after_s(dc, [live]) for _ in range(2))
        around_s = min(joined_after_s(dc, [*holes, refusing, live]) for _ in range(2))
        assert around_s < straight_s + DIAL_TIMEOUT_S / 2, (straight_s, around_s)
        until = time.monotonic() + 60.0
        while knocks_at(holes) > before:
            assert time.monotonic() < until, "it still knocks at addresses that it does not need"
            time.sleep(0.05)
