"""Session keys, nonces and boot ciphers."""

from __future__ import annotations

import pytest

from squall.cluster.wire.errors import SealBroken
from squall.cluster.wire.header import HEADER_SIZE, NONCE_AT, PREFIX_SIZE
from squall.cluster.wire.roles import Role
from squall.cluster.wire.seal.ciphers import BootCiphers, SessionSeal
from squall.cluster.wire.seal.keyring import SessionKeys
from squall.cluster.wire.seal.secrets import Secrets
from squall.runtime.interfaces import BootId

SECRET = "sixteen characters"


def pair() -> tuple[SessionSeal, SessionSeal]:
    one, other = b"1" * 32, b"2" * 32
    return SessionSeal(one, other), SessionSeal(other, one)


def sealed(seal: SessionSeal, body: bytes = b"body", **changes: int) -> bytes:
    fields = {"message_class": 2, "kind": 0, "type_number": 9, "correlation": 1, "budget_ms": 5}
    head, rest = seal.seal(**{**fields, **changes}, body=body)
    return (head + rest)[PREFIX_SIZE:]


def keys(**changes: object) -> SessionKeys:
    fields = {
        "secret": b"s" * 32,
        "cluster": "c",
        "dialler": BootId("a"),
        "listener": BootId("b"),
        "dialler_nonce": b"1" * 16,
        "listener_nonce": b"2" * 16,
    }
    return SessionKeys(**{**fields, **changes})  # type: ignore[arg-type]


def test_the_other_side_opens_what_was_sealed() -> None:
    near, far = pair()
    assert far.open(sealed(near)) == b"body"


def test_no_nonce_is_used_twice_under_one_key() -> None:
    near, _ = pair()
    nonces = [sealed(near)[NONCE_AT:HEADER_SIZE] for _ in range(500)]
    assert len(set(nonces)) == len(nonces)


def test_equal_bodies_do_not_look_equal() -> None:
    near, _ = pair()
    assert sealed(near)[HEADER_SIZE:] != sealed(near)[HEADER_SIZE:]


def test_the_directions_have_keys_of_their_own() -> None:
    near, _ = pair()
    with pytest.raises(SealBroken):
        near.open(sealed(near))


def test_every_byte_of_a_frame_is_authenticated() -> None:
    near, far = pair()
    frame = sealed(near)
    for at in range(len(frame)):
        changed = bytearray(frame)
        changed[at] ^= 1
        with pytest.raises(SealBroken):
            far.open(bytes(changed))


@pytest.mark.parametrize(
    "change",
    [
        {"secret": b"t" * 32},
        {"cluster": "d"},
        {"dialler": BootId("x")},
        {"listener": BootId("x")},
        {"dialler_nonce": b"3" * 16},
        {"listener_nonce": b"3" * 16},
    ],
)
def test_everything_that_was_exchanged_is_part_of_the_session_key(
    change: dict[str, object],
) -> None:
    frame = sealed(keys().of_dialler())
    assert keys().of_listener().open(frame) == b"body"
    with pytest.raises(SealBroken):
        keys(**change).of_listener().open(frame)


def ciphers(*secrets: str, cluster: str = "c", purpose: str = "datagram") -> BootCiphers:
    return BootCiphers(Secrets.of_node(secrets[0], secrets[1:]), cluster, purpose)


def test_a_boot_cipher_opens_only_its_own_boot_role_cluster_and_purpose() -> None:
    boot, nonce = BootId("boot"), b"n" * 12
    cipher, _ = ciphers(SECRET).sending(Role.WORKER, boot)
    data = cipher.encrypt(nonce, b"body", b"clear")
    body, _ = ciphers(SECRET).open(Role.WORKER, "", boot, nonce, data, b"clear")
    assert body == b"body"
    for other, role, sender in (
        (ciphers("another secret 16"), Role.WORKER, boot),
        (ciphers(SECRET, cluster="d"), Role.WORKER, boot),
        (ciphers(SECRET, purpose="hello"), Role.WORKER, boot),
        (ciphers(SECRET), Role.NODE, boot),
        (ciphers(SECRET), Role.WORKER, BootId("boot2")),
    ):
        with pytest.raises(SealBroken):
            other.open(role, "", sender, nonce, data, b"clear")


def test_each_accepted_secret_opens_while_one_sends() -> None:
    boot, nonce = BootId("boot"), b"n" * 12
    receiver = ciphers("the newer secret!", SECRET)
    for sender in (ciphers(SECRET), ciphers("the newer secret!", SECRET)):
        cipher, _ = sender.sending(Role.NODE, boot)
        data = cipher.encrypt(nonce, b"body", b"")
        assert receiver.open(Role.NODE, "", boot, nonce, data, b"")[0] == b"body"


def test_unproven_senders_do_not_fill_the_cache_of_ciphers() -> None:
    receiver = ciphers(SECRET)
    for number in range(100):
        with pytest.raises(SealBroken):
            receiver.open(Role.NODE, "", BootId(f"b{number}"), b"n" * 12, b"x" * 40, b"")
    assert len(receiver) == 0


def test_the_cache_of_ciphers_is_bounded() -> None:
    receiver = BootCiphers(Secrets.of_node(SECRET), "c", "datagram", ciphers_max=3)
    for number in range(10):
        boot = BootId(f"b{number}")
        cipher, _ = ciphers(SECRET).sending(Role.NODE, boot)
        data = cipher.encrypt(b"n" * 12, b"body", b"")
        receiver.open(Role.NODE, "", boot, b"n" * 12, data, b"")
    assert len(receiver) == 3
