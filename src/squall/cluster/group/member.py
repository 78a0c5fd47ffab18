"""The composition of one member of a control group: what a manager and a gate have in common.

    wire ──► Switchboard, Endpoint, handshake of the group, admission, overload
    log ──► Committer, JobLeaders, Transfers, SecretSealer, OperatorApi, MemberPresence

`open_wire` makes the first row before the log is open, `open_group` the second with it. The node
adds its state machine, its policy and its API, and sets the order of the steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

from squall.cluster.control.admission import Admission
from squall.cluster.control.execution import BoundedExecution
from squall.cluster.control.load import Filling
from squall.cluster.group.blob_transfers import Transfers
from squall.cluster.group.clients.operator_api import OperatorApi
from squall.cluster.group.committer import CommandCodec, Committer
from squall.cluster.group.handshake import GroupHandshake
from squall.cluster.group.job_leaders.choice import JobLeaders, NewLeaders
from squall.cluster.group.job_tables import GroupJob, HoldsJobs
from squall.cluster.group.member_watch import GroupWatch
from squall.cluster.group.metrics import admission_metrics, group_metrics
from squall.cluster.group.open_log import BlobNamingMachine, LogOpener, open_log
from squall.cluster.group.overload_response import OverloadResponse
from squall.cluster.group.presence.member_presence import MemberPresence
from squall.cluster.group.sealed_secrets import SecretSealer
from squall.cluster.ledger.interface import Ledger
from squall.cluster.ledger.settings import LedgerSettings
from squall.cluster.membership.messages import MemberRole
from squall.cluster.protocol.group_messages import MemberNote
from squall.cluster.settings_tree import Settings
from squall.cluster.wire.counters import wire_metrics
from squall.cluster.wire.links.dispatch import Handlers
from squall.cluster.wire.links.endpoint import Endpoint
from squall.cluster.wire.links.switchboard import LinkTLS, Switchboard, make_keyring
from squall.cluster.wire.seal.secrets import Secrets
from squall.runtime.addresses import is_name, shown_address
from squall.runtime.interfaces import Address, NodeId, Runtime
from squall.runtime.log import Log
from squall.runtime.metrics import Registry
from squall.runtime.metrics_http import MetricsServer, Probes
from squall.runtime.tasks import TaskRunner

Command = TypeVar("Command")


class MemberPlan(Protocol):
    """The identity and settings of a member, as the plans of managers and gates have them."""

    @property
    def listen(self) -> Address: ...
    @property
    def members(self) -> dict[str, Address]:
        """All members of the group, this one among them."""
        ...

    @property
    def secrets(self) -> Secrets: ...
    @property
    def cluster(self) -> str: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def tls(self) -> LinkTLS | None: ...
    @property
    def ledger(self) -> LedgerSettings: ...
    @property
    def metrics(self) -> Address | None: ...
    @property
    def joins(self) -> bool: ...
    @property
    def pid(self) -> int: ...
    @property
    def version(self) -> str: ...
    @property
    def disk_free(self) -> Callable[[], int] | None: ...
    @property
    def opener(self) -> LogOpener | None: ...
    @property
    def membership(self) -> bool: ...


class MemberWire:
    """The wire of one member: its links, and what protects it from too many requests."""

    def __init__(
        self, runtime: Runtime, tasks: TaskRunner, plan: MemberPlan, log: Log, *, group: str
    ) -> None:
        """`group` is the name of the group in the settings, which all members share."""
        self.group = group
        self.watch = GroupWatch(runtime.node, plan.members, runtime.clock, log)
        self.address: Address = plan.listen
        self._node = runtime.node
        self._log = log
        admission = Admission(plan.settings.admission, runtime.random.uniform)
        execution = BoundedExecution(admission, runtime.clock, self._admission_fills)
        self.overload = OverloadResponse(admission, runtime.clock, log)
        self.board = Switchboard(
            runtime=runtime,
            keyring=make_keyring(runtime, plan.secrets, plan.cluster),
            admit=execution.enter,
            passes=execution.passes,
            tasks=tasks,
            handlers=Handlers(),
            limits=plan.settings.wire,
            tls=plan.tls,
            on_refused=self._peer_refused,
            on_error=lambda error: log.error("handler_failed", error=error),
        )
        self.endpoint = Endpoint(self.board)
        self.registry = Registry()
        wire_metrics(self.registry, self.board.counters)
        admission_metrics(self.registry, admission)
        self.handshake = GroupHandshake(
            self.board, self.watch, name=group, timers=plan.settings.timers
        )

    async def listen(self, at: Address) -> None:
        await self.endpoint.listen(at)
        self.address = self.endpoint.address

    @property
    def advertised(self) -> Address:
        """Where others reach this member: as the flags of the group say, with the real port."""
        given = self.watch.addresses.get(self._node, self.address)
        return given if given[1] or is_name(given) else self.address

    def address_of(self, node: NodeId | None) -> str:
        return self.watch.address_of(node)

    def _peer_refused(self, address: Address, error: Exception) -> None:
        host, port = address
        self._log.warning("peer_refused", peer=f"{host}:{port}", error=str(error))

    def _admission_fills(self, filling: Filling) -> None:
        self._log.warning("admission_fills", limit=filling.limit, percent=filling.percent)


async def open_member_log(
    runtime: Runtime,
    tasks: TaskRunner,
    plan: MemberPlan,
    wire: MemberWire,
    machine: BlobNamingMachine,
) -> Ledger:
    """Opens the log, from the plan's store or this node's disk, and presents the group to others
    before the first link: a member with the directory of another group is refused with the
    reason."""
    if plan.opener is not None:
        ledger = await plan.opener(runtime, tasks, machine)
    else:
        ledger = await open_log(
            runtime,
            tasks,
            machine,
            wire.board,
            members=plan.members,
            timers=plan.settings.timers,
            settings=plan.ledger,
            group=wire.group,
            joins=plan.joins,
            watch=wire.watch,
        )
    wire.handshake.refresh(ledger)
    return ledger


@dataclass(frozen=True, kw_only=True)
class GroupParts(Generic[Command]):
    """What a member has once its log is open."""

    ledger: Ledger
    committer: Committer[Command]
    leaders: JobLeaders[Command]
    transfers: Transfers
    sealer: SecretSealer
    operators: OperatorApi
    presence: MemberPresence
    addresses: Callable[[], list[str]]
    """The addresses of all members; empty while one is unknown, or if the log is in a store."""

    def led_by(self, members: str) -> str:
        """`members` names them: "managers", "gates"."""
        fence = self.ledger.fence
        leader = self.ledger.primary or "no member"
        return f"{leader} leads the {members} (epoch {fence.epoch}, view {fence.view})"


def open_group(
    runtime: Runtime,
    tasks: TaskRunner,
    plan: MemberPlan,
    log: Log,
    wire: MemberWire,
    ledger: Ledger,
    machine: HoldsJobs[GroupJob],
    *,
    role: Literal["manager", "gate"],
    codec: CommandCodec[Command],
    lead_jobs: Callable[[NewLeaders], Command],
    speaks: int,
    is_unused: Callable[[], bool],
    nodes: Callable[[], int],
    region: str = "",
) -> GroupParts[Command]:
    """`lead_jobs` makes the command that names leaders of jobs. `speaks` is the highest version of
    commands that this member applies; `is_unused`: no command is in the log yet. `nodes` returns
    how many nodes may take part in membership."""
    presence = _presence(plan, log, wire, ledger, role, nodes)

    def addresses() -> list[str]:
        found = [
            shown_address(wire.advertised) if name == runtime.node else wire.watch.address_of(name)
            for name in ledger.standing().members or ()
        ]
        return sorted(found) if all(found) else []

    def own_note() -> MemberNote:
        free = plan.disk_free
        return MemberNote(
            address=shown_address(wire.advertised),
            pid=plan.pid,
            version=plan.version,
            disk_free=free() if free is not None else -1,
            wall_s=runtime.clock.wall(),
            region=region,
            datagrams=presence.port,
        )

    failover_s = plan.settings.timers.failover_bound_s
    committer = Committer(ledger, codec, wire.address_of, addresses, failover_s)
    return GroupParts(
        ledger=ledger,
        committer=committer,
        leaders=JobLeaders(
            machine=machine,
            ledger=ledger,
            watch=wire.watch,
            committer=committer,
            lead_jobs=lead_jobs,
            log=log,
        ),
        transfers=Transfers(ledger.blobs, wire.board.counters, tasks),
        sealer=SecretSealer(plan.secrets, plan.cluster, runtime.entropy),
        operators=OperatorApi(
            ledger=ledger,
            watch=wire.watch,
            committer=committer,
            clock=runtime.clock,
            log=log,
            role=role,
            speaks=speaks,
            is_unused=is_unused,
            own=own_note,
        ),
        presence=presence,
        addresses=addresses,
    )


def _presence(
    plan: MemberPlan,
    log: Log,
    wire: MemberWire,
    ledger: Ledger,
    role: Literal["manager", "gate"],
    nodes: Callable[[], int],
) -> MemberPresence:
    return MemberPresence(
        wire.board,
        wire.endpoint,
        wire.watch,
        log,
        wire.registry,
        role=MemberRole.MANAGER if role == "manager" else MemberRole.GATE,
        settings=plan.settings,
        keys=plan.secrets.membership_keys(wire.group),
        advertised=lambda: wire.advertised,
        nodes=nodes,
        leads=lambda: ledger.is_primary,
        # Nodes that meet in a store have no network between them.
        takes_part=plan.membership and plan.opener is None,
    )


async def serve_metrics(
    runtime: Runtime,
    plan: MemberPlan,
    wire: MemberWire,
    parts: GroupParts[Command],
    *,
    not_leading: str,
) -> MetricsServer | None:
    """None: the plan names no address for them. The probe says `not_leading` on the others."""
    if plan.metrics is None:
        return None
    ledger = parts.ledger

    def readiness() -> str:
        return "" if ledger.is_primary else not_leading

    wire.overload.show(wire.registry)
    group_metrics(wire.registry, ledger, wire.watch, parts.operators.view)
    server = MetricsServer(runtime.network, wire.registry, Probes(ready=readiness))
    await server.start(plan.metrics)
    return server
