"""What operators do to a group of managers while jobs run: real processes, real disks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from lab.scenarios.group.bit_rot import record_blocks
from tests.cluster.lab.chaos_cases import RATE_PER_S
from tests.cluster.lab.chaos_rows import OPEN
from tests.cluster.lab.group import (
    add_manager,
    group,
    jobs,
    leader,
    listed,
    pauses,
    states,
    status,
    until,
)
from tests.cluster.lab.judge import Load, problems
from tests.cluster.lab.nodes import Cluster
from tests.lab.exit_codes import check_code, losses
from tests.lab.machine import factor
from tests.lab.target import TargetHandle

SECONDS = 10


def test_hand_over_and_a_replaced_manager_leave_no_gap_in_the_load(
    tmp_path: Path, cluster_target: TargetHandle
) -> None:
    cluster_target.reset()
    # No lease may end, however long the machine keeps one of the processes waiting.
    with Cluster(tmp_path, cluster_target, managers=3, workers=2, least_factor=2.0) as made:
        until(lambda: set(states(made).values()) == {"leads", "follows"}, "all members answer")
        run = made.run(made.write(OPEN.format(rate=RATE_PER_S, seconds=SECONDS)))
        made.wait_load()

        before = status(made)
        handed = {"leader": "", "took_ms": 0.0}

        def is_handed_over() -> bool:
            ended = group(made, "handover", "--json")
            assert ended.code == 0, ended.err
            handed.update(json.loads(ended.out))
            return handed["took_ms"] > 0.0

        until(is_handed_over, "no election comes before the handover")
        until(lambda: status(made).view > before.view, "the next view begins")

        lost = "m3" if handed["leader"] != "m3" else "m1"
        kept = [name for name in ("m1", "m2", "m3") if name != lost]
        made.kill(lost)
        shutil.rmtree(tmp_path / lost)
        address = add_manager(made, "m4", listed(made, *kept))
        ended = group(made, "replace", lost, f"m4={address}")
        assert ended.code == 0, ended.err
        assert f"you may stop {lost} now" in ended.out
        again = group(made, "replace", lost, f"m4={address}")
        assert again.code == 0 and "the group already is epoch" in again.out
        until(lambda: states(made).get("m4") in ("leads", "follows"), "m4 takes part")
        # A member that has not heard of the new epoch yet answers with the old one.
        until(lambda: sorted(states(made)) == sorted([*kept, "m4"]), f"{lost} is no member")

        why = ("why", jobs(made)[0], "--to", made.addresses)
        told = "leads the managers (epoch 1"
        until(lambda: told in made.squall(*why).out, "the story names the new epoch")

        result = run.end()
        check_code(result)
        counts = cluster_target.counts()
        load = Load(rate_per_s=RATE_PER_S)
        assert problems(result.document, counts, load, worker_lost=False) == []
        assert losses(result.document) == []
        assert pauses(result.document, counts) == []

        # The new member counts: without another of the old ones the group goes on.
        made.kill(kept[0])
        assert len(jobs(made)) == 1, "the group serves"
        until(lambda: states(made).get(kept[0]) == "silent", "a dead manager is silent")
        until(lambda: {"m4", kept[1]} <= shown_managers(made), "the others are shown")


def shown_managers(made: Cluster) -> set[str]:
    return {node["name"] for node in made.ask("nodes")["nodes"] if node["role"] == "manager"}


def test_a_wiped_manager_waits_until_it_is_admitted_again(
    tmp_path: Path, cluster_target: TargetHandle
) -> None:
    with Cluster(tmp_path, cluster_target, managers=3, workers=0) as made:
        until(lambda: set(states(made).values()) == {"leads", "follows"}, "all members answer")
        wiped = leader(made)
        address = dict(each.split("=") for each in listed(made, "m1", "m2", "m3").split(","))
        made.kill(wiped)
        shutil.rmtree(tmp_path / wiped)
        made.start(wiped)
        until(lambda: states(made).get(wiped) == "waits", "a wiped member does not take part")
        # It does not count, either: with one of the two others there is no quorum.
        other = next(name for name in made.managers() if name != wiped)
        made.kill(other)
        until(lambda: "NO QUORUM" in group(made, "status").out, "two of three are missing")
        until(lambda: states(made).get(wiped) == "waits", "it still does not take part")
        made.start(other)
        logs = [name for name in made.managers() if name != wiped]
        until(lambda: status(made, of=logs).leader in logs, "one of those with a log leads")
        advice = f"squall group replace {wiped} {wiped}="
        until(lambda: advice in group(made, "status").out, "the status says what to do")
        ended = group(made, "replace", wiped, f"{wiped}={address[wiped]}")
        assert ended.code == 0, ended.err
        until(lambda: set(states(made).values()) == {"leads", "follows"}, "it takes part again")
        until(lambda: status(made).epoch == 1, "the change is an epoch")

        refused = group(made, "replace", "m9", "m8=127.0.0.1:1")
        assert refused.code == 2 and len(refused.err.strip().splitlines()) == 1, refused.err


def test_a_manager_whose_disk_changed_a_bit_mends_itself(
    tmp_path: Path, cluster_target: TargetHandle
) -> None:
    with Cluster(tmp_path, cluster_target, managers=3, workers=0) as made:
        until(lambda: set(states(made).values()) == {"leads", "follows"}, "all members answer")
        first = leader(made)
        hurt = next(name for name in made.managers() if name != first)
        # Each hand-over is a view of its own in every member's log.
        for _ in range(3):
            assert group(made, "handover").code == 0
        made.kill(hurt)
        segment = max((tmp_path / hurt / "ledger/wal").glob("*.wal"))
        content = bytearray(segment.read_bytes())
        blocks = record_blocks(bytes(content))
        start, end = blocks[len(blocks) // 2]
        content[(start + end) // 2] ^= 1
        segment.write_bytes(content)
        made.start(hurt)
        until(lambda: set(states(made).values()) == {"leads", "follows"}, "it takes part again")
        until(
            lambda: any("is repaired" in text for text in status(made, of=[hurt]).alarms),
            "what it lost came from the others",
        )
        alarms = status(made, of=[hurt]).alarms
        assert any("corruption" in text for text in alarms), alarms
        assert not (tmp_path / hurt / "ledger/mending").exists()
        assert segment.with_name(segment.name + ".damaged").exists()


def test_a_group_grows_from_one_is_backed_up_and_recovered(
    tmp_path: Path, cluster_target: TargetHandle
) -> None:
    with Cluster(tmp_path, cluster_target, managers=1, workers=1) as made:
        alone = group(made, "handover")
        assert alone.code == 2 and "no other manager to hand over to" in alone.err
        until(lambda: states(made) == {"m1": "leads"}, "m1 leads alone")
        file = made.write(OPEN.format(rate=RATE_PER_S, seconds=1))
        first = made.run(file).end()
        check_code(first)
        job = jobs(made)[0]
        copy = tmp_path / "copy"
        ended = made.squall("backup", str(tmp_path / "m1"), str(copy))
        assert ended.code == 0 and "checked" in ended.out, ended.err
        check_code(made.run(file).end())
        later = jobs(made)[0]

        made.stop("m1")
        one = listed(made, "m1")
        words = made.nodes["m1"].words
        two, three = add_manager(made, "m2", one), add_manager(made, "m3", one)
        words[words.index("--members") + 1] = f"{one},m2={two},m3={three}"
        made.start("m1")
        until(lambda: states(made).get("m1") == "leads", "m1 leads alone")
        # The lease is that of the group by its log, not of the managers that are named.
        assert lease_s(made) == pytest.approx(5.0 * factor())
        ended = group(made, "add", f"m2={two}", f"m3={three}")
        assert ended.code == 0, ended.err
        until(lambda: sorted(states(made).values()) == ["follows", "follows", "leads"], "three")
        assert jobs(made) == [later, job]
        assert lease_s(made) == pytest.approx(2.5 * factor())
        ended = group(made, "remove", "m2")
        assert ended.code == 2 and "a group has 1, 3 or 5" in ended.err

        for name in ("m1", "m2", "m3"):
            made.kill(name)
        wrong = made.squall("recover", str(tmp_path / "m2"))
        assert wrong.code == 2 and "--force" in wrong.err
        ended = made.squall("recover", "--force", str(tmp_path / "m2"))
        assert ended.code == 0 and "2 completed" in ended.out, ended.err + ended.out
        seen = {job, later}
        for name, data, kept in (("m2", "m2", [later, job]), ("m1", "restored", [job])):
            if data == "restored":
                # After the other group has served: its epoch must be the higher one.
                ended = made.squall("restore", str(copy), str(tmp_path / data))
                assert ended.code == 0, ended.err
            _alone(made, name, data)
            until(lambda kept=kept: jobs(made) == kept, "the jobs are there again")
            assert status(made).epoch >= 1000
            shown = made.squall("watch", job, "--to", made.addresses)
            assert shown.code == first.code, shown.err
            check_code(made.run(file).end())
            made_here = set(jobs(made)) - set(kept)
            assert len(made_here) == 1 and not made_here & seen, (made_here, seen)
            seen |= made_here
            made.kill(name)


def lease_s(made: Cluster) -> float:
    """The answer to a worker's registration."""
    made.kill("w1")
    before = made.nodes["w1"].said().count(" lease_s=")
    made.start("w1")
    until(lambda: made.nodes["w1"].said().count(" lease_s=") > before, "w1 registers")
    return float(made.nodes["w1"].said().rpartition(" lease_s=")[2].split()[0])


def _alone(made: Cluster, name: str, data: str) -> None:
    """A group of one at the address that clients know."""
    address = made.addresses.split(",")[0]
    made.nodes[name].words[:] = [
        "manager", "--dc", "lab", "--name", name, "--listen", address,
        "--members", f"{name}={address}", "--timers", made.timers,
        "--data", str(made.folder / data),
    ]  # fmt: skip
    made.start(name)
