"""The two sides of the handshake against each other, and against peers that must be refused."""

from __future__ import annotations

import itertools
import random

import pytest

from squall.cluster.wire.errors import WRONG_SECRET, HandshakeFailed
from squall.cluster.wire.header import PREFIX_SIZE
from squall.cluster.wire.links.frames import FrameDecoder
from squall.cluster.wire.links.handshake import DiallerHandshake, ListenerHandshake, Session
from squall.cluster.wire.messages import RefusalCode
from squall.cluster.wire.negotiation import GroupSettings, LinkKind, Profile, protocol
from squall.cluster.wire.roles import Role
from squall.cluster.wire.seal.keyring import Keyring
from squall.cluster.wire.seal.secrets import Secrets, client_credential, worker_credential
from squall.runtime.interfaces import BootId, NodeId
from tests.fakes.wire import Forged

SECRET = "sixteen characters"
EVERYBODY = frozenset(Role)
_seeds = itertools.count()


def keyring(secrets: Secrets | None = None, name: str = "a", cluster: str = "c") -> Keyring:
    return Keyring(
        secrets or Secrets.of_node(SECRET),
        cluster=cluster,
        node=NodeId(f"node-{name}"),
        boot=BootId(f"boot-{name}"),
        entropy=random.Random(next(_seeds)).randbytes,
    )


def shake(
    dialler: DiallerHandshake, listener: ListenerHandshake
) -> tuple[Session | HandshakeFailed, Session | HandshakeFailed | None]:
    """How it ended at the dialler and at the listener, None for silence."""
    hello = dialler.start()
    if hello.failure is not None:
        return hello.failure, None
    welcome = listener.on_frame(hello.send[PREFIX_SIZE:])
    if not welcome.send:
        return HandshakeFailed("silence"), welcome.failure
    confirm = dialler.on_frame(welcome.send[PREFIX_SIZE:])
    if confirm.session is None:
        assert confirm.failure is not None
        return confirm.failure, welcome.failure
    done = listener.on_frame(confirm.send[PREFIX_SIZE:])
    return confirm.session, done.session or done.failure


def dial(secrets: Secrets | None = None, profile: Profile | None = None, **more: object):
    return DiallerHandshake(
        keyring(secrets, "d"),
        profile or Profile(),
        LinkKind.CONTROL,
        **more,  # type: ignore[arg-type]
    )


def listen(
    secrets: Secrets | None = None,
    profile: Profile | None = None,
    accepts: frozenset[Role] = EVERYBODY,
) -> ListenerHandshake:
    return ListenerHandshake(keyring(secrets, "l"), profile or Profile(), accepts)


def test_both_sides_come_to_the_same_session_and_know_each_other() -> None:
    near, far = shake(dial(), listen())
    assert isinstance(near, Session) and isinstance(far, Session)
    assert (near.peer.role, near.peer.node, near.peer.boot) == (Role.NODE, "node-l", "boot-l")
    assert (far.peer.role, far.peer.node, far.peer.boot) == (Role.NODE, "node-d", "boot-d")
    head, body = near.seal.seal(0, 0, 9, 0, 0, b"first")
    assert far.seal.open((head + body)[PREFIX_SIZE:]) == b"first"


def test_the_sequence_of_the_confirmation_is_not_used_again() -> None:
    near, far = shake(dial(), listen())
    assert isinstance(near, Session) and isinstance(far, Session)
    assert near.seal.sent == far.seal.received == 1


def test_a_wrong_secret_gets_no_answer() -> None:
    near, far = shake(dial(Secrets.of_node("another secret 16")), listen())
    assert isinstance(near, HandshakeFailed) and str(near) == "silence"
    assert isinstance(far, HandshakeFailed) and not far.code


def test_another_cluster_with_the_same_secret_gets_no_answer() -> None:
    stranger = DiallerHandshake(keyring(name="d", cluster="d"), Profile(), LinkKind.CONTROL)
    near, _ = shake(stranger, listen())
    assert isinstance(near, HandshakeFailed) and str(near) == "silence"


def test_a_listener_that_does_not_know_the_secret_is_not_believed() -> None:
    dialler = dial()
    hello = dialler.start().send
    other = dial()
    theirs = listen().on_frame(other.start().send[PREFIX_SIZE:]).send
    for answer in (theirs[PREFIX_SIZE:], hello[PREFIX_SIZE:], b"", b"HTTP/1.1 400 Bad Request"):
        failure = dialler.on_frame(answer).failure
        assert failure is not None and str(failure) == WRONG_SECRET


def test_a_hello_that_is_sent_again_gets_no_answer() -> None:
    keys = keyring(name="l")
    hello = dial().start().send[PREFIX_SIZE:]
    assert ListenerHandshake(keys, Profile(), EVERYBODY).on_frame(hello).send
    again = ListenerHandshake(keys, Profile(), EVERYBODY).on_frame(hello)
    assert not again.send
    assert again.failure is not None


