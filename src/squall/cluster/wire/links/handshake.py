"""Establishes a session between two processes. Pure: frames in, frames and results out.

    dialler  -> HELLO    clear: role, name, boot, nonce; sealed with the boot's key: the rest
    listener -> WELCOME  clear: boot, nonce; sealed with a key of both nonces: the rest
             or REFUSAL  sealed the same way: why an authenticated peer is not let in
             or BUSY     clear, at any time before WELCOME: no room, the secret was not looked at
    dialler  -> CONFIRM  first frame of the session: proves that the dialler is not a recording

Each side proves the secret before it learns anything sealed, and the listener answers only
peers that proved it. Both use the secret of the weaker role, so a client or worker cannot
claim to be a node. A peer that did not prove the secret never learns why it failed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import msgspec
from cryptography.exceptions import InvalidTag

from squall.cluster.wire.errors import BUSY, WRONG_SECRET, BadFrame, HandshakeFailed, SealBroken
from squall.cluster.wire.header import (
    HEADER_SIZE,
    LAYOUT_VERSION,
    NONCE_AT,
    PREFIX_SIZE,
    TAG_SIZE,
    Kind,
    MessageClass,
    pack_frame_header,
    unpack_header,
)
from squall.cluster.wire.messages import Hello, Refusal, RefusalCode, Welcome
from squall.cluster.wire.negotiation import (
    GroupSettings,
    LinkKind,
    Profile,
    common_protocol,
    protocol_text,
    settings_match,
)
from squall.cluster.wire.roles import Role, shared_role
from squall.cluster.wire.seal.ciphers import NONCE_SIZE, SessionSeal
from squall.cluster.wire.seal.keyring import BOOT_ID_MAX_BYTES, Identity, Keyring, SessionKeys
from squall.cluster.wire.seal.secrets import split_key_name
from squall.runtime.interfaces import BootId, NodeId

# A peer that has not proved itself can make this node hold no more than this.
HANDSHAKE_FRAME_MAX = 4_096

_ROLES = frozenset(int(role) for role in Role)
_LINKS = frozenset(int(link) for link in LinkKind)


class _Clear(msgspec.Struct, frozen=True, array_like=True):
    """The unsealed part of a first frame: just enough to find the key."""

    boot: str
    nonce: bytes
    role: int = 0
    name: str = ""
    """A `key_name`: the key proves it, so it cannot be forged."""


# As long as the shortest first frame, so that an older dialler takes it for one it cannot open.
BUSY_FRAME = pack_frame_header(
    HEADER_SIZE + TAG_SIZE, LAYOUT_VERSION, MessageClass.CONTROL, Kind.BUSY, 0, 0, 0, 0
) + bytes(TAG_SIZE)

_encode = msgspec.msgpack.Encoder().encode
_decode_clear = msgspec.msgpack.Decoder(_Clear).decode
_decode_hello = msgspec.msgpack.Decoder(Hello).decode
_decode_welcome = msgspec.msgpack.Decoder(Welcome).decode
_decode_refusal = msgspec.msgpack.Decoder(Refusal).decode


@dataclass(frozen=True, slots=True)
class Session:
    """What an established link knows about its peer."""

    peer: Identity
    link: LinkKind
    protocol: int
    features: frozenset[str]
    peer_settings: GroupSettings
    seal: SessionSeal


@dataclass(frozen=True, slots=True)
class HandshakeStep:
    """The result of a frame: bytes to send, and a session, a failure, or neither yet."""

    send: bytes = b""
    session: Session | None = None
    failure: HandshakeFailed | None = None


Objection = Callable[[Identity], str]
"""A further check of an authenticated peer, such as its certificate; "" accepts it."""


def _none(peer: Identity) -> str:
    return ""


class DiallerHandshake:
    """The dialler's side. `expects` is the role of the listener, `node` its id where known."""

    def __init__(
        self,
        keyring: Keyring,
        profile: Profile,
        link: LinkKind,
        *,
        expects: Role = Role.NODE,
        node: NodeId | None = None,
    ) -> None:
        self._keyring = keyring
        self._profile = profile
        self._link = link
        self._expects = expects
        self._node = node
        self.objection_to: Objection = _none
        self._nonce = keyring.fresh_nonce()
        self._secret = b""

    def start(self) -> HandshakeStep:
        mine = self._keyring.identity
        role = shared_role(mine.role, self._expects)
        try:
            cipher, self._secret = self._keyring.hellos.sending(role, mine.boot, mine.key_name)
        except SealBroken as error:
            return HandshakeStep(failure=HandshakeFailed(str(error)))
        profile = self._profile
        hello = Hello(
            node=mine.node,
            link=self._link,
            protocol_min=profile.protocol_min,
            protocol_max=profile.protocol_max,
            features=tuple(sorted(profile.features)),
            group=profile.settings.group,
            epoch=profile.settings.epoch,
            digest=profile.settings.digest,
            version=profile.version,
            timers=profile.settings.timers,
        )
        clear = _encode(_Clear(mine.boot, self._nonce, mine.role, mine.key_name))
        body = _encode(hello)
        head = _head(Kind.HELLO, self._keyring.next_hello(), clear, len(body))
        sealed = cipher.encrypt(head[-12:], body, head[PREFIX_SIZE:] + clear)
        return HandshakeStep(send=_whole(head, clear, sealed))

    def on_frame(self, frame: bytes) -> HandshakeStep:
        if frame == BUSY_FRAME[PREFIX_SIZE:]:
            return HandshakeStep(failure=HandshakeFailed(BUSY, code=RefusalCode.BUSY))
        try:
            kind, _, clear, said, sealed = _split(frame)
        except BadFrame:
            return HandshakeStep(failure=HandshakeFailed(WRONG_SECRET))
        mine = self._keyring.identity
        keys = SessionKeys(
            self._secret,
            self._keyring.cluster,
            dialler=mine.boot,
            listener=BootId(said.boot),
            dialler_nonce=self._nonce,
            listener_nonce=said.nonce,
        )
        try:
            body = keys.welcome().decrypt(frame[NONCE_AT:HEADER_SIZE], sealed, clear)
            if kind == Kind.REFUSAL:
                return HandshakeStep(failure=_refused(_decode_refusal(body)))
            if kind != Kind.WELCOME:
                return HandshakeStep(failure=HandshakeFailed(WRONG_SECRET))
            welcome = _decode_welcome(body)
        except (InvalidTag, msgspec.DecodeError, RecursionError):
            return HandshakeStep(failure=HandshakeFailed(WRONG_SECRET))
        return self._judge(welcome, BootId(said.boot), keys)

    def _judge(self, welcome: Welcome, boot: BootId, keys: SessionKeys) -> HandshakeStep:
        profile = self._profile
        refusal = _objection(profile, welcome)
        if refusal is None and welcome.role != self._expects:
            refusal = Refusal(RefusalCode.ROLE, f"it is not a {self._expects.label}")
        if refusal is None and self._node not in (None, welcome.node):
            text = f"node {welcome.node} is at the address of node {self._node}"
            refusal = Refusal(RefusalCode.NODE, text)
        peer = Identity(self._expects, NodeId(welcome.node), boot)
        if refusal is None and (objection := self.objection_to(peer)):
            refusal = Refusal(RefusalCode.ROLE, objection)
        if refusal is not None:
            return HandshakeStep(failure=HandshakeFailed(refusal.text, code=refusal.code))
        session = _session(profile, welcome, peer, self._link, keys.of_dialler())
        confirm = session.seal.seal(MessageClass.CONTROL, Kind.CONFIRM, 0, 0, 0, b"")
        return HandshakeStep(send=b"".join(confirm), session=session)


