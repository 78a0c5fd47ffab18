"""What an answer to a client says beside its content: how recent it is, and the managers."""

from __future__ import annotations

from typing import Literal

import msgspec


class ReadFacts(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How recent an answer is."""

    level: Literal["strong", "session"]
    """strong: everything that was committed before the request. session: at least what the client
    has seen before."""
    op: int
    """The last command that the answering manager had applied."""
    group: str = ""
    """The op numbers of two groups cannot be compared; a recovered group is another one."""
    epoch: int = 0
    view: int = 0
    age_s: float = 0.0
    """How far the answer may lie in the past: the time since the manager heard the primary."""
    managers: list[str] = []
    """The addresses of the group's managers, which clients keep; empty while one is unknown."""
