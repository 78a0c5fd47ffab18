"""Sends the orders of the primary gate to its datacenters, and commits what their answers mean.

`outbox` derives the orders from the log and knows which are under way; this module has the links.
An order goes to the manager that leads, else to any manager of the datacenter, which relays it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from squall.cluster.assignments.commands import GateCommand
from squall.cluster.gate.datacenter_links import DatacenterLinks
from squall.cluster.gate.outbox import GateOutbox, PartOrder
from squall.cluster.group.committer import Committer
from squall.cluster.protocol.gates.gate_messages import AcceptPart, PartAnswer
from squall.cluster.wire.errors import RemoteError, WireError
from squall.runtime.interfaces import Clock
from squall.runtime.log import Log
from squall.runtime.tasks import TaskRunner

ORDER_S = 10.0
"""The timeout of an order: a commit in a datacenter that is electing takes a few seconds."""
ACCEPT_S = 120.0
"""The same for an order that is answered after the bundle has arrived, up to 64 MB of it."""
LINK_S = 2.0
"""How long an order waits for a link; then it is tried again later."""
TASK_GROUP = "orders"


class OrderDriver:
    """Drives the outbox of one gate while it leads."""

    def __init__(
        self,
        links: DatacenterLinks,
        committer: Committer[GateCommand],
        *,
        clock: Clock,
        tasks: TaskRunner,
        log: Log,
        on_done: Callable[[], None],
    ) -> None:
        """`on_done` is called after each answer or failure: other orders may be due then."""
        self._links = links
        self._committer = committer
        self._clock = clock
        self._tasks = tasks
        self._log = log
        self._on_done = on_done

    def start(self, outbox: GateOutbox, order: PartOrder) -> None:
        self._tasks.start(f"order {order.tag}", self._send(outbox, order), group=TASK_GROUP)

    async def _send(self, outbox: GateOutbox, order: PartOrder) -> None:
        try:
            answer = await self._asked(order)
            command = outbox.answered(order, answer, self._clock.now())
            if command is not None:
                await self._committer.commit(command)
        except WireError as error:
            outbox.failed(order, self._clock.now())
            # A refusal is news; a datacenter out of reach is known from the probes.
            if isinstance(error, RemoteError):
                self._log.warning(
                    "order_failed", order=order.tag, datacenter=order.datacenter, error=error.text
                )
        except Exception as error:
            # Without an end the order would stay under way for ever.
            outbox.failed(order, self._clock.now())
            self._log.error("order_broken", order=order.tag, error=error)
        finally:
            self._on_done()

    async def _asked(self, order: PartOrder) -> PartAnswer:
        timeout_s = ACCEPT_S if isinstance(order.message, AcceptPart) else ORDER_S
        try:
            found = await self._links.any_link(order.datacenter, LINK_S)
        except KeyError:
            # The gate was started without it, while a part is still there.
            raise WireError(f"no flag of this gate names {order.datacenter}") from None
        if not found:
            raise WireError(f"there is no link to a manager of {order.datacenter}")
        # The receiver relays it if it does not lead.
        message = msgspec.structs.replace(order.message, relay=True)
        return await found[0].request(message, timeout_s)
