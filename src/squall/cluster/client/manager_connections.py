"""A client's connections to the managers: asks any that answers, and follows hints to the leader.

Every request of a client may be sent twice: a submission because of its key, everything else
because it names the wanted state. So a request whose outcome is unknown is sent again, to the
next manager, until one answers or the timeout ends. A manager that does not lead names the leader;
a busy manager says when to retry.

If no manager accepts the secret, the request fails at once: waiting would not help.

Names ("dns:", "srv:") are looked up before the first request, and again when no manager answers.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import asynccontextmanager
from copy import copy
from typing import Any

import msgspec

from squall.cluster.client.errors import Unreachable, request_refused
from squall.cluster.protocol.group_messages import (
    AskGroup,
    ChangeMembers,
    HandOver,
    Relay,
    RelayAnswer,
)
from squall.cluster.protocol.messages import OfferBlob
from squall.cluster.protocol.timeouts import RequestTimeouts
from squall.cluster.wire.catalogue import CATALOGUE
from squall.cluster.wire.errors import (
    WRONG_SECRET,
    HandshakeFailed,
    NotSent,
    OutcomeUnknown,
    RemoteError,
)
from squall.cluster.wire.header import MessageClass
from squall.cluster.wire.links.dispatch import Handlers
from squall.cluster.wire.links.named_addresses import NamedAddresses
from squall.cluster.wire.links.peer import Peer
from squall.cluster.wire.links.switchboard import LinkTLS, Switchboard, make_keyring
from squall.cluster.wire.messages import ErrorCode
from squall.cluster.wire.seal.keyring import Identity
from squall.cluster.wire.seal.secrets import Secrets
from squall.runtime.addresses import address_in, shown_address
from squall.runtime.backoff import Backoff
from squall.runtime.interfaces import Address, NotResolved, Runtime
from squall.runtime.tasks import TaskRunner

ASK_RETRY = Backoff(0.05, cap_s=1.0)
"""A failover takes about a second: the first tries are quick, later ones spare the managers."""
LOOKUP_POLL_S = 0.01
LINK_POLL_S = 0.1
"""How often a wait for a link checks whether its dial has failed."""
AWAY_S = 10.0
"""How long a manager that did not answer is not asked again if another one can relay to it."""
LATER = (ErrorCode.RETRY_LATER, ErrorCode.OVERLOADED)
NOT_RELAYED = (OfferBlob, AskGroup, HandOver, ChangeMembers)
"""Each manager answers the first two itself; the others are for the primary's own operators."""