def test_a_recorded_session_does_not_fit_a_restarted_listener() -> None:
    dialler, listener = dial(), listen()
    hello = dialler.start().send[PREFIX_SIZE:]
    confirm = dialler.on_frame(listener.on_frame(hello).send[PREFIX_SIZE:]).send[PREFIX_SIZE:]
    restarted = listen()
    assert restarted.on_frame(hello).send
    replayed = restarted.on_frame(confirm)
    assert replayed.session is None and replayed.failure is not None


def test_two_sessions_of_the_same_boots_have_different_keys() -> None:
    near_keys, far_keys = keyring(name="d"), keyring(name="l")
    frames = []
    for _ in range(2):
        near, _ = shake(
            DiallerHandshake(near_keys, Profile(), LinkKind.CONTROL),
            ListenerHandshake(far_keys, Profile(), EVERYBODY),
        )
        assert isinstance(near, Session)
        frames.append(b"".join(near.seal.seal(0, 0, 9, 0, 0, b"same")))
    assert frames[0] != frames[1]


@pytest.mark.parametrize("claimed", [Role.NODE, Role.WORKER])
def test_a_client_that_claims_a_stronger_role_gets_no_answer(claimed: Role) -> None:
    """It seals with the only secret it has and writes another role on the outside."""
    genuine = Secrets.of_credential(client_credential(SECRET, "alice"))
    forged = Forged(claimed, "", genuine.for_role(Role.CLIENT, "alice"))
    near, far = shake(dial(forged), listen())
    assert isinstance(near, HandshakeFailed) and str(near) == "silence"
    assert isinstance(far, HandshakeFailed)


def test_a_client_cannot_take_another_clients_name() -> None:
    genuine = Secrets.of_credential(client_credential(SECRET, "mallory"))
    forged = Forged(Role.CLIENT, "alice", genuine.for_role(Role.CLIENT, "mallory"))
    near, _ = shake(dial(forged), listen())
    assert isinstance(near, HandshakeFailed) and str(near) == "silence"


def test_a_client_is_known_by_the_name_in_its_credential() -> None:
    _, far = shake(dial(Secrets.of_credential(client_credential(SECRET, "alice"))), listen())
    assert isinstance(far, Session)
    assert (far.peer.role, far.peer.name) == (Role.CLIENT, "alice")


def test_nodes_and_workers_meet_in_both_directions() -> None:
    worker = Secrets.of_credential(worker_credential(SECRET))
    _, far = shake(dial(worker), listen())
    assert isinstance(far, Session) and far.peer.role is Role.WORKER
    near, _ = shake(dial(expects=Role.WORKER), listen(worker))
    assert isinstance(near, Session) and near.peer.role is Role.WORKER


def test_a_worker_that_listens_is_not_taken_for_a_node() -> None:
    near, _ = shake(dial(), listen(Secrets.of_credential(worker_credential(SECRET))))
    assert isinstance(near, HandshakeFailed)


def test_a_role_that_may_not_connect_is_refused_by_name() -> None:
    client = Secrets.of_credential(client_credential(SECRET, "alice"))
    near, far = shake(dial(client), listen(accepts=frozenset({Role.NODE})))
    assert isinstance(near, HandshakeFailed) and near.code == RefusalCode.ROLE
    assert "a client may not connect here" in str(near)
    assert isinstance(far, HandshakeFailed) and far.code == RefusalCode.ROLE


@pytest.mark.parametrize(
    ("dials", "listens"),
    [("old", "old"), ("old", "both"), ("both-new", "both"), ("both", "both-new"), ("new", "both")],
)
def test_a_secret_is_changed_without_a_moment_of_silence(dials: str, listens: str) -> None:
    old, new = "the former secret", "the newer secret!"
    stages = {
        "old": Secrets.of_node(old),
        "both": Secrets.of_node(old, [new]),
        "both-new": Secrets.of_node(new, [old]),
        "new": Secrets.of_node(new),
    }
    near, far = shake(dial(stages[dials]), listen(stages[listens]))
    assert isinstance(near, Session) and isinstance(far, Session)


def test_an_old_secret_is_refused_once_it_was_taken_away() -> None:
    near, _ = shake(
        dial(Secrets.of_node("the former secret")), listen(Secrets.of_node("the newer secret!"))
    )
    assert isinstance(near, HandshakeFailed)


def test_minor_versions_meet_at_the_lower_one() -> None:
    newer = Profile(protocol_max=protocol(1, 3))
    near, far = shake(dial(profile=newer), listen(profile=Profile(protocol_max=protocol(1, 2))))
    assert isinstance(near, Session) and isinstance(far, Session)
    assert near.protocol == far.protocol == protocol(1, 2)


@pytest.mark.parametrize(
    "theirs",
    [
        Profile(protocol_min=protocol(2, 0), protocol_max=protocol(2, 0)),
        Profile(protocol_min=protocol(1, 5), protocol_max=protocol(1, 9)),
    ],
)
def test_another_major_or_too_old_a_version_is_a_typed_refusal(theirs: Profile) -> None:
    near, far = shake(dial(profile=theirs), listen())
    assert isinstance(near, HandshakeFailed) and near.code == RefusalCode.VERSION
    assert "have no version in common" in str(near)
    assert isinstance(far, HandshakeFailed) and far.code == RefusalCode.VERSION


