"""One sealed connection: handshake, frames in and out, keep-alive. A `StreamHandler`.

It joins the frames of a loop turn into one send, opens arriving frames, and closes on
anything that no honest peer sends: such input is counted and never answered. A listener
whose peer failed the handshake stays silent for a second, so that guessing secrets is slow,
and closes. No exception of a message reaches the network, and no timer is left behind.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from squall.cluster.wire.counters import WireCounters
from squall.cluster.wire.errors import (
    CERTIFICATE_REJECTED,
    NO_HANDSHAKE,
    SPEAKS_TLS,
    WRONG_SECRET,
    BadFrame,
    HandshakeFailed,
    SealBroken,
    WireError,
)
from squall.cluster.wire.header import LAYOUT_VERSION, OVERHEAD, Kind, MessageClass, unpack_header
from squall.cluster.wire.limits import WireLimits
from squall.cluster.wire.links.frames import BufferBudget, FrameDecoder
from squall.cluster.wire.links.handshake import (
    HANDSHAKE_FRAME_MAX,
    DiallerHandshake,
    ListenerHandshake,
    Session,
)
from squall.cluster.wire.links.keepalive import KeepAlive
from squall.cluster.wire.negotiation import LinkKind
from squall.cluster.wire.seal.certificate_claims import ClaimCheck
from squall.cluster.wire.seal.ciphers import SEQUENCES_MAX
from squall.runtime.interfaces import Clock, Connection

# How often a blocked link checks whether the network took some bytes.
ROOM_POLL_S = 0.005

_LAST_CLASS = int(MessageClass.TELEMETRY)
_LAST_KIND = int(Kind.CANCEL)
_PING = int(Kind.PING)
_PONG = int(Kind.PONG)
_CONTROL = int(MessageClass.CONTROL)


class LinkOwner(Protocol):
    """What a link calls; never from inside a call of the owner, except `on_lost`."""

    def on_established(self, link: Link, session: Session) -> None: ...
    def on_heard(self, link: Link) -> None:
        """An authentic frame arrived; called before it is handled, once per chunk of bytes."""
        ...

    def on_frame(
        self,
        link: Link,
        kind: int,
        type_number: int,
        correlation: int,
        budget_ms: int,
        frame: bytes,
    ) -> None:
        """Not authenticated before `link.unseal(frame)`, which may raise `SealBroken`."""
        ...

    def on_writable(self, link: Link) -> None:
        """The link has room again."""
        ...

    def awaits_answers(self) -> bool:
        """Whether requests wait for answers, which a peer that died will never send."""
        ...

    def on_error(self, link: Link, error: Exception) -> None:
        """The owner raised in one of the calls above; the link closes."""
        ...

    def on_lost(self, link: Link, error: Exception | None) -> None:
        """Called exactly once, last, also for a link that was never established."""
        ...


class Link:
    """Drives one connection from its handshake to its end."""

    def __init__(
        self,
        handshake: DiallerHandshake | ListenerHandshake,
        owner: LinkOwner,
        *,
        clock: Clock,
        limits: WireLimits,
        counters: WireCounters,
        keepalive: KeepAlive,
        budget: BufferBudget | None = None,
        claims: ClaimCheck | None = None,
    ) -> None:
        self.session: Session | None = None
        # Bytes that may be posted before messages should wait; 0 before there is a session.
        self.room = 0
        self.round_trip_s: float | None = None
        # When the bytes in hand arrived.
        self.arrived_at = 0.0
        self._handshake = handshake
        self._owner = owner
        self._clock = clock
        self._limits = limits
        self._counters = counters
        self._keepalive = keepalive
        self._claims = claims
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder(HANDSHAKE_FRAME_MAX, budget)
        self._connection: Connection | None = None
        self._out: list[bytes] = []
        # A flush is scheduled, or the frames of the present chunk are being handled.
        self._flushing = False
        self._over = False
        self._error: Exception | None = None
        # Whether an authentic frame of the present chunk of bytes has counted as a sign of life.
        self._stamped = True
        self._reading = True
        self._high_water = 0
        # The largest body that the peer takes on this link; known once it is established.
        self.body_max = 0
        self._heard_at = 0.0
        # Since when the rest of a frame is missing; None between two frames.
        self._partial_since: float | None = None
        # Whether frames other than pings passed since the last check, and when that was noticed.
        self._used = True
        self._used_by = 0.0
        # Idle links are pinged rarely; the first frame makes the link busy again (`_use`).
        self._idle = False
        self._ping = 0
        self._ping_sent_at = 0.0
        # While the peer takes no bytes: since when, and how many were unsent then.
        self._blocked_since = 0.0
        self._blocked_unsent = 0
        self._timer: asyncio.TimerHandle | None = None
        self._room_timer: asyncio.TimerHandle | None = None

    # Called by the network.

    @property
    def peer_host(self) -> str:
        """Where the other end is, by the connection; "" once that is closed."""
        return self._connection.peer[0] if self._connection is not None else ""

    @property
    def local_host(self) -> str:
        """The address of this node that the connection uses; "" once that is closed."""
        return self._connection.local[0] if self._connection is not None else ""

    def on_open(self, connection: Connection) -> None:
        self._connection = connection
        claims = self._claims
        if claims is not None:
            names = connection.peer_names
            self._handshake.objection_to = lambda peer: claims(names, peer)
        step = self._handshake.start()
        if step.failure is not None:
            self._fail(step.failure)
            return
        if step.send:
            connection.send(step.send)
        late = self._limits.handshake_timeout_s
        self._timer = self._loop.call_later(late, self._handshake_late)

    def on_data(self, data: bytes) -> None:
        if self._over:
            return
        try:
            if self.session is None:
                data = self._handle_handshake(data)
                if self.session is None or self._over:
                    return
            self._receive(data)
        except Exception as error:
            # A bug of the owner's: the link is in an unknown state, the node is not.
            self._owner.on_error(self, error)
            self.abort(error)

    def on_closed(self, error: Exception | None) -> None:
        self._over = True
        self._release()
        self._counters.links_lost += self.session is not None
        cause = self._error or error
        if self.session is None and self._error is None:
            # A node that does not accept our secret closes silently or resets.
            text = (
                WRONG_SECRET if self._claims is None else f"{WRONG_SECRET}; {CERTIFICATE_REJECTED}"
            )
            cause = HandshakeFailed(f"{text} ({error})" if error else text)
        self._connection = None
        self._owner.on_lost(self, cause)

    # Called by the owner.

    def post(
        self,
        message_class: int,
        kind: int,
        type_number: int,
        correlation: int,
        budget_ms: int,
        body: bytes,
    ) -> None:
        """Seals a frame now and sends it with the others of this turn; ignored if closed."""
        session = self.session
        if session is None or self._over:
            return
        head, sealed = session.seal.seal(
            message_class, kind, type_number, correlation, budget_ms, body
        )
        if not self._used:
            self._use(kind)
        out = self._out
        out.append(head)
        out.append(sealed)
        self.room -= len(sealed)
        self._counters.frames_sent += 1
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def unseal(self, frame: bytes) -> bytes:
        """Returns the body. The first authentic frame of a chunk counts as a sign of life."""
        session = self.session
        if session is None:
            raise SealBroken("there is no session")
        body = session.seal.open(frame)
        self._counters.frames_received += 1
        if not self._stamped:
            self._stamped = True
            self._heard_at = self.arrived_at
            self._owner.on_heard(self)
        return body

    @property
    def over(self) -> bool:
        """Closed or closing: nothing more is read or posted."""
        return self._over

    def pause_reading(self) -> None:
        if self._reading and self._connection is not None:
            self._reading = False
            self._connection.pause_reading()

    def resume_reading(self) -> None:
        if not self._reading and self._connection is not None:
            self._reading = True
            self._heard_at = self._clock.now()
            self._connection.resume_reading()

    def close(self) -> None:
        """Sends the posted frames, then closes."""
        if self._connection is None or self._over:
            return
        self._flush()
        self._over = True
        self._release()
        self._connection.close()

    def abort(self, error: Exception | None = None) -> None:
        if self._connection is None:
            return
        self._over = True
        self._error = self._error or error
        self._release()
        self._connection.abort()

    def turn_away(self, frame: bytes, error: Exception) -> None:
        """Ends a handshake with a last clear frame."""
        connection = self._connection
        if connection is None or self._over:
            self.abort(error)
            return
        self._over = True
        self._error = error
        self._release()
        connection.send(frame)
        connection.close()

    # Handshake.

    def _handle_handshake(self, data: bytes) -> bytes:
        """Goes frame by frame, because the cap rises with the session. Returns the rest."""
        # A record of TLS: an alert for a dialler, a client's hello for a listener. As the
        # length of a frame it is far over the cap.
        speaks_tls = data[:2] in (b"\x15\x03", b"\x16\x03")
        while self.session is None and not self._over:
            frames = self._decoder.feed(data, 1)
            data = b""
            if self._decoder.broken is not None:
                self._counters.oversized += 1
                self._fail(HandshakeFailed(SPEAKS_TLS if speaks_tls else WRONG_SECRET))
            elif not frames:
                break
            else:
                self._on_handshake_frame(frames[0])
        return data

    def _on_handshake_frame(self, frame: bytes) -> None:
        step = self._handshake.on_frame(frame)
        session, failure, connection = step.session, step.failure, self._connection
        if connection is None:
            return
        if step.send:
            connection.send(step.send)
        if failure is not None:
            self._fail(failure)
        elif session is not None:
            self._establish(session)

    def _establish(self, session: Session) -> None:
        self._counters.handshakes += 1
        self.session = session
        self._decoder.cap = self._limits.frame_cap(session.link)
        self.body_max = self._limits.body_max(session.link)
        self._high_water = self.room = self._limits.high_water(session.link)
        self._heard_at = self._clock.now()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._keepalive.add(self)
        self._owner.on_established(self, session)

    def _handshake_late(self) -> None:
        # A node that does not accept our secret closes much earlier; this one does not answer at
        # all.
        self._fail(HandshakeFailed(NO_HANDSHAKE))

    def _fail(self, failure: HandshakeFailed) -> None:
        """A dialler closes at once; a listener stays silent for a while first."""
        if failure.code:
            self._counters.handshake_refused += 1
        else:
            self._counters.handshake_failed += 1
        self._error = failure
        if isinstance(self._handshake, DiallerHandshake):
            self.abort()
            return
        self._over = True
        self._release()
        if self._connection is not None:
            self._connection.pause_reading()
        self._timer = self._loop.call_later(self._limits.failed_close_s, self.abort)

    # Frames.

    def _receive(self, data: bytes) -> None:
        self.arrived_at = self._clock.now()
        frames = self._decoder.feed(data)
        self._stamped = False
        # Answers given while this runs leave together at its end.
        corked = not self._flushing
        self._flushing = True
        try:
            for frame in frames:
                self._on_frame(frame)
                if self._over:
                    return
        finally:
            if corked:
                self._flush()
        if self._decoder.broken is not None:
            self._counters.oversized += 1
            self.abort(self._decoder.broken)
        elif not self._decoder.buffered:
            self._partial_since = None
        else:
            # A large frame on a slow path is not silence; the time it may take is bounded.
            self._heard_at = self.arrived_at
            if frames or self._partial_since is None:
                self._partial_since = self._heard_at

    def _on_frame(self, frame: bytes) -> None:
        session = self.session
        if session is None:
            return
        if len(frame) < OVERHEAD:
            self._reject("a frame is too short")
            return
        version, message_class, kind, type_number, correlation, budget_ms, sequence = unpack_header(
            frame
        )
        seal = session.seal
        if sequence != seal.received:
            if sequence < seal.received:
                self._counters.replay += 1
                self.abort(SealBroken("a frame was sent again"))
            else:
                self._reject("a frame is missing")
            return
        if version != LAYOUT_VERSION or message_class > _LAST_CLASS or kind > _LAST_KIND:
            self._reject("not a frame of this protocol")
            return
        seal.received = sequence + 1
        try:
            if kind == _PING:
                self.unseal(frame)
                # Answers to a peer that sends requests and does not read must not pile up.
                if self.room > 0:
                    self.post(_CONTROL, _PONG, 0, correlation, 0, b"")
            elif kind == _PONG:
                self.unseal(frame)
                self._on_pong(correlation)
            else:
                self._used = True
                self._owner.on_frame(self, kind, type_number, correlation, budget_ms, frame)
        except SealBroken as error:
            self._counters.bad_seal += 1
            self.abort(error)

    def _reject(self, why: str) -> None:
        self._counters.bad_frame += 1
        self.abort(BadFrame(why))

    def _flush(self) -> None:
        self._flushing = False
        connection, out = self._connection, self._out
        if not out or connection is None or self._over:
            return
        connection.send(b"".join(out))
        out.clear()
        unsent = connection.unsent
        was_full = self.room <= 0
        self.room = self._high_water - unsent
        if self.room > 0:
            if was_full:
                self._notify_writable()
        elif self._room_timer is None:
            self._blocked_since = self._clock.now()
            self._blocked_unsent = unsent
            self._room_timer = self._loop.call_later(ROOM_POLL_S, self._poll_room)

    def _poll_room(self) -> None:
        self._room_timer = None
        connection = self._connection
        if connection is None or self._over:
            return
        unsent, now = connection.unsent, self._clock.now()
        if unsent <= self._high_water // 2:
            self.room = self._high_water - unsent
            self._notify_writable()
            return
        if unsent < self._blocked_unsent:
            self._blocked_since = now
        elif now - self._blocked_since > self._limits.stall_s:
            self._counters.stalled += 1
            self.abort(WireError("the peer takes no more bytes"))
            return
        self._blocked_unsent = unsent
        self._room_timer = self._loop.call_later(ROOM_POLL_S, self._poll_room)

    def _notify_writable(self) -> None:
        try:
            self._owner.on_writable(self)
        except Exception as error:
            self._owner.on_error(self, error)
            self.abort(error)

    # Keep-alive.

    def check(self, now: float, late_s: float) -> bool:
        """Checks for signs of life and unfinished frames; returns whether the link idles."""
        limits, session = self._limits, self.session
        if session is None or self._over:
            return False
        # A blocked loop received nothing: its own delay is not the peer's silence.
        self._heard_at += late_s
        if self._used:
            # In use until a sign of life comes later than that.
            self._used_by = now
            self._used = session.link is LinkKind.CONTROL
        elif self._owner.awaits_answers():
            # A long poll may wait for a minute, and its caller has to learn of a death in 5 s.
            self._used_by = now
        self._idle = self._heard_at > self._used_by
        silent_s = now - self._heard_at
        if silent_s < limits.quiet_s and self._partial_since is None:
            if session.seal.sent > SEQUENCES_MAX:
                self.abort(WireError("this session has used its key long enough"))
            return self._idle
        since, dead_after_s, quiet_s = self._partial_since, limits.dead_after_s, limits.quiet_s
        if self._idle:
            quiet_s = limits.idle_quiet_s
            dead_after_s += quiet_s
        if self._reading and silent_s > dead_after_s:
            self._counters.keepalive_lost += 1
            self.abort(WireError(f"nothing heard for {dead_after_s:g} s"))
        elif self._reading and since is not None and now - since > limits.partial_frame_s:
            self._reject("a frame was not finished in time")
        elif silent_s >= quiet_s:
            self._ping = self._ping % 0xFFFF + 1
            self._ping_sent_at = now
            self.post(_CONTROL, _PING, 0, self._ping, 0, b"")
        return self._idle

    def _use(self, kind: int) -> None:
        """Notes the first frame since the last check. An idle link is pinged rarely, so its
        silence counts only from here on."""
        if kind in (_PING, _PONG):
            return
        self._used = True
        if self._idle:
            self._idle = False
            self._heard_at = self._clock.now()
            self._keepalive.add(self)

    def _on_pong(self, correlation: int) -> None:
        if correlation == self._ping:
            self.round_trip_s = self._clock.now() - self._ping_sent_at

    def _release(self) -> None:
        """Frees timers and buffers; the caller closes the connection."""
        self.room = 0
        self._keepalive.discard(self)
        self._out.clear()
        self._decoder.discard()
        for timer in (self._timer, self._room_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._room_timer = None
