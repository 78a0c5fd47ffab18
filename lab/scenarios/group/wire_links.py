"""The members' links over the real wire, in some seeds instead of datagrams.

Streams differ from datagrams in what a fault does: nothing is lost while a link lives, a link that
breaks loses everything under way, and a new one needs a handshake first. Messages may be larger.
"""

from __future__ import annotations

from squall.cluster.control.admission import Admission
from squall.cluster.control.execution import BoundedExecution
from squall.cluster.control.settings import AdmissionSettings
from squall.cluster.ledger.group_member.group_ledger import GroupLedger
from squall.cluster.ledger.group_member.wire_transport import WireTransport
from squall.cluster.wire.blob_transfer import serve_blobs
from squall.cluster.wire.links.dispatch import Handlers
from squall.cluster.wire.links.endpoint import Endpoint
from squall.cluster.wire.links.switchboard import Switchboard, make_keyring
from squall.cluster.wire.roles import Role
from squall.cluster.wire.seal.secrets import Secrets
from squall.runtime.interfaces import NodeId, Runtime
from squall.runtime.tasks import TaskRunner

WIRE_PORT = 7304
SECRET = "the secret of the simulated group"


class WireLinks(WireTransport):
    """The transport of one boot of a member."""

    def __init__(self, runtime: Runtime, tasks: TaskRunner, nodes: tuple[str, ...]) -> None:
        admission = Admission(AdmissionSettings(), runtime.random.uniform)
        execution = BoundedExecution(admission, runtime.clock)
        self._links = Switchboard(
            runtime=runtime,
            keyring=make_keyring(runtime, Secrets.of_node(SECRET), "sim"),
            admit=execution.enter,
            passes=execution.passes,
            tasks=tasks,
            handlers=Handlers(),
        )
        super().__init__(self._links, {NodeId(node): (node, WIRE_PORT) for node in nodes})

    async def bind(self) -> None:
        endpoint = Endpoint(self._links, accepts=(Role.NODE,))
        await endpoint.listen(("", WIRE_PORT))

    def serve(self, ledger: GroupLedger) -> None:
        serve_blobs(self._links.handlers, ledger.blobs, ledger.blobs.own)
