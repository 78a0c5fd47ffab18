"""The messages by which gates learn the state of datacenters, and clients the list of them.

A gate asks one manager of each datacenter every two seconds. Every manager answers with what it
knows; only the manager that leads knows which workers it hears. The link matches an answer with its
request, so an answer never counts for another probe. The numbers 224 to 229 belong to this module.
"""

from __future__ import annotations

import msgspec

from squall.cluster.protocol.messages import FROM_CLIENT
from squall.cluster.protocol.views import DatacenterView
from squall.cluster.wire.catalogue import message
from squall.cluster.wire.header import MessageClass


@message(224, MessageClass.CONTROL)
class AskDatacenter(msgspec.Struct, frozen=True):
    """A gate's probe. Every manager answers, also one that does not lead."""


@message(225, MessageClass.CONTROL)
class DatacenterState(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The sums of a datacenter, as the answering manager knows them."""

    datacenter: str
    group: str = ""
    """The id of its group; reports of two groups have no order."""
    reported_by: str = ""
    epoch: int = 0
    committed: int = 0
    """With `epoch`, the order of reports: an older one never replaces a newer one."""
    leader: str = ""
    """The manager that leads; empty: the answering one knows of none."""
    leads: bool = False
    """The answering manager leads: it alone knows which workers it hears."""
    leader_address: str = ""
    managers: list[str] = []
    """host:port of all members; empty while one address is unknown."""
    managers_heard: int = 0
    managers_total: int = 0
    workers: int = 0
    """Registered and not gone."""
    healthy: int = 0
    """Of these, the workers that may get work; a manager that does not lead counts all of them."""
    cores: int = 0
    free: int = 0
    """Cores that no job holds, of the healthy workers."""
    queued: int = 0
    """Jobs that wait for cores."""
    active_jobs: int = 0
    overload: int = 0
    """Of the answering manager: 0 healthy, 1 busy, 2 stressed, 3 overloaded."""


@message(226, MessageClass.DATA, senders=FROM_CLIENT)
class ListDatacenters(msgspec.Struct, frozen=True):
    """Asks a gate for its datacenters. Every gate answers, from its own probes."""


@message(227, MessageClass.DATA)
class DatacenterList(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    datacenters: list[DatacenterView]
    reported_by: str = ""
    """The gate that answers."""