class ManagerConnections:
    """Links to the managers of one group, by address. `close` ends all of them."""

    def __init__(
        self,
        runtime: Runtime,
        tasks: TaskRunner,
        handlers: Handlers,
        *,
        addresses: Sequence[Address],
        remembered: Sequence[Address] = (),
        secrets: Secrets,
        cluster: str,
        version: str = "",
        timeouts: RequestTimeouts | None = None,
        shown: str = "",
        tls: LinkTLS | None = None,
    ) -> None:
        """`remembered` are managers that answered former runs: they are asked if no address
        answers. `shown` names the managers in messages, if their addresses do not."""
        self._runtime = runtime
        self._shown = shown
        self._timeouts = timeouts or RequestTimeouts()
        self._heard = _LastHeard(runtime)
        self._board = Switchboard(
            runtime=runtime,
            keyring=make_keyring(runtime, secrets, cluster),
            admit=_admit,
            tasks=tasks,
            handlers=handlers,
            limits=self._timeouts.limits,
            tls=tls,
            on_heard=self._heard.now,
        )
        self._given = tuple(dict.fromkeys(addresses))
        self._names = NamedAddresses(self._board, addresses, self._names_changed)
        # The given ones, those that managers named, and those of former runs. A name itself is
        # among them only as long as there is nothing else to dial.
        known = dict.fromkeys((*self._names.plain, *remembered))
        self._addresses = list(known or self._names.names)
        self._peers: dict[Address, Peer] = {}
        self._at = 0
        # Addresses that have had a session: they accept our secret, whatever a later dial reports.
        # A manager that was paused closes queued connections silently, as a manager with another
        # secret does.
        self._proven: set[Address] = set()
        # Managers that did not answer, and since when.
        self._away: dict[Address, float] = {}
        # The manager that the current one is asked to relay to, because it is away.
        self._relayed_to: Address | None = None
        # Why the last manager asked for a later retry.
        self._last_delay = ""
        # A manager has sent us to the gates of its datacenter.
        self.is_gated = False
        # When contact was lost, on the runtime's clock; None while a manager answers.
        self.lost_since: float | None = None

    def apart(self) -> ManagerConnections:
        """The same links with a current manager of its own, because the leader of a job need not
        lead the group."""
        return copy(self)

    @property
    def board(self) -> Switchboard:
        return self._board

    @property
    def current(self) -> Peer:
        """The manager that receives the next request."""
        return self._peer(self._addresses[self._at % len(self._addresses)])

    @property
    def is_store(self) -> bool:
        """Whether they are agents behind a store."""
        return bool(self._shown)

    @property
    def shown(self) -> str:
        return self._shown or ", ".join(map(shown_address, self._given))

    async def ask(
        self,
        message: msgspec.Struct,
        *,
        timeout_s: float = 10.0,
        reconnect_timeout_s: float = 10.0,
        awaits_leader: bool = False,
    ) -> Any:
        """Returns the answer. Raises `RequestRefused` if a manager refuses, and `Unreachable` when
        none was heard for `reconnect_timeout_s`; a manager that works on the request is. With
        `awaits_leader` a group that answers and has no leader gets the time that its election may
        take: of gates that is longer than a query waits for a cluster that is absent."""
        clock = self._runtime.clock
        began = asked_at = election_until = clock.now()
        until = asked_at + reconnect_timeout_s
        silence_s = max(reconnect_timeout_s, self._timeouts.silence_s)
        tries = 0
        failed = False
        while True:
            tries += 1
            wait_s = ASK_RETRY.delay_s(tries)
            try:
                await self._connected(until)
                asked_at = clock.now()
                answer = await self._answered(self._asked(message, timeout_s), silence_s)
                self._last_delay = ""
                self.lost_since = None
                return answer
            except RemoteError as error:
                self.lost_since = None
                wait_s = self._after(error, wait_s)
                if awaits_leader and error.leader_within_s:
                    election_until = began + reconnect_timeout_s + error.leader_within_s
                    until = max(until, election_until)
            except (NotSent, OutcomeUnknown) as error:
                self._last_delay = str(error)
                heard_at = max(asked_at, self._heard.at)
                self._note_loss(heard_at)
                self._leave()
                if not failed:
                    until = max(until, heard_at + silence_s)
                    if len(self._addresses) > 1:
                        until = max(until, clock.now() + self._timeouts.connect_s)
                failed = True
            if clock.now() + wait_s > until:
                limit_s = silence_s if failed else reconnect_timeout_s
                raise self._gave_up(max(limit_s, election_until - began))
            # A wait that the manager asked for gets jitter too: all clients received the same one.
            await clock.sleep(wait_s * self._runtime.random.uniform(0.5, 1.0))

    async def ask_each(
        self, message: msgspec.Struct, *, timeout_s: float, of: Sequence[Address] = ()
    ) -> dict[Address, Any]:
        """Asks all managers, or those in `of`, once and at the same time, whether or not they
        lead; returns the answers that came in time."""
        await self._looked_up()
        addresses = list(dict.fromkeys(of or self._addresses))
        answers = await asyncio.gather(
            *(self._once(each, message, timeout_s) for each in addresses)
        )
        found = zip(addresses, answers, strict=True)
        return {address: answer for address, answer in found if answer is not None}

    async def _once(self, address: Address, message: msgspec.Struct, timeout_s: float) -> Any:
        """None without an answer."""
        peer, until = self._peer(address), self._runtime.clock.now() + timeout_s
        while (left_s := until - self._runtime.clock.now()) > 0.0:
            try:
                await peer.connected(min(LINK_POLL_S, left_s))
                return await peer.request(message, left_s)
            except HandshakeFailed:
                if isinstance(peer.last_error, ConnectionError):
                    return None
            except (NotSent, OutcomeUnknown, RemoteError):
                return None
        return None

    def learn(self, managers: Sequence[Address]) -> None:
        """Adds the managers of the group, as one of them reports. Those of before stay: only their
        order decides which one is asked next."""
        self._addresses += [each for each in managers if each not in self._addresses]

    async def close(self) -> None:
        for peer in self._peers.values():
            await peer.close(drain_s=0.2)

    async def _asked(self, message: msgspec.Struct, timeout_s: float) -> Any:
        if self._relayed_to is None or isinstance(message, NOT_RELAYED):
            return await self.current.request(message, timeout_s)
        row, body = CATALOGUE.encode(message)
        relay = Relay(number=row.number, body=body)
        answer: RelayAnswer = await self.current.request(relay, timeout_s)
        if not self._is_away(self._relayed_to):
            self._follow(shown_address(self._relayed_to))
        return CATALOGUE.decode(CATALOGUE.by_number[answer.number], answer.body)

    async def _answered(self, asking: Awaitable[Any], silence_s: float) -> Any:
        """Waits for the answer, or until no manager was heard for `silence_s`, or half of that if
        there is another to ask. A silent link is closed at some time, but a client may have less
        patience."""
        if len(self._addresses) > 1:
            silence_s = max(silence_s / 2.0, self._timeouts.silence_s)
        try:
            async with self._heard.within(silence_s):
                return await asking
        except TimeoutError:
            role = "agent" if self.is_store else "manager"
            raise OutcomeUnknown(f"no {role} answers") from None

    def _leave(self) -> None:
        """Turns to the next manager, because the current one does not answer."""
        self._away[self.current.address] = self._runtime.clock.now()
        self._relayed_to = None
        self._at += 1

    def _is_away(self, address: Address) -> bool:
        """Whether it did not answer a moment ago, and there is still no link to it."""
        if address not in self._away or self._peer(address).control.session is not None:
            return False
        return self._runtime.clock.now() - self._away[address] < AWAY_S

    def _note_loss(self, since: float) -> None:
        if self.lost_since is None:
            self.lost_since = since

    def _after(self, error: RemoteError, backoff_s: float) -> float:
        """How long to wait before the next try; raises if the answer is final."""
        if error.code == ErrorCode.NOT_PRIMARY:
            self._last_delay = "no manager leads the group at the moment"
            if error.primary:
                self._last_delay = f"{error.primary} leads the group and does not answer"
            self._follow(error.primary)
            return backoff_s
        if error.code == ErrorCode.GATED:
            self._last_delay = error.text
            self._go_to_gates(error)
            return 0.0
        if error.code in LATER:
            self._last_delay = error.text or "the managers cannot commit at the moment"
            if error.code == ErrorCode.RETRY_LATER:
                self._at += 1
            return max(error.retry_after_s, backoff_s)
        raise request_refused(error) from None

    def _go_to_gates(self, error: RemoteError) -> None:
        """The gates take the place of the managers, which know no job of the gates. In place: every
        copy of this object has the same list."""
        gates = [each for text in error.primary.split(",") if (each := address_in(text))]
        if not gates or self.is_gated:
            raise request_refused(error) from None
        self._names.forget()
        for former in [each for each in self._peers if each not in gates]:
            self._board.tasks.start("close", self._peers.pop(former).close())
        self._addresses[:] = gates
        self._given = tuple(gates)
        self._at, self._relayed_to, self.is_gated = 0, None, True

    async def _connected(self, until: float) -> None:
        """Returns when the current manager, or a later one, has a link."""
        clock = self._runtime.clock
        problems: dict[Address, Exception] = {}
        await self._looked_up()
        while True:
            peer = self.current
            left_s = max(until - clock.now(), 0.0)
            try:
                # With several managers, a dial that fails moves on to the next one early.
                await self._up(peer, min(self._timeouts.connect_s, left_s))
                self._proven.add(self.current.address)
                return
            except HandshakeFailed as error:
                problems[peer.address] = self._plainly(error, peer.address)
                self._note_loss(clock.now())
            self._leave()
            if all(each in problems for each in self._addresses):
                self._names.failed()
            expected = (*self._names.plain, *self._names.found) or self._given
            if all(_is_wrong_secret(problems.get(each)) for each in expected):
                raise Unreachable(f"{self.shown}: {WRONG_SECRET}")
            if clock.now() >= until:
                raise Unreachable(self._all_failed(problems))
            await asyncio.sleep(0)

    async def _looked_up(self) -> None:
        """Looks the names up for the first time; does not wait if there is something to dial."""
        if not self._names.names or self._names.found:
            return
        self._names.look_up()
        while self._names.is_busy and set(self._addresses) <= set(self._names.names):
            await self._runtime.clock.sleep(LOOKUP_POLL_S)

    def _names_changed(self) -> None:
        """In place: every copy of this object has the same list."""
        self._addresses += [each for each in self._names.found if each not in self._addresses]
        for name in [each for each in self._addresses if each in self._names.names]:
            self._addresses.remove(name)
            if (peer := self._peers.pop(name, None)) is not None:
                self._board.tasks.start("close", peer.close())

    async def _up(self, peer: Peer, timeout_s: float) -> None:
        """Waits for a link to this manager, or turns to another one that answers first. A dial that
        has failed for good ends the wait early."""
        clock = self._runtime.clock
        until = clock.now() + timeout_s
        while True:
            slice_s = min(LINK_POLL_S, max(until - clock.now(), 0.0))
            try:
                await peer.connected(slice_s)
                return
            except HandshakeFailed as error:
                if clock.now() >= until or _is_wrong_secret(self._plainly(error, peer.address)):
                    raise
                if len(self._addresses) > 1 and isinstance(peer.last_error, OSError):
                    raise
                # A machine that is gone does not answer at all. Waiting for one after the other
                # would take longer than a query may.
                for index, each in enumerate(self._addresses):
                    if self._peer(each).control.session is not None:
                        # That one may name the first again: it must relay then.
                        self._away[peer.address] = clock.now()
                        self._at = index
                        return

    def _follow(self, primary: str) -> None:
        """Makes the hinted manager the current one: the hint is an address or a node id. Without
        a hint the next one is asked. If the hinted one did not answer a moment ago, the current one
        is asked to relay."""
        self._relayed_to = None
        hinted = address_in(primary)
        if hinted is not None and self._is_away(hinted) and hinted != self.current.address:
            self._relayed_to = hinted
            return
        for index, address in enumerate(self._addresses):
            peer = self._peers.get(address)
            session = peer.control.session if peer is not None else None
            named = session is not None and session.peer.node == primary
            if primary and (named or shown_address(address) == primary):
                self._at = index
                return
        if hinted is None:
            self._at += 1
            return
        self._addresses.append(hinted)
        self._at = len(self._addresses) - 1

    def _peer(self, address: Address) -> Peer:
        peer = self._peers.get(address)
        if peer is None:
            peer = self._peers[address] = Peer(self._board, address)
            # Nearly every question takes the bulk link: dialled together with the other one, it
            # costs no time. Through S3 a dial takes seconds.
            peer.bulk.wanted.set()
            peer.start()
        return peer

    def _plainly(self, error: HandshakeFailed, address: Address) -> Exception:
        """The error in one wording: operating systems have many."""
        cause = error.__cause__
        shown = self._shown or shown_address(address)
        if isinstance(cause, ConnectionRefusedError):
            return ConnectionError(f"{shown}: connection refused: nothing listens there")
        if isinstance(cause, NotResolved):
            return cause
        if isinstance(cause, OSError) and not isinstance(cause, TimeoutError):
            return ConnectionError(f"{shown}: {cause.strerror or cause}")
        if self._shown and isinstance(cause, TimeoutError):
            return ConnectionError(f"{shown}: the coordinator does not answer")
        if address in self._proven and _is_wrong_secret(error):
            return ConnectionError(f"{shown}: closes every connection immediately")
        return error

    def _all_failed(self, problems: dict[Address, Exception]) -> str:
        # Each problem already names its address or its store.
        found = (*problems.values(), *self._names.errors.values())
        reasons = "; ".join(dict.fromkeys(map(str, found)))
        if self._shown and reasons:
            return reasons
        if self.is_gated:
            return f"{self._last_delay}; no gate answers: {reasons or self.shown}"
        return f"no manager answers: {reasons or self.shown}"

    def _gave_up(self, after_s: float) -> Unreachable:
        reason = self._last_delay or "unknown reason"
        return Unreachable(f"{self.shown}: gave up after {after_s:.0f} s: {reason}")


def _is_wrong_secret(error: Exception | None) -> bool:
    return error is not None and WRONG_SECRET in str(error)


class _LastHeard:
    """When a manager was last heard, and the requests that wait no longer than a silence."""

    def __init__(self, runtime: Runtime) -> None:
        self._clock = runtime.clock
        self.at = -math.inf
        self._waiting: dict[asyncio.Timeout, float] = {}

    def now(self, peer: Identity) -> None:
        self.at = self._clock.now()
        for timeout, silence_s in self._waiting.items():
            if not timeout.expired():
                timeout.reschedule(asyncio.get_running_loop().time() + silence_s)

    @asynccontextmanager
    async def within(self, silence_s: float) -> AsyncGenerator[None]:
        """Raises TimeoutError when no manager was heard for `silence_s`."""
        async with asyncio.timeout(silence_s) as timeout:
            self._waiting[timeout] = silence_s
            try:
                yield
            finally:
                del self._waiting[timeout]


class _Unlimited:
    """A client is never flooded, so it admits everything."""

    waits = False

    async def turn(self) -> None: ...

    def release(self) -> None: ...


def _admit(message_class: MessageClass, source: str) -> _Unlimited:
    return _Unlimited()