class ListenerHandshake:
    """The listener's side. `accepts` are the roles that may connect."""

    def __init__(self, keyring: Keyring, profile: Profile, accepts: Collection[Role]) -> None:
        self._keyring = keyring
        self._profile = profile
        self._accepts = accepts
        self.objection_to: Objection = _none
        self._session: Session | None = None

    @property
    def has_proof(self) -> bool:
        """The peer's first frame was sealed with the secret."""
        return self._session is not None

    def start(self) -> HandshakeStep:
        return HandshakeStep()

    def on_frame(self, frame: bytes) -> HandshakeStep:
        try:
            if self._session is None:
                return self._on_hello(frame)
            return self._on_confirm(frame, self._session)
        except (BadFrame, SealBroken, msgspec.DecodeError, RecursionError) as error:
            return HandshakeStep(failure=HandshakeFailed(f"handshake failed: {error}"))

    def _on_hello(self, frame: bytes) -> HandshakeStep:
        kind, sequence, clear, said, sealed = _split(frame)
        if kind != Kind.HELLO or said.role not in _ROLES:
            raise BadFrame("not a hello")
        role, boot, mine = Role(said.role), BootId(said.boot), self._keyring.identity
        key_role = shared_role(role, mine.role)
        body, secret = self._keyring.hellos.open(
            key_role, said.name, boot, frame[NONCE_AT:HEADER_SIZE], sealed, clear
        )
        if not self._keyring.hello_replays.accept((key_role, boot), sequence):
            raise SealBroken("a hello was sent again")
        nonce = self._keyring.fresh_nonce()
        keys = SessionKeys(
            secret,
            self._keyring.cluster,
            dialler=boot,
            listener=mine.boot,
            dialler_nonce=said.nonce,
            listener_nonce=nonce,
        )
        hello = _decode_hello(body)
        refusal = _objection(self._profile, hello)
        if refusal is None and (role not in self._accepts or hello.link not in _LINKS):
            refusal = Refusal(RefusalCode.ROLE, f"a {role.label} may not connect here")
        peer = Identity(role, NodeId(hello.node), boot, *split_key_name(said.name))
        if refusal is None and (objection := self.objection_to(peer)):
            refusal = Refusal(RefusalCode.ROLE, objection)
        if refusal is not None:
            answer = self._answer(Kind.REFUSAL, keys, nonce, _encode(refusal))
            failure = HandshakeFailed(f"refused: {refusal.text}", code=refusal.code)
            return HandshakeStep(send=answer, failure=failure)
        self._session = _session(
            self._profile, hello, peer, LinkKind(hello.link), keys.of_listener()
        )
        return HandshakeStep(send=self._answer(Kind.WELCOME, keys, nonce, _encode(self._welcome())))

    def _on_confirm(self, frame: bytes, session: Session) -> HandshakeStep:
        if len(frame) < HEADER_SIZE + TAG_SIZE:
            raise BadFrame("too short")
        version, _, kind, _, _, _, sequence = unpack_header(frame)
        if (version, kind, sequence) != (LAYOUT_VERSION, Kind.CONFIRM, 0):
            raise BadFrame("not a confirmation")
        session.seal.open(frame)
        session.seal.received = 1
        return HandshakeStep(session=session)

    def _welcome(self) -> Welcome:
        mine, profile = self._keyring.identity, self._profile
        return Welcome(
            node=mine.node,
            role=mine.role,
            protocol_min=profile.protocol_min,
            protocol_max=profile.protocol_max,
            features=tuple(sorted(profile.features)),
            group=profile.settings.group,
            epoch=profile.settings.epoch,
            digest=profile.settings.digest,
            version=profile.version,
            timers=profile.settings.timers,
        )

    def _answer(self, kind: Kind, keys: SessionKeys, nonce: bytes, body: bytes) -> bytes:
        clear = _encode(_Clear(self._keyring.identity.boot, nonce))
        head = _head(kind, 0, clear, len(body))
        sealed = keys.welcome().encrypt(head[-12:], body, head[PREFIX_SIZE:] + clear)
        return _whole(head, clear, sealed)


