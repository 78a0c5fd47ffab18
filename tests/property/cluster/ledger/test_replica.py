"""Any order of deliveries, losses, repeats, stalls and restarts gives one history."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from squall.cluster.ledger.interface import Fence
from squall.cluster.ledger.replica.effects import Apply, Effect, Send
from squall.cluster.ledger.replica.messages import Heartbeat, Prepare
from tests.unit.cluster.ledger.lab.replicas import Lab

NAMES = "abc"
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("deliver"), st.integers(0, 30)),
        st.tuples(st.just("repeat"), st.integers(0, 30)),
        st.tuples(st.just("lose"), st.integers(0, 30)),
        st.tuples(st.just("tick"), st.integers(1, 12)),
        st.tuples(st.just("submit"), st.integers(0, 2)),
        st.tuples(st.just("restart"), st.integers(0, 2)),
        st.tuples(st.just("cut"), st.integers(0, 3)),
        st.tuples(st.just("settle"), st.just(0)),
    ),
    max_size=60,
)


class Watched(Lab):
    """Checks every effect as it comes."""

    def __init__(self, *names: str) -> None:
        self.history: dict[int, bytes] = {}
        self.leaders: dict[Fence, str] = {}
        super().__init__(*names)

    def take(self, name: str, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Apply):
                for entry in effect.entries:
                    known = self.history.setdefault(int(entry.op), entry.checksum)
                    assert known == entry.checksum, f"op {entry.op} has two values"
            elif isinstance(effect, Send) and isinstance(effect.packet.body, Prepare | Heartbeat):
                who = f"{name}.{self.boots[name]}"
                assert self.leaders.setdefault(effect.packet.fence, who) == who
        super().take(name, effects)

    def deliver(self, place: int, *, keep: bool = False) -> None:
        if not self.queue:
            return
        place %= len(self.queue)
        sender, send = self.queue[place]
        if not keep:
            del self.queue[place]
        for target in send.to:
            if target in self.members and not self.cut & {sender, target}:
                self.take(target, self.members[target].handle(send.packet, self.now))

    def step(self, what: str, number: int) -> None:
        match what:
            case "deliver":
                self.deliver(number)
            case "repeat":
                self.deliver(number, keep=True)
            case "lose" if self.queue:
                del self.queue[number % len(self.queue)]
            case "tick":
                self.now += number * 0.05
                for name in NAMES:
                    self.take(name, self.members[name].tick(self.now))
            case "submit" if self.members[NAMES[number]].may_submit():
                body = f"{what} {len(self.history)} {self.now}".encode()
                _, effects = self.members[NAMES[number]].submit([(1, body)], self.now)
                self.take(NAMES[number], effects)
            case "restart":
                self.start(NAMES[number])
            case "cut":
                self.cut = set(NAMES[number : number + 1])
            case "settle":
                self.settle()
            case _:
                pass


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_there_is_one_history_and_one_primary_per_view(steps: list[tuple[str, int]]) -> None:
    lab = Watched(*NAMES)
    lab.run(0.3)
    for what, number in steps:
        lab.step(what, number)
    lab.cut = set()
    lab.settle()
    lab.run(3.0)
    primary = lab.primary()
    lab.submit(primary, b"the end")
    lab.run(0.3)
    for name in NAMES:
        assert lab.applied(name)[-1] == b"the end"
