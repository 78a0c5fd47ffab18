"""Regions with addresses of their own: a network namespace for each, joined by a bridge.

    region eu: eth0 10.77.1.1 ──┐
    region us: eth0 10.77.2.1 ──┼── bridge 10.77.0.1 in the namespace of the hub
    region ap: eth0 10.77.3.1 ──┘

Nothing of it is connected to the network of the machine. A region is unplugged by taking its port
of the bridge down. Between two regions there may be a delay and loss: by `tc netem`, or, if the
kernel has no netem, by a router instead of the bridge (`far_lines`). It needs root and the kernel's
veth and bridge, or TUN.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

NETWORK = "10.77"


class NotPermitted(Exception):
    """Why this machine cannot have such regions."""


@dataclass(frozen=True)
class Regions:
    """The namespaces of a test: their names begin with `prefix`."""

    prefix: str
    names: tuple[str, ...]
    far: tuple[float, float] = (0.0, 0.0)
    """The round trip in milliseconds and the loss of each way in percent that a router has to
    make; zero: the kernel makes them, or there are none."""

    @property
    def hub(self) -> str:
        return f"{self.prefix}hub"

    def namespace(self, region: str) -> str:
        return f"{self.prefix}{region}"

    def address(self, region: str) -> str:
        return f"{NETWORK}.{self.names.index(region) + 1}.1"

    def within(self, region: str) -> list[str]:
        """What to put before a command so that it runs there."""
        return ["ip", "netns", "exec", self.namespace(region)]

    def plug(self, region: str, *, is_in: bool) -> None:
        state = "up" if is_in else "down"
        _done("ip", "-n", self.hub, "link", "set", f"to-{region}", state)

    def _create(self) -> None:
        for namespace in (self.hub, *map(self.namespace, self.names)):
            _done("ip", "netns", "add", namespace)
            _done("ip", "-n", namespace, "link", "set", "lo", "up")

    def _bridge(self) -> None:
        hub = self.hub
        _done("ip", "-n", hub, "link", "add", "bridge", "type", "bridge")
        _done("ip", "-n", hub, "address", "add", f"{NETWORK}.0.1/16", "dev", "bridge")
        _done("ip", "-n", hub, "link", "set", "bridge", "up")
        for region in self.names:
            namespace, port = self.namespace(region), f"to-{region}"
            _done(
                "ip", "-n", hub, "link", "add", port, "type", "veth",
                "peer", "name", "eth0", "netns", namespace,
            )  # fmt: skip
            _done("ip", "-n", hub, "link", "set", port, "master", "bridge", "up")
            address = f"{self.address(region)}/16"
            _done("ip", "-n", namespace, "address", "add", address, "dev", "eth0")
            _done("ip", "-n", namespace, "link", "set", "eth0", "up")

    def _make_far(self, rtt_ms: float, loss_percent: float) -> None:
        """A packet from region to region leaves two queues, one way; its answer two more."""
        how = ("netem", "delay", f"{rtt_ms / 4:g}ms", "loss", f"{loss_percent / 2:g}%")
        for region in self.names:
            namespace = self.namespace(region)
            _done("tc", "-n", namespace, "qdisc", "add", "dev", "eth0", "root", *how)
            _done("tc", "-n", self.hub, "qdisc", "add", "dev", f"to-{region}", "root", *how)

    def _delete(self) -> None:
        for namespace in (*map(self.namespace, self.names), self.hub):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)


@contextlib.contextmanager
def regions(
    names: Sequence[str], *, rtt_ms: float = 0.0, loss_percent: float = 0.0
) -> Generator[Regions]:
    """Raises `NotPermitted` where the machine does not allow it."""
    if shutil.which("ip") is None:
        raise NotPermitted("ip is not installed: apt-get install iproute2")
    made = Regions(f"squall{os.getpid()}", tuple(names))
    far = (rtt_ms, loss_percent)
    try:
        made._create()
        if any(far) and not _has_netem(made.hub):
            made = replace(made, far=far)
        else:
            made._bridge()
            if any(far):
                made._make_far(*far)
        yield made
    finally:
        made._delete()


def _has_netem(namespace: str) -> bool:
    words = ("tc", "-n", namespace, "qdisc", "add", "dev", "lo", "root", "netem", "delay", "0ms")
    with contextlib.suppress(NotPermitted, FileNotFoundError):
        _done(*words)
        _done("tc", "-n", namespace, "qdisc", "del", "dev", "lo", "root")
        return True
    return False


def _done(*words: str) -> None:
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise NotPermitted(f"{' '.join(words)}: {ended.stderr.strip()}")