def _objection(mine: Profile, theirs: Hello | Welcome) -> Refusal | None:
    """Compares versions and settings. Both sides do, so that neither relies on the other."""
    spoken = common_protocol(
        mine.protocol_min, mine.protocol_max, theirs.protocol_min, theirs.protocol_max
    )
    if spoken is None:
        return Refusal(
            RefusalCode.VERSION,
            f"protocols {protocol_text(theirs.protocol_min)} to "
            f"{protocol_text(theirs.protocol_max)} and {protocol_text(mine.protocol_min)} to "
            f"{protocol_text(mine.protocol_max)} have no version in common",
        )
    if not settings_match(mine.settings, _settings(theirs)):
        return Refusal(
            RefusalCode.SETTINGS,
            _difference(mine.settings, _settings(theirs)),
            epoch=mine.settings.epoch,
        )
    return None


def _difference(mine: GroupSettings, theirs: GroupSettings) -> str:
    if mine.timers != theirs.timers:
        return (
            f"the timers of two members of group {mine.group} differ: start all of its members "
            "with the same ones"
        )
    return (
        f"the members of group {mine.group} were formed apart: one of them has the data "
        "directory of another group"
    )


def _session(
    mine: Profile, theirs: Hello | Welcome, peer: Identity, link: LinkKind, seal: SessionSeal
) -> Session:
    return Session(
        peer=peer,
        link=link,
        protocol=min(mine.protocol_max, theirs.protocol_max),
        features=mine.features & frozenset(theirs.features),
        peer_settings=_settings(theirs),
        seal=seal,
    )


def _settings(theirs: Hello | Welcome) -> GroupSettings:
    return GroupSettings(theirs.group, theirs.epoch, theirs.digest, theirs.timers)


def _refused(refusal: Refusal) -> HandshakeFailed:
    return HandshakeFailed(f"the peer refused us: {refusal.text}", code=refusal.code)


def _head(kind: Kind, sequence: int, clear: bytes, body_size: int) -> bytes:
    """A first frame has the length of its clear part where others have their type number."""
    length = HEADER_SIZE + len(clear) + body_size + TAG_SIZE
    return pack_frame_header(
        length, LAYOUT_VERSION, MessageClass.CONTROL, kind, len(clear), 0, 0, sequence
    )


def _whole(head: bytes, clear: bytes, sealed: bytes) -> bytes:
    frame = head + clear + sealed
    if len(frame) - PREFIX_SIZE > HANDSHAKE_FRAME_MAX:
        raise ValueError(f"a handshake frame of {len(frame)} bytes: fewer or shorter features")
    return frame


def _split(frame: bytes) -> tuple[int, int, bytes, _Clear, bytes]:
    """(kind, sequence, associated data, its clear part, sealed part) of a first frame."""
    if len(frame) < HEADER_SIZE + TAG_SIZE:
        raise BadFrame("too short")
    version, _, kind, clear_size, _, _, sequence = unpack_header(frame)
    clear_end = HEADER_SIZE + clear_size
    if version != LAYOUT_VERSION or clear_end + TAG_SIZE > len(frame):
        raise BadFrame("not a first frame")
    try:
        said = _decode_clear(frame[HEADER_SIZE:clear_end])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadFrame("not a first frame") from None
    if len(said.nonce) != NONCE_SIZE or not 0 < len(said.boot.encode()) <= BOOT_ID_MAX_BYTES:
        raise BadFrame("not a first frame")
    return kind, sequence, frame[:clear_end], said, frame[clear_end:]