def test_features_are_those_that_both_know() -> None:
    near, far = shake(
        dial(profile=Profile(features=frozenset({"a", "b", "new"}))),
        listen(profile=Profile(features=frozenset({"b", "a", "old"}))),
    )
    assert isinstance(near, Session) and isinstance(far, Session)
    assert near.features == far.features == {"a", "b"}


def group(digest: bytes, epoch: int = 1, name: str = "managers", timers: bytes = b"lan") -> Profile:
    return Profile(settings=GroupSettings(name, epoch, digest, timers))


def test_members_that_were_formed_apart_refuse_each_other() -> None:
    near, far = shake(dial(profile=group(b"one")), listen(profile=group(b"two")))
    assert isinstance(near, HandshakeFailed) and near.code == RefusalCode.SETTINGS
    assert "the data directory of another group" in str(near)
    assert isinstance(far, HandshakeFailed) and far.code == RefusalCode.SETTINGS


def test_members_with_other_timers_are_refused_in_every_epoch() -> None:
    for epoch, digest in ((1, b"one"), (2, b"one"), (0, b"")):
        near, far = shake(
            dial(profile=group(b"one", timers=b"fast")), listen(profile=group(digest, epoch))
        )
        assert isinstance(near, HandshakeFailed) and near.code == RefusalCode.SETTINGS
        assert "start all of its members with the same ones" in str(near)
        assert isinstance(far, HandshakeFailed)


def test_a_node_that_does_not_know_its_group_yet_is_let_in() -> None:
    near, far = shake(dial(profile=group(b"")), listen(profile=group(b"one")))
    assert isinstance(near, Session) and isinstance(far, Session)


def test_a_member_of_a_lower_epoch_is_let_in_to_be_brought_up() -> None:
    near, far = shake(dial(profile=group(b"one", 1)), listen(profile=group(b"two", 2)))
    assert isinstance(near, Session) and isinstance(far, Session)
    assert (near.peer_settings.epoch, far.peer_settings.epoch) == (2, 1)


def test_members_of_different_groups_need_not_agree() -> None:
    near, _ = shake(dial(profile=group(b"one", name="gates")), listen(profile=group(b"two")))
    assert isinstance(near, Session)


def test_another_node_at_a_known_address_is_not_taken_for_it() -> None:
    near, _ = shake(dial(node=NodeId("node-x")), listen())
    assert isinstance(near, HandshakeFailed) and near.code == RefusalCode.NODE
    assert "node-l is at the address of node node-x" in str(near)


def test_every_changed_byte_of_a_hello_ends_in_silence() -> None:
    hello = dial().start().send[PREFIX_SIZE:]
    for at in range(len(hello)):
        changed = bytearray(hello)
        changed[at] ^= 0x20
        step = listen().on_frame(bytes(changed))
        assert not step.send and step.session is None and step.failure is not None


def test_every_changed_byte_of_a_welcome_is_not_believed() -> None:
    dialler, listener = dial(), listen()
    welcome = listener.on_frame(dialler.start().send[PREFIX_SIZE:]).send[PREFIX_SIZE:]
    for at in range(len(welcome)):
        changed = bytearray(welcome)
        changed[at] ^= 0x20
        step = dialler.on_frame(bytes(changed))
        assert not step.send and step.session is None and step.failure is not None
    assert dialler.on_frame(welcome).session is not None


def test_a_handshake_frame_fits_what_an_unproven_peer_may_send() -> None:
    hello = dial(profile=Profile(features=frozenset(f"feature-{n}" for n in range(50)))).start()
    assert len(FrameDecoder(4_096).feed(hello.send)) == 1
    with pytest.raises(ValueError, match="fewer or shorter features"):
        dial(profile=Profile(features=frozenset(f"feature-{n}" for n in range(999)))).start()


def test_an_operator_is_known_by_its_credential_and_keeps_its_name() -> None:
    operator = client_credential(SECRET, "alice", operator=True)
    _, far = shake(dial(Secrets.of_credential(operator)), listen())
    assert isinstance(far, Session)
    assert (far.peer.role, far.peer.name, far.peer.operator) == (Role.CLIENT, "alice", True)
    _, plain = shake(dial(Secrets.of_credential(client_credential(SECRET, "alice"))), listen())
    assert isinstance(plain, Session) and not plain.peer.operator


def test_a_client_cannot_say_that_it_is_an_operator() -> None:
    genuine = Secrets.of_credential(client_credential(SECRET, "alice"))
    own = genuine.for_role(Role.CLIENT, "alice")
    near, far = shake(dial(Forged(Role.CLIENT, "alice", own, operator=True)), listen())
    assert isinstance(near, HandshakeFailed) and str(near) == "silence"
    assert isinstance(far, HandshakeFailed)
