"""Long lines between regions for a kernel without netem: a router of IP packets that delays each
and drops some. It runs in the namespace of the hub.

    python -m tests.cluster.lab.far_lines PREFIX ONE_WAY_MS LOSS_PERCENT REGION...

Each region gets a TUN device with its address; the router has the other ends. Standard input takes
"out REGION" and "in REGION", each answered by a line; its end ends the router.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import time
from collections.abc import Sequence

from tests.cluster.lab.namespaces import NETWORK, Regions

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
DEVICE = "far0"
PACKET_MAX = 65_536
DESTINATION = slice(16, 20)
"""Of the header of IPv4."""


class FarLines:
    """The ends of all lines; number 0 is the hub, the others are the regions in their order."""

    def __init__(self, regions: Regions, one_way_s: float, loss: float) -> None:
        self._one_way_s = one_way_s
        self._loss = loss
        self._draw = random.Random(1)
        # The hub's comes last, because a device has the same name before it is moved away.
        far = [_opened(regions.namespace(name), regions.address(name)) for name in regions.names]
        self._ends = [_opened("", f"{NETWORK}.0.1"), *far]
        self._names = ["", *regions.names]
        self._unplugged: set[int] = set()
        # When a packet arrives, a number for the order of equal times, its line, the packet.
        self._under_way: list[tuple[float, int, int, bytes]] = []
        self._count = 0

    def serve(self) -> None:
        while True:
            due_s = self._under_way[0][0] - time.monotonic() if self._under_way else None
            readable, _, _ = select.select(
                [0, *self._ends], [], [], None if due_s is None else max(due_s, 0.0)
            )
            if 0 in readable and not self._obey(os.read(0, 1024).decode()):
                return
            for source, end in enumerate(self._ends):
                if end in readable:
                    self._take(source, os.read(end, PACKET_MAX))
            self._deliver()

    def _obey(self, text: str) -> bool:
        for line in text.splitlines():
            word, _, name = line.partition(" ")
            number = self._names.index(name)
            self._unplugged.add(number) if word == "out" else self._unplugged.discard(number)
            print("done", flush=True)
        return bool(text)

    def _take(self, source: int, packet: bytes) -> None:
        if len(packet) < DESTINATION.stop or packet[0] >> 4 != 4:
            return
        target = packet[DESTINATION][2]
        if target >= len(self._ends) or self._draw.random() < self._loss:
            return
        if {source, target} & self._unplugged:
            return
        self._count += 1
        at_s = time.monotonic() + self._one_way_s
        heapq.heappush(self._under_way, (at_s, self._count, target, packet))

    def _deliver(self) -> None:
        now = time.monotonic()
        while self._under_way and self._under_way[0][0] <= now:
            _, _, target, packet = heapq.heappop(self._under_way)
            if target not in self._unplugged:
                os.write(self._ends[target], packet)


def _opened(namespace: str, address: str) -> int:
    """The router's end of a line whose other end is in the namespace; "" is this one."""
    end = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
    there = ["-n", namespace] if namespace else []
    if namespace:
        subprocess.run(["ip", "link", "set", DEVICE, "netns", namespace], check=True)
    for words in (
        ["address", "add", f"{address}/16", "dev", DEVICE],
        ["link", "set", DEVICE, "up"],
    ):
        subprocess.run(["ip", *there, *words], check=True)
    return end


def main(words: Sequence[str]) -> None:
    prefix, one_way_ms, loss_percent, *names = words
    regions = Regions(prefix, tuple(names))
    lines = FarLines(regions, float(one_way_ms) / 1000.0, float(loss_percent) / 100.0)
    print("done", flush=True)
    lines.serve()


if __name__ == "__main__":
    main(sys.argv[1:])
