"""Membership among real processes: who lives, who is dead, who left; each end is logged once."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from squall.cluster.wire.seal.secrets import worker_credential
from tests.cluster.lab.group import until
from tests.cluster.lab.members import member_states, members, transitions, view_in_log
from tests.cluster.lab.nodes import SECRET, Cluster
from tests.lab.machine import factor
from tests.lab.target import TargetHandle

ALIVE = {"m1": "alive", "w1": "alive", "w2": "alive"}
WORKERS = 17
KILLED = ("w3", "w4", "w5")
STOPPED, RESTARTED = "w6", "w7"
STOP_S = 15.0


def sees(made: Cluster, wanted: dict[str, str]) -> Callable[[], bool]:
    return lambda: member_states(made) == wanted


def doubts(made: Cluster, name: str) -> str:
    """What `squall nodes` says of a node beside its row."""
    nodes = made.asked(lambda client: client.nodes()).nodes
    return next(node.membership for node in nodes if node.name == name)


def test_a_killed_worker_is_dead_a_restarted_one_alive_and_a_stopped_one_left(
    tmp_path: Path, cluster_target: TargetHandle
) -> None:
    with Cluster(tmp_path, cluster_target) as made:
        until(sees(made, ALIVE), "all hear each other")
        boots = {row.name: row.boot for row in members(made).members}
        made.kill("w2")
        until(sees(made, ALIVE | {"w2": "dead"}), "the death is known")
        # The others know it a moment later.
        until(lambda: doubts(made, "w2").startswith("nobody hears w2"), "nobody hears it")
        assert doubts(made, "w1") == ""
        made.start("w2")
        until(sees(made, ALIVE), "the new boot is known")
        assert {row.name: row.boot for row in members(made).members}["w2"] != boots["w2"]
        assert made.stop("w2") == 0
        until(sees(made, ALIVE | {"w2": "left"}), "it left in order")
        for name in ("m1", "w1"):
            ends = transitions(made.nodes[name], "member_dead")
            assert ends[("member_dead", f"w2 {boots['w2']}")] == 1


def test_the_command_lists_the_members_with_who_hears_them(dc: Cluster) -> None:
    until(lambda: member_states(dc) == ALIVE, "all hear each other")
    shown = dc.squall("members", dc.addresses)
    assert shown.code == 0, shown
    head, columns, *rows = shown.out.splitlines()
    assert head.startswith("lab, as m1 sees it") and columns.split()[:2] == ["NAME", "ROLE"]
    assert [row.split()[:2] for row in rows[:3]] == [
        ["m1", "manager"],
        ["w1", "worker"],
        ["w2", "worker"],
    ]


class BoundWorkers(Cluster):
    """Each worker has a credential that only its own name can use."""

    def environment_of(self, name: str) -> dict[str, str]:
        given = super().environment_of(name)
        if not name.startswith("w"):
            return given
        credential = self.folder / f"{name}.credential"
        credential.touch(mode=0o600)
        credential.write_text(worker_credential(SECRET, name))
        return given | {"SQUALL_SECRET_FILE": str(credential)}


def test_workers_with_credentials_of_their_own_are_members(
    tmp_path: Path, cluster_target: TargetHandle
) -> None:
    with BoundWorkers(tmp_path, cluster_target) as made:
        until(sees(made, ALIVE), "all hear each other")

        def heard_by() -> dict[str, list[str]]:
            return {row.name: row.heard_by for row in members(made).members}

        # The workers hear each other, not only the manager.
        everyone = {"m1": ["w1", "w2"], "w1": ["m1", "w2"], "w2": ["m1", "w1"]}
        until(lambda: heard_by() == everyone, "each hears the others")
        made.kill("w2")
        until(sees(made, ALIVE | {"w2": "dead"}), "the death is known")
        assert all("membership_off" not in node.said() for node in made.nodes.values())


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_twenty_nodes_agree_on_deaths_a_stop_and_a_restart(
    tmp_path: Path, cluster_target: TargetHandle
) -> None:
    made = Cluster(tmp_path, cluster_target, managers=3, workers=WORKERS, timers="lan")
    with made:
        everyone = dict.fromkeys(made.nodes, "alive")
        until(
            lambda: all(member_states(made, of=[m]) == everyone for m in made.managers()),
            "all managers know all",
        )
        boots = {row.name: row.boot for row in members(made).members}
        # The last that joined is known to the workers as well.
        time.sleep(10.0 * factor())
        for name in KILLED:
            made.kill(name)
        made.pause(STOPPED)
        made.kill(RESTARTED)
        made.start(RESTARTED)
        dead = dict.fromkeys(KILLED, "dead")
        wanted = everyone | dead
        time.sleep(STOP_S)
        made.resume(STOPPED)

        def agree() -> bool:
            return all(member_states(made, of=[m]) == wanted for m in made.managers())

        until(agree, "the managers agree", within_s=60.0)
        lives = [name for name in made.nodes if name not in KILLED]
        stays = [name for name in lives if name != RESTARTED]

        def right_view(name: str) -> bool:
            seen = view_in_log(made.nodes[name])
            ends = {each: seen.get(each, "alive") for each in made.nodes if each != name}
            return ends == {each: wanted[each] for each in ends}

        # The new boot may have heard of none of the deaths: it never knew those members.
        until(lambda: all(map(right_view, stays)), "all nodes agree", within_s=60.0)
        for name in stays:
            counted = transitions(made.nodes[name], "member_dead", "member_restarted")
            ended = {boot: n for (event, boot), n in counted.items() if event == "member_dead"}
            for killed in KILLED:
                assert ended.pop(f"{killed} {boots[killed]}", 0) == 1, (name, killed, counted)
            # Its own machine may have been taken for dead while it stood still, once.
            assert ended.pop(f"{STOPPED} {boots[STOPPED]}", 0) <= 1, (name, counted)
            assert ended == {}, (name, ended)
            restarts = counted[("member_restarted", f"{RESTARTED} {boots[RESTARTED]}")]
            assert restarts == 1, (name, counted)
