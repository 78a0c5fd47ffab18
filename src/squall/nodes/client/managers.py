"""The managers that a client talks to: any that answers, and the one that leads.

Every request of a client may be sent twice: submission by its key, everything else
because it names the state that is wanted. So a request whose fate is unknown is sent
again, to the next manager, until it is answered or patience ends. A manager that does not
lead says who does; one that is busy says when to come back.

A secret that no manager accepts is told at once: waiting would not help.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from copy import copy
from typing import Any, Protocol

import msgspec

from squall.nodes.client.errors import Unreachable, refused
from squall.nodes.patience import Patience
from squall.runtime.interfaces import Address, Runtime
from squall.runtime.tasks import TaskRunner
from squall.wire.dispatch import Handlers
from squall.wire.errors import (
    WRONG_SECRET,
    HandshakeFailed,
    NotSent,
    OutcomeUnknown,
    RemoteError,
)
from squall.wire.header import MessageClass
from squall.wire.messages import ErrorCode
from squall.wire.peer import Peer
from squall.wire.secrets import Secrets
from squall.wire.switchboard import Switchboard, make_keyring

BACKOFF_S = (0.05, 1.0)
LOOK_S = 0.1
"""How often one looks why a link is not up yet."""
LATER = (ErrorCode.RETRY_LATER, ErrorCode.OVERLOADED)


class Answerer(Protocol):
    def __call__(self, message: Any, timeout_s: float) -> Any: ...


class Managers:
    """Several addresses of one group. `close` ends all links."""

    def __init__(
        self,
        runtime: Runtime,
        tasks: TaskRunner,
        handlers: Handlers,
        *,
        addresses: Sequence[Address],
        secrets: Secrets,
        cluster: str,
        version: str = "",
        patience: Patience | None = None,
        shown: str = "",
    ) -> None:
        """`shown` is what people know the managers by, where it is not their addresses."""
        self._runtime = runtime
        self._shown = shown
        self._patience = patience or Patience()
        self._board = Switchboard(
            runtime=runtime,
            keyring=make_keyring(runtime, secrets, cluster),
            admit=_admit,
            tasks=tasks,
            handlers=handlers,
            limits=self._patience.limits,
        )
        self._addresses = list(dict.fromkeys(addresses))
        self._peers: dict[Address, Peer] = {}
        self._at = 0
        self._proven: set[Address] = set()
        """Had a session with us: they know the secret, whatever a later dial ends with. One
        that stood still for a while closes what came meanwhile without a word, as one with
        another secret does."""
        self.told_later = ""
        """What the last manager that asked for patience said."""

    def apart(self) -> Managers:
        """The same managers and links with a place of its own: who leads a job need not lead
        the group."""
        return copy(self)

    @property
    def board(self) -> Switchboard:
        return self._board

    @property
    def current(self) -> Peer:
        """The manager that is asked next."""
        return self._peer(self._addresses[self._at % len(self._addresses)])

    @property
    def is_store(self) -> bool:
        """They are agents behind a store."""
        return bool(self._shown)

    @property
    def shown(self) -> str:
        return self._shown or ", ".join(f"{host}:{port}" for host, port in self._addresses)

    async def ask(
        self, message: msgspec.Struct, *, timeout_s: float = 10.0, patience_s: float = 10.0
    ) -> Any:
        """The answer. `Refused` for a typed no, `Unreachable` after `patience_s`; the time in
        which a manager had the first request does not count."""
        clock = self._runtime.clock
        until = clock.now() + patience_s
        backoff_s = BACKOFF_S[0]
        failed = False
        while True:
            wait_s = backoff_s
            try:
                await self._connected(until)
                answer = await self.current.request(message, timeout_s)
                self.told_later = ""
                return answer
            except RemoteError as error:
                wait_s = self._after(error, backoff_s)
            except (NotSent, OutcomeUnknown) as error:
                self.told_later = str(error)
                self._at += 1
                until = until if failed else max(until, clock.now() + patience_s)
                failed = True
            if clock.now() + wait_s > until:
                raise self._gave_up(patience_s)
            await clock.sleep(wait_s * self._runtime.random.uniform(0.5, 1.0))
            backoff_s = min(2.0 * backoff_s, BACKOFF_S[1])

    async def ask_each(
        self, message: msgspec.Struct, *, timeout_s: float, of: Sequence[Address] = ()
    ) -> dict[Address, Any]:
        """Asks all of them, or all `of` these, at the same time and each once; the answers of
        those who gave one in time. Who leads does not matter here."""
        addresses = list(dict.fromkeys(of or self._addresses))
        answers = await asyncio.gather(
            *(self._once(each, message, timeout_s) for each in addresses)
        )
        found = zip(addresses, answers, strict=True)
        return {address: answer for address, answer in found if answer is not None}

    async def _once(self, address: Address, message: msgspec.Struct, timeout_s: float) -> Any:
        """None: no answer."""
        peer, until = self._peer(address), self._runtime.clock.now() + timeout_s
        while (left_s := until - self._runtime.clock.now()) > 0.0:
            try:
                await peer.connected(min(LOOK_S, left_s))
                return await peer.request(message, left_s)
            except HandshakeFailed:
                if isinstance(peer.last_error, ConnectionError):
                    return None
            except (NotSent, OutcomeUnknown, RemoteError):
                return None
        return None

    async def close(self) -> None:
        for peer in self._peers.values():
            await peer.close(drain_s=0.2)

    def _after(self, error: RemoteError, backoff_s: float) -> float:
        """How long to wait before the next try; raises for an answer that is final."""
        if error.code == ErrorCode.NOT_PRIMARY:
            self.told_later = "no manager leads the group at the moment"
            self._follow(error.primary)
            return backoff_s
        if error.code in LATER:
            self.told_later = error.text or "the managers cannot commit at the moment"
            if error.code == ErrorCode.RETRY_LATER:
                self._at += 1
            return max(error.retry_after_s, backoff_s)
        raise refused(error) from None

    async def _connected(self, until: float) -> None:
        """Returns when the current manager, or a later one, has a link."""
        clock = self._runtime.clock
        problems: dict[Address, Exception] = {}
        while True:
            peer = self.current
            left_s = max(until - clock.now(), 0.0)
            try:
                # Alone it is waited for as long as there is time; of several, only briefly.
                await self._up(peer, min(self._patience.connect_s, left_s))
                self._proven.add(peer.address)
                return
            except HandshakeFailed as error:
                problems[peer.address] = self._plainly(error, peer.address)
            self._at += 1
            if all(_is_wrong_secret(problems.get(each)) for each in self._addresses):
                raise Unreachable(f"{self.shown}: {WRONG_SECRET}")
            if clock.now() >= until:
                raise Unreachable(self._all_failed(problems))
            await asyncio.sleep(0)

    async def _up(self, peer: Peer, timeout_s: float) -> None:
        """Waits for a link; a dial that failed for good ends the wait early."""
        clock = self._runtime.clock
        until = clock.now() + timeout_s
        while True:
            slice_s = min(0.1, max(until - clock.now(), 0.0))
            try:
                await peer.connected(slice_s)
                return
            except HandshakeFailed as error:
                if clock.now() >= until or _is_wrong_secret(self._plainly(error, peer.address)):
                    raise
                if len(self._addresses) > 1 and isinstance(peer.last_error, OSError):
                    raise

    def _follow(self, primary: str) -> None:
        """The hint is an address or the id of a node; nobody named: the next one."""
        for index, address in enumerate(self._addresses):
            peer = self._peers.get(address)
            session = peer.control.session if peer is not None else None
            named = session is not None and session.peer.node == primary
            if primary and (named or f"{address[0]}:{address[1]}" == primary):
                self._at = index
                return
        hinted = _address_of(primary)
        if hinted is None:
            self._at += 1
            return
        self._addresses.append(hinted)
        self._at = len(self._addresses) - 1

    def _peer(self, address: Address) -> Peer:
        peer = self._peers.get(address)
        if peer is None:
            peer = self._peers[address] = Peer(self._board, address)
            peer.start()
        return peer

    def _plainly(self, error: HandshakeFailed, address: Address) -> Exception:
        """What people know it by: the systems word it in many ways."""
        cause = error.__cause__
        shown = self._shown or f"{address[0]}:{address[1]}"
        if isinstance(cause, ConnectionRefusedError):
            return ConnectionError(f"{shown}: nobody listens there (connection refused)")
        if isinstance(cause, OSError) and not isinstance(cause, TimeoutError):
            return ConnectionError(f"{shown}: {cause.strerror or cause}")
        if address in self._proven and _is_wrong_secret(error):
            return ConnectionError(f"{shown}: closes every connection at once")
        return error

    def _all_failed(self, problems: dict[Address, Exception]) -> str:
        # Each problem begins with its address, or with the store.
        reasons = "; ".join(dict.fromkeys(str(problem) for problem in problems.values()))
        if self._shown and reasons:
            return reasons
        return f"no manager answers: {reasons or self.shown}"

    def _gave_up(self, patience_s: float) -> Unreachable:
        return Unreachable(
            f"{self.shown}: gave up after {patience_s:.0f} s: {self.told_later or 'unknown reason'}"
        )


def _is_wrong_secret(error: Exception | None) -> bool:
    return error is not None and WRONG_SECRET in str(error)


def _address_of(text: str) -> Address | None:
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) < 65536):
        return None
    return host.removeprefix("[").removesuffix("]"), int(port)


class _Open:
    """Nobody floods a client: everything is admitted."""

    waits = False

    async def turn(self) -> None: ...

    def release(self) -> None: ...


def _admit(message_class: MessageClass, source: str) -> _Open:
    return _Open()
