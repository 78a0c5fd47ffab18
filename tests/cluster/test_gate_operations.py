"""What operators do to gates, and what they do wrong: real processes, real disks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cluster.lab.gates import READY_S, GatedDatacenters
from tests.cluster.lab.group import group, jobs, leader, listed, states, status, until
from tests.cluster.lab.nodes import Node
from tests.lab.exit_codes import check_code
from tests.lab.ports import free_ports
from tests.lab.target import TargetHandle

ALL_WELL = {"leads", "follows"}
SHORT = """
class Load(Workflow):
    vus = 2
    iterations = 20

    @step()
    async def get(self) -> HTTPResponse:
        return await self.client.http.get("/", headers=SENDER)
"""


class OnlyGates(GatedDatacenters):
    """Gates whose datacenters are not started."""

    def __init__(self, folder: Path, target: TargetHandle, gates: int) -> None:
        super().__init__(folder, target, gates=gates, launcher=False)
        for name in [each for each in self.nodes if each not in self.gates()]:
            del self.nodes[name]

    def wait_ready(self, within_s: float = READY_S) -> None:
        until(lambda: set(states(self).values()) <= ALL_WELL, "all gates answer", within_s)


def changed(words: list[str], **flags: str) -> list[str]:
    """The command of a node with other values of some flags."""
    again = list(words)
    for flag, value in flags.items():
        again[again.index(f"--{flag}") + 1] = value
    return again


def add_gate(made: GatedDatacenters, name: str, like: str, *, extra: tuple[str, ...] = ()) -> str:
    """Starts a gate with the flags of another one, as an operator would; its address."""
    port = free_ports(1)[0]
    made.listens(name, port)
    address = f"127.0.0.1:{port}"
    words = made.nodes[like].words
    members = f"{words[words.index('--members') + 1]},{name}={address}"
    given = changed(words, name=name, listen=address, members=members, data=str(made.folder / name))
    made.nodes[name] = Node(name, [*given, *extra], made.folder / f"{name}.log")
    made.start(name)
    return address


def test_two_gates_with_one_name_are_one_line_on_each_of_them_and_in_the_lists(
    tmp_path: Path, cluster_target: TargetHandle
) -> None:
    with OnlyGates(tmp_path, cluster_target, gates=3) as made:
        first = next(name for name in made.gates() if name != leader(made))
        others = [name for name in made.gates() if name != first]
        # Another machine, to which the command of this one was copied.
        port = free_ports(1)[0]
        words = changed(
            made.nodes[first].words, listen=f"127.0.0.1:{port}", data=str(tmp_path / "copied")
        )
        made.nodes["copied"] = Node("copied", words, tmp_path / "copied.log")
        made.start("copied")
        line = f"two processes run as {first}, on 127.0.0.1 (pid "
        for name in (*others, first, "copied"):
            until(lambda name=name: line in made.nodes[name].said(), f"{name} says so", 120.0)
            assert made.nodes[name].said().count(line) == 1, made.nodes[name].said()

        def asked(*command: str) -> str:
            to = made.addresses_of_gates(others)
            return made.squall(*command, "--to", to).out

        until(lambda: f"ALARM {line}" in asked("group", "status"), "the status says so")
        until(lambda: f"ALARM {line}" in asked("nodes"), "the list says so")
        made.kill("copied")
        until(lambda: line not in asked("nodes"), "one of them is gone")
        del made.nodes["copied"]
        made.wait_ready()


def test_a_datacenter_with_another_secret_is_named_with_the_reason(
    tmp_path: Path, cluster_target: TargetHandle
) -> None:
    with OnlyGates(tmp_path, cluster_target, gates=1) as made:
        other = tmp_path / "other-secret"
        other.write_text("of another cluster " * 3)
        other.chmod(0o600)
        where = listed(made, "g1").partition("=")[2]
        listen = made.addresses_of("eu")
        words = [
            "manager", "--dc", "eu", "--name", "m1", "--listen", listen,
            "--members", f"m1={listen}", "--timers", "fast", "--data", str(tmp_path / "m1"),
            "--secret-file", str(other),
        ]  # fmt: skip
        made.nodes["m1"] = Node("m1", words, tmp_path / "m1.log")
        made.start("m1")

        def row() -> str:
            lines = made.squall("nodes", "--to", where).out.splitlines()
            return next((line for line in lines if line.startswith("eu ")), "")

        until(lambda: "secret" in row(), "the row of eu names the secret", 120.0)
        assert listen in row(), row()


@pytest.mark.nightly
def test_gates_are_backed_up_restored_and_replaced(
    tmp_path: Path, cluster_target: TargetHandle
) -> None:
    with GatedDatacenters(tmp_path, cluster_target, gates=3, launcher=False) as made:
        file = made.write(SHORT)
        check_code(made.run(file, "--dc", "eu=60%,us=40%").end())
        (job,) = jobs(made)
        lost = next(name for name in made.gates() if name != leader(made))
        kept = [name for name in made.gates() if name != lost]
        copy = tmp_path / "copy"
        ended = made.squall("backup", str(tmp_path / kept[0]), str(copy))
        assert ended.code == 0 and "checked" in ended.out, ended.err

        # The disk of a gate is gone: another machine takes its place.
        made.kill(lost)
        shutil.rmtree(tmp_path / lost)
        address = add_gate(made, "g4", kept[0], extra=("--join",))
        ended = group(made, "replace", lost, f"g4={address}")
        assert ended.code == 0, ended.err
        until(lambda: states(made).get("g4") in ALL_WELL, "g4 takes part")
        until(lambda: sorted(states(made)) == sorted([*kept, "g4"]), f"{lost} is no member")
        until(lambda: jobs(made) == [job], "the job is still known")
        check_code(made.run(file, "--dc", "eu=60%,us=40%").end())

        # All gates are gone: one begins from the copy, as a group of its own.
        for name in [*kept, "g4"]:
            made.kill(name)
        ended = made.squall("restore", str(copy), str(tmp_path / "restored"))
        assert ended.code == 0, ended.err
        words = changed(
            made.nodes[kept[0]].words,
            members=listed(made, kept[0]),
            data=str(tmp_path / "restored"),
        )
        for name in made.gates():
            del made.nodes[name]
        made.nodes[kept[0]] = Node(kept[0], words, tmp_path / "restored.log")
        made.start(kept[0])
        made.wait_ready()
        assert status(made).epoch >= 1000
        assert jobs(made) == [job], "what came after the copy is not in it"
        shown = made.squall("watch", job, *made.reach)
        assert shown.code == 0, shown.err
        check_code(made.run(file, "--dc", "eu=60%,us=40%").end())
