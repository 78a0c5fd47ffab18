"""Plans a change of members as steps of one epoch each, or refuses it. It does no I/O.

Each step adds, removes or replaces one member, or grows a group from one to three. Sizes 2
and 4 exist only between two steps, because they survive no more failures than 1 and 3.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from squall.api.errors import SquallError
from squall.cluster.ledger.replica.types import Member
from squall.runtime.interfaces import NodeId

SIZES = (1, 3, 5)


class ChangeRefused(SquallError):
    """The requested change is not possible; nothing was changed."""


class NoSuchMember(ChangeRefused):
    """The change names a member that is not in the group."""


@dataclass(frozen=True)
class MemberStep:
    """The members that leave and join in one epoch."""

    gone: tuple[str, ...] = ()
    added: tuple[str, ...] = ()


def steps_of(
    members: Sequence[Member],
    gone: Collection[str],
    added: Collection[str],
    storages: Mapping[str, str],
    role: str = "manager",
) -> list[MemberStep]:
    """The steps that lead to the requested members; none if the group has them already.
    `storages` are the storage ids that nodes reported: a member whose disk was wiped has a new
    one and must be replaced in a change of its own. A refusal calls the members by their `role`."""
    now = {str(member.node): str(member.storage) for member in members}
    fresh = [n for n in added if n not in now or _other_disk(now[n], storages.get(n))]
    if gone and added:
        return _replacement(now, list(gone), list(added), fresh, role)
    leaving = [name for name in gone if name in now]
    size = len(now) - len(leaving) + len([name for name in fresh if name not in now])
    wiped = [name for name in fresh if name in now]
    if wiped:
        raise ChangeRefused(
            f"{wiped[0]} is a member with another disk: squall group replace "
            f"{wiped[0]} {wiped[0]}=HOST:PORT"
        )
    if not leaving and not fresh:
        return []
    if size not in SIZES:
        raise ChangeRefused(
            f"that makes {size} {role}s, but a group has 1, 3 or 5: "
            f"{'add' if fresh else 'remove'} two in one command, or replace one"
        )
    if len(now) == 1 and len(fresh) == 2:
        return [MemberStep(added=tuple(sorted(fresh)))]
    return [MemberStep(added=(name,)) for name in sorted(fresh)] + [
        MemberStep(gone=(name,)) for name in sorted(leaving)
    ]


def _replacement(
    now: Mapping[str, str], gone: list[str], added: list[str], fresh: list[str], role: str
) -> list[MemberStep]:
    if len(gone) != 1 or len(added) != 1:
        raise ChangeRefused(f"{role}s are replaced one at a time")
    old, new = gone[0], added[0]
    if old == new:
        if old not in now:
            raise NoSuchMember(f"no {role} {old} in this group; squall group status lists them")
        return [MemberStep(gone=(old,), added=(new,))] if fresh else []
    if old not in now:
        if new in now and not fresh:
            return []
        raise NoSuchMember(f"no {role} {old} in this group; squall group status lists them")
    if new in now:
        raise ChangeRefused(f"{new} is a member already; {old} can only be removed")
    return [MemberStep(gone=(old,), added=(new,))]


def after(
    members: Sequence[Member], step: MemberStep, joining: Mapping[str, Member]
) -> list[Member]:
    """The members of the next epoch. Raises KeyError if a joining member is unknown."""
    kept = [member for member in members if member.node not in step.gone]
    return sorted([*kept, *(joining[NodeId(name)] for name in step.added)])


def _other_disk(stored: str, heard: str | None) -> bool:
    return heard is not None and heard != stored
