"""The three roles of the cluster and which secret two of them share.

A node can make every role's secret, a worker or client holds only its own. Two sides
therefore meet on the secret of the weaker one.
"""

from __future__ import annotations

from enum import IntEnum


class Role(IntEnum):
    """Higher is stronger: who holds a secret can act as the roles at or below it."""

    CLIENT = 1
    WORKER = 2
    NODE = 3
    """Gates and managers."""

    @property
    def label(self) -> str:
        return self.name.lower()


def shared_role(one: Role, other: Role) -> Role:
    return min(one, other)
