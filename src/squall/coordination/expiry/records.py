"""The expiry rules, the stored progress of a sweep, and the events of a sweep."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Literal

import msgspec

from squall.coordination.errors import ConfigurationError
from squall.coordination.events import Event
from squall.coordination.records.schemas import Schema
from squall.coordination.stores.interface import Record, check_own_name, kind_of, make_key
from squall.coordination.value_rules import async_function, check, one_of, or_none, seconds

PROGRESS = make_key("sweeps")
ARCHIVE = "archive"
ACTIONS = ("delete", "archive", "callback")

Action = Literal["delete", "archive", "callback"]
Callback = Callable[[Record], Awaitable[Any]]


class ExpiryRule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule: records of a kind, or those below `kind/part`, expire by their age since the last
    write, or at a time in their JSON."""

    prefix: str
    expires_after: float | None = None
    expires_field: str = ""
    """The JSON field with the time: seconds since 1970, by the store's clock."""
    action: Action = "delete"
    callback: Callback | None = None

    @property
    def kind(self) -> str:
        return kind_of(self.prefix)

    def covers(self, key: str) -> bool:
        return key == self.prefix or key.startswith(f"{self.prefix}/")

    def is_expired(self, record: Record, now_s: float) -> bool:
        """A record without a valid time does not expire."""
        if self.expires_after is not None:
            return record.age_s > self.expires_after
        try:
            body = msgspec.json.decode(record.value, type=dict[str, Any])
        except (msgspec.MsgspecError, RecursionError):
            return False
        at = body.get(self.expires_field)
        return isinstance(at, int | float) and not isinstance(at, bool) and at <= now_s


class SweepProgress(Schema, frozen=True, kw_only=True):
    """How far the sweep of each rule came; "" is the start."""

    signed_as: ClassVar[str] = "Progress"
    after: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    finished: float = 0.0
    """Store time at which the last complete sweep ended."""


class SweepStarted(Event, frozen=True, kw_only=True):
    """The leader began a sweep."""

    name: ClassVar[str] = "plg:ttl:cleanup-started"
    epoch: int


class SweepFinished(Event, frozen=True, kw_only=True):
    """The leader finished a sweep."""

    name: ClassVar[str] = "plg:ttl:cleanup-finished"
    epoch: int
    scanned: int
    deleted: int
    failed: int
    duration: float


def check_rule(rule: ExpiryRule) -> None:
    make_key(*rule.prefix.split("/"))
    check_own_name(rule.prefix)
    if (rule.expires_after is None) == (not rule.expires_field):
        raise ConfigurationError(f"ttl of {rule.prefix}: use either expires_after or expires_field")
    check("expires_after", rule.expires_after, or_none(seconds(above=0.0, example=3600.0)))
    check("action", rule.action, one_of(*ACTIONS, example="delete"))
    check("callback", rule.callback, or_none(async_function("f")))
    if (rule.action == "callback") != (rule.callback is not None):
        raise ConfigurationError(
            f"ttl of {rule.prefix}: action 'callback' needs a callback, other actions take none"
        )
