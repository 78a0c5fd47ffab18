"""The keys of all records and streams of a namespace, and how long each is kept.

No other module builds a key. `make_key` checks every part, so that no id can reach the keys of
another one.
"""

from __future__ import annotations

from squall.coordination.stores.interface import DEFAULT_PREFIX, check_prefix, make_key
from squall.coordination.stores.kinds import kept_s

# The lease and the epoch. It never expires: a forgotten epoch would be used again.
LEADER = make_key("leader")
META = make_key("meta")

HEARTBEAT = "heartbeat"
REFUSED = "refused"
REFUSED_TTL_S = kept_s(REFUSED)
SIGNAL_TTL_S = SIGNAL_LIFE_S = kept_s("signal")
ACK_TTL_S = kept_s("ack")
IDEMPOTENCY_TTL_S = kept_s("idempotency")
STATE_TTL_S = kept_s("state")
WARNING_TTL_S = kept_s("warning")
TOMBSTONE_TTL_S = kept_s("tombstone")
MEMBER_TTL_S = kept_s("member")
QUARANTINE_TTL_S = kept_s("quarantine")


def prefix_of(namespace: str, prefix: str = DEFAULT_PREFIX) -> str:
    """The default namespace has the plain prefix; another one appends its name."""
    return check_prefix(prefix if namespace == "default" else f"{prefix}.{namespace}")


def heartbeat(member_id: str) -> str:
    return make_key(HEARTBEAT, member_id)


def member(member_id: str) -> str:
    return make_key("member", member_id)


def tombstone(member_id: str) -> str:
    return make_key("tombstone", member_id)


def warning(member_id: str) -> str:
    return make_key("warning", member_id)


def refused(environment: str) -> str:
    return make_key(REFUSED, environment)


def inbox(receiver_id: str) -> str:
    return make_key("signal", receiver_id)


def ack(sender_id: str, signal_id: str) -> str:
    return make_key("ack", sender_id, signal_id)


def idempotency(receiver_id: str, signal_id: str) -> str:
    return make_key("idempotency", receiver_id, signal_id)


def state(member_id: str) -> str:
    return make_key("state", member_id)


def quarantine(receiver_id: str, signal_id: str) -> str:
    return make_key("quarantine", receiver_id, signal_id)


def durations(task_type: str) -> str:
    """Finished waits of one kind of task, from which timeouts are derived."""
    return make_key("durations", task_type)


def member_id_of(key: str) -> str:
    """The member id of a key whose second part it is."""
    return key.split("/")[1]
