"""Coverage-guided fuzzing of what strangers can reach: `make fuzz ARGS=-max_total_time=60`.

Decoder, both handshake cores, datagrams and the catalogue get arbitrary bytes; an
established link gets arbitrary frames sealed by a peer that holds the key, so that what
lies behind the seal is reached as well. Any exception that is not one of the typed
outcomes ends the run.
"""

from __future__ import annotations

import random
import sys

import atheris

with atheris.instrument_imports(include=["squall"]):
    from squall.cluster.wire.catalogue import CATALOGUE
    from squall.cluster.wire.datagram import DatagramSeal
    from squall.cluster.wire.errors import BadFrame, DecodeError, SealBroken, UnknownType
    from squall.cluster.wire.header import PREFIX_SIZE
    from squall.cluster.wire.links.frames import FrameDecoder
    from squall.cluster.wire.links.handshake import DiallerHandshake, ListenerHandshake, Session
    from squall.cluster.wire.negotiation import LinkKind, Profile
    from squall.cluster.wire.roles import Role
    from squall.cluster.wire.seal.keyring import Keyring
    from squall.cluster.wire.seal.secrets import Secrets
    from squall.runtime.interfaces import BootId, NodeId

SECRETS = Secrets.of_node("a secret of the fuzzer")
ROWS = list(CATALOGUE)
TYPED = (BadFrame, DecodeError, SealBroken, UnknownType)


def keyring(name: str) -> Keyring:
    return Keyring(
        SECRETS,
        cluster="c",
        node=NodeId(name),
        boot=BootId(name),
        entropy=random.Random(1).randbytes,
    )


def decode(data: bytes) -> None:
    whole, pieces = FrameDecoder(512), FrameDecoder(512)
    expected = whole.feed(data)
    found: list[bytes] = []
    for byte in data:
        if pieces.broken is None:
            found += pieces.feed(bytes([byte]))
    assert found == expected
    assert (whole.broken is None) == (pieces.broken is None)


def listen(data: bytes) -> None:
    step = ListenerHandshake(keyring("l"), Profile(), frozenset(Role)).on_frame(data)
    assert not step.send and step.session is None


def dial(data: bytes) -> None:
    dialler = DiallerHandshake(keyring("d"), Profile(), LinkKind.CONTROL)
    dialler.start()
    step = dialler.on_frame(data)
    assert not step.send and step.session is None


def hello_of_a_holder(data: bytes) -> None:
    """A peer with the secret says nonsense: a session or a refusal, never a crash."""
    keys = keyring("d")
    cipher, _ = keys.hellos.sending(Role.NODE, BootId("d"))
    genuine = DiallerHandshake(keys, Profile(), LinkKind.CONTROL).start().send[PREFIX_SIZE:]
    clear_end = 28 + int.from_bytes(genuine[4:6], "big")
    clear = genuine[:clear_end]
    frame = clear + cipher.encrypt(clear[16:28], data, clear)
    ListenerHandshake(keyring("l"), Profile(), frozenset(Role)).on_frame(frame)


def datagram(data: bytes) -> None:
    try:
        DatagramSeal(keyring("l")).open(data, ("host", 1))
    except TYPED:
        return
    raise AssertionError("invented bytes were believed")


def body(data: bytes) -> None:
    row = ROWS[data[0] % len(ROWS)] if data else ROWS[0]
    try:
        CATALOGUE.decode(row, data[1:])
    except DecodeError as error:
        str(error).encode()


def session() -> tuple[Session, Session]:
    dialler = DiallerHandshake(keyring("d"), Profile(), LinkKind.CONTROL)
    listener = ListenerHandshake(keyring("l"), Profile(), frozenset(Role))
    answer = dialler.on_frame(listener.on_frame(dialler.start().send[PREFIX_SIZE:]).send[4:])
    done = listener.on_frame(answer.send[PREFIX_SIZE:])
    assert answer.session is not None and done.session is not None
    return answer.session, done.session


NEAR, FAR = session()


def frame(data: bytes) -> None:
    """Changed bytes never open, unchanged ones always do."""
    NEAR.seal.sent = 1
    genuine = b"".join(NEAR.seal.seal(0, 0, 1, 0, 0, b"body"))[PREFIX_SIZE:]
    changed = bytes(a ^ b for a, b in zip(genuine, data.ljust(len(genuine), b"\0"), strict=False))
    try:
        opened = FAR.seal.open(changed)
    except SealBroken:
        assert changed != genuine
    else:
        assert changed == genuine and opened == b"body"


TARGETS = (decode, listen, dial, hello_of_a_holder, datagram, body, frame)


def one_input(data: bytes) -> None:
    if data:
        TARGETS[data[0] % len(TARGETS)](data[1:])


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
