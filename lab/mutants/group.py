"""Mutants of a replicated group: each disables one safety rule.

A mutant replaces a rule of the running core or ledger, so the product itself contains no switch
for it. `python -m lab run group --seeds 1..1000 --mutant NAME` shows that the scenario finds it.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

from squall.cluster.ledger.files.checkpoints import CheckpointHead
from squall.cluster.ledger.group_member import durable_state
from squall.cluster.ledger.group_member.group_ledger import GroupLedger
from squall.cluster.ledger.group_member.replay import Replay
from squall.cluster.ledger.interface import Capture, Fence, NotPrimary
from squall.cluster.ledger.replica.catch_up import Target
from squall.cluster.ledger.replica.effects import Effect, Serves
from squall.cluster.ledger.replica.messages import Heartbeat, Packet, Prepare, PreVote, PreVoteOk
from squall.cluster.ledger.replica.replica import Replica
from squall.cluster.ledger.replica.state import config_of
from squall.cluster.ledger.replica.types import NO_FENCE, Config, Kind, LogEntry, Member, Status

MUTANTS = {
    "select_by_op": "the longest log wins a view change, even one of an older view",
    "select_without_epoch": "a view change compares last-normal by view, without the epoch",
    "no_promise_sync": "members vote and ask for votes before their promise is durable",
    "ack_before_sync": "followers acknowledge entries before they are durable",
    "no_log_transfer": "members enter a view with their own log instead of the chosen one",
    "sequence_reset": "a new primary drops entries that it does not know to be committed",
    "count_self_without_copy": "the primary counts itself before its own copy is durable",
    "restarted_primary_goes_on": "a primary that restarts acts again in the view it led",
    "round_acked_in_view_change": "a member acknowledges rounds of a view that it has left",
    "epoch_without_commit": "members enter the next epoch when they store its command",
    "old_epoch_grants": "a primary stays in its epoch after the members have changed",
    "vote_after_disk_loss": "a member that lost its disk still counts as a member",
    "grant_without_round": "the primary confirms itself without a round",
    "new_primary_does_not_wait": "a new primary does not wait for the leases of the former one",
    "lease_from_flag": "each member takes the lease length from a flag, not from the log",
    "lease_from_receipt": "a worker counts its lease from the arrival of the grant",
    "clock_not_in_votes": "a new primary continues the group clock from its last entry",
    "blob_not_on_new_quorum": "a membership change does not wait until new members have the blobs",
    "apply_not_total": "apply raises on a command that it cannot decode",
    "serve_before_commit": "a new primary serves before what it inherited is committed",
    "prepare_of_lower_view": "a follower stores entries that a deposed primary sends",
    "late_start_view": "a repeated StartView shortens the log",
    "answer_from_foreign_entry": "a deposed primary answers its callers from others' entries",
    "no_pre_vote": "a member asks for votes without a pre-vote",
    "vote_with_a_hole": "a member whose disk lost entries votes and acknowledges as before",
    "pre_vote_while_heard": "a member agrees to a new view while it still hears its primary",
    "promise_not_in_checkpoint": "checkpoints do not carry the promise of their member",
    "skip_gap_in_replay": "a start skips entries that do not follow and votes",
    "blob_local_only": "a command names a blob that only the primary has",
    "restart_is_normal": "a member that restarts in a view change takes its log for the view's",
    "grant_from_open_round": "a confirmation joins a round that began before its request",
    "strong_read_no_commit": "a strong read does not wait until what was committed is applied",
    "lower_start_view": "a member follows a view below its promise",
    "old_binary_joins": "a member applies commands of a version that it does not know",
    "collect_by_stale_state": "a member that is cut off deletes blobs by its old state",
}

Break = Callable[[Any], None]


def break_replica(replica: Replica, mutant: str | None) -> None:
    if mutant in _REPLICA:
        _REPLICA[mutant](replica)


def break_ledger(ledger: GroupLedger, mutant: str | None) -> None:
    if mutant in _LEDGER:
        _LEDGER[mutant](ledger)


@contextmanager
def broken_files(mutant: str | None) -> Generator[None]:
    """Breaks rules of a start, which apply before a replica or ledger exists."""
    if mutant != "skip_gap_in_replay":
        yield
        return
    with (
        patch.object(Replay, "_found", _ignored),
        patch.object(durable_state, "_check_lost", _ignored_later),
    ):
        yield


def _put(owner: object, name: str, rule: Callable[..., Any]) -> None:
    setattr(owner, name, rule)


# The log of a view.


def _select_by_op(replica: Replica) -> None:
    views = replica.views

    def rank(member: Member) -> tuple[Fence, int]:
        return Fence(0, 0), views._votes[member].op

    _put(views, "rank", rank)


def _select_without_epoch(replica: Replica) -> None:
    views = replica.views

    def rank(member: Member) -> tuple[Fence, int]:
        vote = views._votes[member]
        return Fence(0, vote.last_normal.view), vote.op

    _put(views, "rank", rank)


def _no_log_transfer(replica: Replica) -> None:
    core, adopt = replica.core, replica.transfer.adopt

    def mine(target: Target, installed: Callable[[], None]) -> None:
        adopt(target._replace(op=core.log.last, checksum=core.log.end()), installed)

    _put(replica.transfer, "adopt", mine)


def _sequence_reset(replica: Replica) -> None:
    core, lead = replica.core, replica.normal.lead

    def reset() -> None:
        if core.commit:
            core.log.cut(core.commit)
            core.persist(keep=core.commit)
        lead()

    _put(replica.normal, "lead", reset)


def _late_start_view(replica: Replica) -> None:
    core = replica.core

    def is_new(fence: Fence) -> bool:
        return fence >= core.fence and not core.leading

    _put(replica.views, "is_new", is_new)


def _serve_before_commit(replica: Replica) -> None:
    core, lead = replica.core, replica.normal.lead

    def serve() -> None:
        lead()
        core.serving = True
        core.effects.append(Serves(core.fence))

    _put(replica.normal, "lead", serve)


# Durability.


def _no_promise_sync(replica: Replica) -> None:
    _put(replica.views, "promise_after", lambda: 0)


def _ack_before_sync(replica: Replica) -> None:
    _put(replica.normal, "ack_after", lambda: 0)


def _count_self(replica: Replica) -> None:
    normal, core = replica.normal, replica.core

    def count() -> None:
        normal.progress[core.me.node].match = core.log.last

    _put(normal, "_count_self", count)


# Views.


def _restarted_goes_on(replica: Replica) -> None:
    core, start = replica.core, replica.start

    def go_on(now: float) -> list[Effect]:
        effects = start(now)
        if core.status is Status.NORMAL and core.primary == core.me and not core.leading:
            replica.normal.lead()
            replica.rounds.lead()
        return effects + core.take()

    _put(replica, "start", go_on)


def _round_acked(replica: Replica) -> None:
    core, handle = replica.core, replica._from_primary

    def also(packet: Packet, body: Prepare | Heartbeat) -> None:
        if isinstance(body, Heartbeat) and packet.fence < core.fence and body.round:
            replica.rounds.acknowledge(packet, body)
        else:
            handle(packet, body)

    _put(replica, "_from_primary", also)


def _prepare_of_lower_view(replica: Replica) -> None:
    core = replica.core

    def accepts(packet: Packet) -> bool:
        normal = core.status is Status.NORMAL and not core.leading
        return normal and packet.fence <= core.fence and packet.sender != core.me

    _put(replica.normal, "accepts", accepts)


def _no_pre_vote(replica: Replica) -> None:
    views, stand = replica.views, replica.views.stand

    def at_once() -> None:
        stand()
        if views._wanted:
            views._campaign()

    _put(views, "stand", at_once)


def _pre_vote_while_heard(replica: Replica) -> None:
    core, views = replica.core, replica.views

    def agree(packet: Packet, ask: PreVote) -> None:
        if views._may_vote(packet.sender, ask.view) and ask.view > core.fence.view:
            core.send(packet.sender.node, PreVoteOk(ask.view, ask.ask))

    _put(views, "pre_vote", agree)


def _vote_with_a_hole(replica: Replica) -> None:
    replica.core.mending = False


def _lower_start_view(replica: Replica) -> None:
    core, adopt = replica.core, replica.transfer.adopt

    def is_new(fence: Fence) -> bool:
        return fence != core.fence or core.status is Status.VIEW_CHANGE

    def lower(target: Target, installed: Callable[[], None]) -> None:
        core.fence = min(core.fence, target.fence)
        adopt(target, installed)

    _put(replica.views, "is_new", is_new)
    _put(replica.transfer, "adopt", lower)


def _grant_from_open_round(replica: Replica) -> None:
    rounds, confirm = replica.rounds, replica.rounds.confirm

    def join(token: int) -> None:
        if rounds._open and rounds.may_confirm():
            last = rounds._open[-1]
            rounds._open[-1] = last._replace(tokens=(*last.tokens, token))
        else:
            confirm(token)

    _put(rounds, "confirm", join)


def _restart_is_normal(replica: Replica) -> None:
    core, start = replica.core, replica.start

    def normal(now: float) -> list[Effect]:
        effects = start(now)
        if core.status is Status.VIEW_CHANGE and not core.is_alone:
            core.status = Status.NORMAL
            core.last_normal = core.fence
        return effects

    _put(replica, "start", normal)


def _clock_not_in_votes(replica: Replica) -> None:
    core = replica.core

    def from_log(votes: object) -> tuple[int, bool]:
        newest = core.log.newest
        core.clock.is_heard = False
        core.clock._ms = int(newest.group_ms) if newest is not None else 0
        return core.clock._ms, False

    _put(replica.views, "clock_from", from_log)


# Members.


def _epoch_without_commit(replica: Replica) -> None:
    core, persist = replica.core, replica.core.persist

    def early(*, entries: tuple[LogEntry, ...] = (), **rest: Any) -> None:
        persist(entries=entries, **rest)
        for entry in entries:
            if entry.kind is Kind.MEMBERS and config_of(entry).epoch > core.fence.epoch:
                core.on_epoch(config_of(entry))

    _put(core, "persist", early)


def _old_epoch_grants(replica: Replica) -> None:
    core, enter = replica.core, replica.members.enter

    def stay(config: Config) -> None:
        if not core.leading:
            enter(config)

    core.on_epoch = stay
    _put(replica.rounds, "may_confirm", lambda: core.leading and core.serving)


def _vote_after_disk_loss(replica: Replica) -> None:
    core, stand = replica.core, replica.views.stand

    def by_name(config: Config, member: Member) -> bool:
        return member.node in config.nodes

    _put(core, "admits", by_name)

    def only_member() -> None:
        if core.config is not None and core.me in core.config.members:
            stand()
        else:
            core.restart_election_timer()

    _put(replica.views, "stand", only_member)
    _put(replica.views, "take_over", _ignored)


# The ledger.


def _grant_without_round(ledger: GroupLedger) -> None:
    async def at_once() -> tuple[Fence, int]:
        if not ledger.is_primary:
            raise NotPrimary(None)
        return ledger.fence, ledger.replica.core.commit

    _put(ledger, "_round", at_once)


def _answer_from_foreign_entry(ledger: GroupLedger) -> None:
    _put(ledger.submissions, "lost_role", _ignored)


def _blob_not_on_new_quorum(ledger: GroupLedger) -> None:
    async def none(members: tuple[Member, ...]) -> int:
        return 0

    _put(ledger.blobs, "missing_on", none)


def _promise_not_in_checkpoint(ledger: GroupLedger) -> None:
    checkpoints = ledger.durable_state.checkpoints
    write = checkpoints.write

    async def without(head: CheckpointHead, capture: Capture) -> None:
        bare = msgspec.structs.replace(head, fence=NO_FENCE, last_normal=NO_FENCE)
        await write(bare, capture)

    _put(checkpoints, "write", without)


def _blob_local_only(ledger: GroupLedger) -> None:
    _put(ledger.blobs, "_offer", _true_later)


def _strong_read_no_commit(ledger: GroupLedger) -> None:
    confirm_by_round = ledger._round

    async def only_confirmed() -> tuple[Fence, int]:
        fence, _ = await confirm_by_round()
        return fence, 0

    _put(ledger, "_round", only_confirmed)


def _collect_by_stale_state(ledger: GroupLedger) -> None:
    _put(ledger.blobs, "may_collect", _true_later)


def _old_binary_joins(ledger: GroupLedger) -> None:
    _put(ledger, "too_old", _ignored)
    apply = ledger._apply

    def regardless(entries: tuple[LogEntry, ...]) -> None:
        core, version = ledger.replica.core, ledger.replica.core.version
        core.version = max(version, core.active_version)
        apply(entries)
        core.version = version

    _put(ledger, "_apply", regardless)


_REPLICA: dict[str, Break] = {
    "grant_from_open_round": _grant_from_open_round,
    "lower_start_view": _lower_start_view,
    "restart_is_normal": _restart_is_normal,
    "select_by_op": _select_by_op,
    "select_without_epoch": _select_without_epoch,
    "no_promise_sync": _no_promise_sync,
    "vote_with_a_hole": _vote_with_a_hole,
    "ack_before_sync": _ack_before_sync,
    "no_log_transfer": _no_log_transfer,
    "sequence_reset": _sequence_reset,
    "count_self_without_copy": _count_self,
    "restarted_primary_goes_on": _restarted_goes_on,
    "round_acked_in_view_change": _round_acked,
    "epoch_without_commit": _epoch_without_commit,
    "old_epoch_grants": _old_epoch_grants,
    "vote_after_disk_loss": _vote_after_disk_loss,
    "clock_not_in_votes": _clock_not_in_votes,
    "serve_before_commit": _serve_before_commit,
    "prepare_of_lower_view": _prepare_of_lower_view,
    "late_start_view": _late_start_view,
    "no_pre_vote": _no_pre_vote,
    "pre_vote_while_heard": _pre_vote_while_heard,
}
_LEDGER: dict[str, Break] = {
    "old_binary_joins": _old_binary_joins,
    "collect_by_stale_state": _collect_by_stale_state,
    "strong_read_no_commit": _strong_read_no_commit,
    "promise_not_in_checkpoint": _promise_not_in_checkpoint,
    "blob_local_only": _blob_local_only,
    "grant_without_round": _grant_without_round,
    "blob_not_on_new_quorum": _blob_not_on_new_quorum,
    "answer_from_foreign_entry": _answer_from_foreign_entry,
}


def _ignored(*_: object) -> None:
    pass


async def _ignored_later(*_: object, **__: object) -> None:
    pass


async def _true_later(*_: object) -> bool:
    return True
