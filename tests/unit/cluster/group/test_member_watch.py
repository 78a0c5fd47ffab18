"""The notes of members: a restart takes over its name at once, a second process does not."""

from __future__ import annotations

import msgspec

from squall.cluster.group.member_watch import GroupWatch
from squall.cluster.protocol.group_messages import MemberNote, NameInUse
from squall.cluster.wire.links.dispatch import Incoming
from squall.cluster.wire.roles import Role
from squall.cluster.wire.seal.keyring import Identity
from squall.runtime.interfaces import BootId, NodeId
from squall.runtime.log import Log, MemorySink
from tests.unit.runtime.lab.manual_clock import ManualClock

NOTE_S = 0.5


class Told:
    """The channel to a process that sent a note."""

    def __init__(self, host: str) -> None:
        self.texts: list[str] = []
        self.link = self
        self.peer_host = host
        self.local_host = "10.0.0.9"

    def send(self, message: msgspec.Struct) -> None:
        assert isinstance(message, NameInUse)
        self.texts.append(message.text)


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.sink = MemorySink()
        log = Log(self.sink, self.clock)
        self.watch = GroupWatch("g1", {"g2": ("10.0.0.2", 7500)}, self.clock, log)
        self.told: dict[str, Told] = {}

    def note(self, boot: str, host: str, pid: int) -> None:
        peer = Identity(Role.NODE, NodeId("g2"), BootId(boot))
        told = self.told.setdefault(boot, Told(host))
        # Started with the same flags.
        note = MemberNote(address="10.0.0.2:7500", pid=pid)
        self.watch.receive(note, Incoming(peer, None, told))

    def first(self) -> None:
        self.note("a", "10.0.0.2", 11)

    def second(self) -> None:
        self.note("b", "10.0.0.9", 22)

    def passes(self, seconds: float = NOTE_S) -> None:
        self.clock.time += seconds


def test_two_processes_with_one_name_are_one_alarm_here_and_on_both() -> None:
    bench = Bench()
    for _ in range(10):
        bench.first()
        bench.second()
        bench.passes()
    text = (
        "two processes run as g2, on 10.0.0.2 (pid 11) and 10.0.0.9 (pid 22): "
        "stop one, or give it another name"
    )
    assert list(bench.watch.alarms) == [text]
    assert bench.sink.events() == ["alarm"]
    assert {each for told in bench.told.values() for each in told.texts} == {text}
    assert all(told.texts for told in bench.told.values())
    assert bench.watch.same_name("g2") == text
    assert bench.watch.heard["g2"].boot == "a", "its links and its address do not change"
    # The second one is stopped.
    for _ in range(5):
        bench.first()
        bench.passes()
    assert bench.watch.same_name("g2") == ""


def test_a_restart_has_the_name_soon_and_is_no_alarm() -> None:
    bench = Bench()
    bench.first()
    for _ in range(5):
        bench.passes()
        bench.second()
    assert bench.watch.heard["g2"].boot == "b"
    assert not bench.watch.alarms


def test_the_last_notes_of_a_dead_process_may_come_late() -> None:
    bench = Bench()
    bench.first()
    bench.passes()
    bench.second()
    bench.passes()
    bench.first()
    for _ in range(8):
        bench.passes()
        bench.second()
    assert bench.watch.heard["g2"].boot == "b"
    assert not bench.watch.alarms


def test_a_process_that_is_told_that_its_name_is_in_use_says_so_once() -> None:
    bench = Bench()
    peer = Identity(Role.NODE, NodeId("g2"), BootId("a"))
    for _ in range(3):
        bench.watch.name_in_use(NameInUse("two processes run as g1"), Incoming(peer, None, None))
    assert list(bench.watch.alarms) == ["two processes run as g1"]
