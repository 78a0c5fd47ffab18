"""The three roles of a cluster, and the secret that two of them use with each other.

A node can derive every role's secret; a worker or client holds only its own. Two sides
therefore use the secret of the weaker one.
"""

from __future__ import annotations

from enum import IntEnum


class Role(IntEnum):
    """Higher is stronger: the holder of a secret can act as every role at or below it."""

    CLIENT = 1
    WORKER = 2
    NODE = 3
    """Managers."""

    @property
    def label(self) -> str:
        return self.name.lower()


def shared_role(one: Role, other: Role) -> Role:
    return min(one, other)
