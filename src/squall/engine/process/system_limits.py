"""Limits of the operating system for one core process: file descriptors and cores.

Decides how many connections a process may plan for, and how many core processes a machine
can carry. It only reads and raises limits of its own process; it never lowers one, and never
fails a run because a limit cannot be read.
"""

from __future__ import annotations

import math
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path

DESCRIPTOR_RESERVE = 32
"""Kept free for data files, resolver sockets and the log."""

UNLIMITED_DESCRIPTORS = 1 << 20
"""Used where the limit is "unlimited": the default of fs.nr_open on Linux."""

MACOS_DESCRIPTORS = 10_240
"""OPEN_MAX of macOS: the most it grants, although it shows "unlimited"."""


def raise_descriptor_limit() -> int:
    """Lift the soft descriptor limit to the hard one; returns the limit now in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = (hard, MACOS_DESCRIPTORS) if sys.platform == "darwin" else (hard,)
    for limit in wanted:
        if soft == resource.RLIM_INFINITY or (0 <= limit <= soft):
            break
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        except (OSError, ValueError):
            continue
        soft = limit
        break
    return UNLIMITED_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def descriptor_budget() -> int:
    """How many more descriptors this process may open for connections, at least 0."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        soft = UNLIMITED_DESCRIPTORS
    return max(0, soft - _open_descriptors() - DESCRIPTOR_RESERVE)


def available_cores(
    *, membership: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")
) -> int:
    """Cores this process may use: CPU affinity, cut by a container's CPU quota."""
    if sys.platform == "linux":
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quota = _cpu_quota(membership, mount)
    if quota is not None:
        cores = min(cores, math.ceil(quota))
    return max(1, cores)


def _open_descriptors() -> int:
    for listing in ("/proc/self/fd", "/dev/fd"):
        try:
            # The listing itself holds one descriptor while it is read.
            return max(0, len(os.listdir(listing)) - 1)
        except OSError:
            continue
    return 0


def _cpu_quota(membership: Path, mount: Path) -> float | None:
    """The tightest CPU quota, in cores, of the process's control group and its parents."""
    quotas: list[float] = []
    for line in _read(membership).splitlines():
        _, controllers, group = [*line.split(":", 2), "", "", ""][:3]
        if not controllers:
            quotas += _quotas_upwards(mount, group, _quota_v2)
        elif "cpu" in controllers.split(","):
            for name in (controllers, "cpu"):
                quotas += _quotas_upwards(mount / name, group, _quota_v1)
    return min(quotas, default=None)


def _quotas_upwards(
    mount: Path, group: str, quota_of: Callable[[Path], float | None]
) -> list[float]:
    # Inside a container the group's path is often the host's and does not exist below
    # the mount; its parents, the mount itself among them, still carry the quota.
    found: list[float] = []
    folder = mount / group.lstrip("/")
    for candidate in (folder, *folder.parents):
        quota = quota_of(candidate)
        if quota is not None:
            found.append(quota)
        if candidate == mount:
            break
    return found


def _quota_v2(folder: Path) -> float | None:
    fields = _read(folder / "cpu.max").split()
    return _cores(fields[0], fields[1]) if len(fields) == 2 else None


def _quota_v1(folder: Path) -> float | None:
    return _cores(_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))


def _cores(quota: str, period: str) -> float | None:
    """None without a quota, which is `max` in version 2 and -1 in version 1."""
    try:
        quota_us, period_us = int(quota), int(period)
    except ValueError:
        return None
    return quota_us / period_us if quota_us > 0 and period_us > 0 else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
