"""Logs membership: one line for each transition of a member that an operator wants to see."""

from __future__ import annotations

from squall.cluster.membership.effects import (
    Cause,
    Effect,
    NameTaken,
    ObserverIsolated,
    PeerChanged,
    Silent,
    State,
)
from squall.runtime.addresses import shown_address
from squall.runtime.log import Log


class TransitionLog:
    def __init__(self, log: Log) -> None:
        self._log = log

    def write(self, effect: Effect) -> None:
        match effect:
            case PeerChanged():
                self._changed(effect)
            case Silent():
                self._log.warning(
                    "member_silent",
                    address=shown_address(effect.address),
                    member=effect.node or "",
                    hint="its datagrams arrive, the answers to it do not"
                    if effect.is_heard
                    else "no datagram of it arrives: is UDP open in both directions?",
                )
            case NameTaken():
                self._log.warning("member_name_taken", boot=effect.boot, stops=effect.gives_way)
            case ObserverIsolated():
                event = "member_isolated" if effect.is_isolated else "member_not_isolated"
                self._log.warning(event, silent=effect.silent, members=effect.members)
            case _:
                pass

    def _changed(self, change: PeerChanged) -> None:
        """Logs a transition. A first contact is not logged: every other member would repeat it."""
        log, member = self._log, change.member
        fields = {
            "member": member.node,
            "role": member.role.label,
            "member_boot": member.boot,
            "cause": change.cause.value,
        }
        if member.unheard_by:
            fields["unheard_by"] = ", ".join(member.unheard_by)
        if change.after is State.DEAD and change.cause is Cause.RESTART:
            log.info("member_restarted", **fields)
        elif change.after is State.DEAD:
            log.warning("member_dead", **fields)
        elif change.after is State.SUSPECT:
            log.info("member_suspect", **fields)
        elif change.after is State.LEFT:
            log.info("member_left", **fields)
        elif change.after is State.ALIVE and change.before in (State.SUSPECT, State.DEAD):
            log.info("member_back", **fields)
