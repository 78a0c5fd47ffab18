"""Jobs on a datacenter of real processes behave as `squall run` does on one machine."""

from __future__ import annotations

import contextlib
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from squall.engine.load.drivers import DROP_AFTER_S
from tests.cluster.lab.nodes import Cluster, Ended
from tests.lab.exit_codes import check_code

GET = "return await self.client.http.get(url, headers=SENDER)"
SIMPLE = f"""
class Load(Workflow):
    vus = 4
    duration = "1s"

    @step()
    async def get(self, url: URL = "/?delay=10ms") -> HTTPResponse:
        {GET}
"""
GRACE_S = 10.0
"""The default of a workflow."""
LONG = SIMPLE.replace('"1s"', '"30s"')
LONGEST = SIMPLE.replace('"1s"', '"300s"')
"""Of a job that is cancelled after several commands, which take seconds on a busy machine."""


def ran(dc: Cluster, text: str, *words: str) -> Ended:
    return dc.run(dc.write(text), *words).end()


def sent(document: dict[str, Any]) -> int:
    return sum(each["requests"]["sent"] for each in document["workflows"] if each["requests"])


def submitted(dc: Cluster, text: str, *words: str) -> str:
    """The id of a job that was left alone."""
    file = dc.write(text)
    ended = dc.squall("submit", file, "--to", dc.addresses, "--host", dc.target.url, *words)
    assert ended.code == 0, ended.err
    return ended.out.split()[-1]


def waited(dc: Cluster, job: str, *states: str, within_s: float = 60.0) -> dict[str, Any]:
    until = time.monotonic() + within_s
    while True:
        view = dc.ask("status", job)
        view = view.get("job", view) if isinstance(view.get("job"), dict) else view
        if view["state"] in states:
            return view
        assert time.monotonic() < until, view
        time.sleep(0.1)


# The same as on one machine.


def test_counts_equal_the_targets_and_the_exit_code_is_that_of_a_local_run(dc: Cluster) -> None:
    # Long enough for each share, also for one whose process is kept waiting.
    ended = ran(dc, SIMPLE.replace('"1s"', '"4s"'))
    check_code(ended)
    document = ended.document
    assert document["status"] == "completed"
    assert sent(document) == dc.target.counts()["total"] > 100
    assert document["workflows"][0]["vus"] == 4
    assert 1 < dc.target.counts()["max_concurrent_requests"] <= 4
    assert len(dc.target.counts()["attempts"]) == 4
    assert ended.out.splitlines()[0].split()[-1] == document["verdict"]["state"]
    assert ended.code == document["exit_code"]


def test_hundreds_of_users_are_all_there_at_once_and_leave_nothing(dc: Cluster) -> None:
    text = SIMPLE.replace("vus = 4", 'vus = 500\n    think = "1s..3s"').replace('"1s"\n', '"4s"\n')
    ended = ran(dc, text)
    check_code(ended)
    (workflow,) = ended.document["workflows"]
    assert workflow["vus"] == 500 and 4.0 <= workflow["elapsed_s"] < 4.0 + GRACE_S
    counts = dc.target.counts()
    assert counts["connections"]["max_open"] == 500
    assert sent(ended.document) == counts["total"] >= 500
    dc.wait_free()


def test_a_failed_threshold_is_exit_code_99(dc: Cluster) -> None:
    ended = ran(dc, SIMPLE, "--threshold", "get.p(50) < 1ms")
    check_code(ended, 99)
    assert [t["passed"] for t in ended.document["thresholds"] if not t["builtin"]] == [False]


def test_a_threshold_that_aborts_ends_the_job_early(dc: Cluster) -> None:
    ended = ran(dc, LONG, "--threshold", "get.p(50) < 1ms, abort after 1s")
    assert ended.code == 99, ended.err
    assert ended.document["aborted_by"]
    (workflow,) = ended.document["workflows"]
    assert workflow["elapsed_s"] < 25.0


def test_values_flow_from_layer_to_layer(dc: Cluster) -> None:
    text = f"""
class Setup(Workflow):
    @step()
    async def token(self) -> str:
        return "sesame"

    @state("Shop")
    def door(self) -> Provide[int]:
        return 7

    @state("Elsewhere")
    def window(self) -> Provide[int]:
        return 8

@depends("Setup")
class Shop(Workflow):
    vus = 4
    iterations = 12

    @state("Setup")
    def opened(self, door: int = -1, dour: int = -2, window: int = -3) -> Use[int]:
        return door, dour, window

    @step()
    async def order(self, token: str = "none") -> HTTPResponse:
        self.check("by both names", self.opened() == (7, -2, -3))
        url = f"/order?token={{token}}&count_field=token"
        {GET}

@depends("Setup")
class Elsewhere(Workflow):
    @step()
    async def nothing(self) -> None: ...
"""
    ended = ran(dc, text)
    check_code(ended)
    counts = dc.target.counts()
    assert counts["paths"] == {"/order": 12}
    assert counts["fields"]["token"] == {"sesame": 12}, "every request carries the value"
    assert len(counts["attempts"]) > 2, "on both workers, which have two cores each"
    (check,) = ended.document["checks"]
    assert (check["passed"], check["failed"]) == (12, 0), check
    # Values stay in the datacenter: the client gets to see none, and stores none.
    told = json.dumps(ended.document) + ended.out + ended.err
    assert "sesame" not in told


def test_values_of_all_shares_are_collected_and_large_ones_are_refused_by_name(dc: Cluster) -> None:
    text = f"""
class Setup(Workflow):
    @step()
    async def token(self) -> str:
        return "sesame"

@depends(Setup)
class Shop(Workflow):
    vus = 4
    iterations = "2/vu"

    @step()
    async def order(self) -> HTTPResponse:
        url = "/order"
        {GET}

    @state("Audit")
    def seen(self) -> Provide[int]:
        return 7

@depends(Shop)
class Audit(Workflow):
    @state(Shop)
    def all_seen(self, seen: All[int] = ()) -> Use[list[int]]:
        return list(seen)

    @step()
    async def count(self, token: str) -> bytes:
        assert self.all_seen() == [7] * 4, self.all_seen()
        assert token == "sesame", "of a workflow further back"
        return bytes(150 << 20)

@depends(Audit)
class Never(Workflow):
    @step()
    async def after(self, count: bytes) -> None: ...
"""
    ended = ran(dc, text)
    outcomes = {each["name"]: each for each in ended.document["workflows"]}
    assert dc.target.counts()["paths"] == {"/order": 8}
    error = outcomes["Audit"]["error"]
    assert error.startswith("Audit.count has 150.0 MiB; a workflow hands over at most 8 MiB"), error
    assert outcomes["Never"]["status"] == "skipped"
    assert ended.document["status"] == "partial"
    for path in (dc.folder / "state").rglob("*"):
        assert not path.is_file() or b"sesame" not in path.read_bytes(), path


def test_a_failed_workflow_skips_its_dependents_and_the_job_is_partial(dc: Cluster) -> None:
    text = f"""
class A(Workflow):
    @step()
    async def a(self) -> None:
        raise RuntimeError("no tenant")

@depends("A")
class B(Workflow):
    iterations = 2
    @step()
    async def b(self, url: URL = "/b") -> HTTPResponse:
        {GET}

class C(Workflow):
    iterations = 3
    @step()
    async def c(self, url: URL = "/c") -> HTTPResponse:
        {GET}

@depends("C")
class D(Workflow):
    iterations = 4
    @step()
    async def d(self, url: URL = "/d") -> HTTPResponse:
        {GET}

@depends("A", "D", when="always")
class Teardown(Workflow):
    @step()
    async def clean(self, url: URL = "/clean") -> None:
        await self.client.http.delete(url)
"""
    ended = ran(dc, text, "--key", "no tenant")
    check_code(ended, 107)
    assert dc.target.counts()["paths"] == {"/c": 3, "/d": 4, "/clean": 1}
    statuses = {each["name"]: each["status"] for each in ended.document["workflows"]}
    assert statuses == {
        "A": "failed", "B": "skipped", "C": "completed", "D": "completed", "Teardown": "completed",
    }  # fmt: skip
    assert ended.document["status"] == "partial"
    assert "no tenant" in ended.document["workflows"][0]["error"]
    (job,) = [each for each in dc.jobs() if each["key"] == "no tenant"]
    assert (job["state"], job["reason"]) == ("partial", "A failed: A.a: RuntimeError: no tenant")


def test_each_row_of_a_feed_is_given_out_once_over_all_workers(dc: Cluster) -> None:
    rows = "\n".join(["user", *(f"u{n}" for n in range(40))])
    (dc.folder / "users.csv").write_text(rows + "\n")
    (dc.folder / "pricing.py").write_text("FACTOR = 3\n")
    text = """
import pricing
class Load(Workflow):
    vus = 4
    iterations = 40
    rows = Feed("users.csv", take="once")

    @step()
    async def get(self, url: URL = "/user") -> HTTPResponse:
        assert pricing.FACTOR == 3
        user = self.rows["user"]
        return await self.client.http.get(f"/user?user={user}&count_field=user")
"""
    ended = ran(dc, text)
    check_code(ended)
    assert dc.target.counts()["fields"]["user"] == {f"u{n}": 1 for n in range(40)}


def test_an_open_model_keeps_its_rate_over_the_workers(dc: Cluster) -> None:
    text = SIMPLE.replace("vus = 4", "rate = 100\n    max_vus = 20").replace('"1s"', '"2s"')
    ended = ran(dc, text)
    check_code(ended)
    starts = ended.document["workflows"][0]["starts"]
    # A share that is late to begin joins the plan where it is.
    assert 0 < starts["planned"] <= 200
    assert starts["made"] + starts["dropped"] == starts["planned"]
    assert dc.target.counts()["total"] == sent(ended.document) == starts["made"]


def test_secrets_reach_the_workflow_and_never_the_managers_disk(dc: Cluster) -> None:
    text = f"""
class Load(Workflow):
    iterations = 2
    @step()
    async def get(self, url: URL = "/") -> HTTPResponse:
        self.check("secret", os.environ["API_TOKEN"] == "hush-hush-4711")
        {GET}
"""
    ended = ran(dc, text, "--secret", "API_TOKEN=hush-hush-4711")
    check_code(ended)
    assert ended.document["checks"][0]["failed"] == 0
    for path in Path(dc.folder / "m1").rglob("*"):
        # The manager runs: a file may be gone before it is read.
        with contextlib.suppress(FileNotFoundError):
            assert not path.is_file() or b"hush-hush-4711" not in path.read_bytes(), path
    assert "hush-hush" not in ended.out + ended.err


# What people do with jobs.


def test_the_same_key_is_the_same_job_and_another_file_is_a_conflict(dc: Cluster) -> None:
    first = submitted(dc, SIMPLE, "--key", "nightly-1")
    assert submitted(dc, SIMPLE, "--key", "nightly-1") == first
    file = dc.write(SIMPLE.replace("vus = 4", "vus = 3"))
    words = ("--to", dc.addresses, "--host", dc.target.url, "--key", "nightly-1")
    ended = dc.squall("submit", file, *words)
    assert ended.code == 2, ended.err
    assert "nightly-1" in ended.err and len(ended.err.strip().splitlines()) == 1, ended.err
    waited(dc, first, "completed")


def test_a_cancelled_job_stops_runs_its_teardown_and_keeps_its_result(dc: Cluster) -> None:
    text = (
        LONG
        + """
@depends("Load", when="always")
class Teardown(Workflow):
    @step()
    async def clean(self, url: URL = "/clean") -> None:
        await self.client.http.delete(url)
"""
    )
    command = dc.run(dc.write(text.replace('"30s"', '"300s"')))
    dc.wait_load(20)
    job = dc.jobs()[0]["job"]
    assert dc.squall("cancel", job, "--to", dc.addresses).code == 0
    again = dc.squall("cancel", job, "--to", dc.addresses)
    assert again.code == 0, again.err
    ended = command.end()
    assert ended.code == 105, ended.err
    counts = dc.target.counts()
    assert sent(ended.document) == counts["total"]
    assert counts["paths"]["/clean"] == 1
    assert waited(dc, job, "cancelled")["state"] == "cancelled"
    dc.wait_quiet()
    assert dc.target.counts()["total"] == counts["total"]


def test_ctrl_c_ends_the_job_gracefully(dc: Cluster) -> None:
    command = dc.run(dc.write(LONGEST))
    dc.wait_load(20)
    command.interrupt()
    ended = command.end()
    assert ended.code == 105, ended.err
    assert sent(ended.document) == dc.target.counts()["total"]


def test_load_is_paused_resumed_and_changed_while_it_runs(dc: Cluster) -> None:
    text = LONGEST.replace("vus = 4", "rate = 40\n    max_vus = 30")
    job = submitted(dc, text)
    dc.wait_load(20)
    assert dc.squall("adjust", job, "--pause", "--to", dc.addresses).code == 0
    dc.wait_quiet()
    paused = dc.target.counts()["total"]
    words = ("adjust", job, "--resume", "--rate", "160", "--to", dc.addresses)
    changed = dc.squall(*words)
    assert changed.code == 0, changed.err
    dc.wait_load(paused + 1)
    # 160 in a second and no longer 40; a generator that is late makes up for a second at most.
    dc.wait_load(dc.target.counts()["total"] + 160)
    # This process may be kept waiting between a count and a reading of the clock.
    earliest, before, began = time.monotonic(), dc.target.counts()["total"], time.monotonic()
    dc.wait_load(before + 640)
    ended, made, latest = time.monotonic(), dc.target.counts()["total"] - before, time.monotonic()
    assert made >= 80.0 * (ended - began), (made, ended - began)
    assert made <= 160.0 * (latest - earliest + DROP_AFTER_S), (made, latest - earliest)
    dc.ask("cancel", job, "--now")
    waited(dc, job, "cancelled")


def test_users_that_are_taken_away_take_their_iterations_with_them(dc: Cluster) -> None:
    """The job ends by itself, is VALID, and its status has the final counts."""
    text = LONGEST.replace("vus = 4", 'vus = 4\n    iterations = "20/vu"\n    think = "500ms"')
    job = submitted(dc, text)
    dc.wait_load(8)
    assert dc.squall("adjust", job, "--vus", "2", "--to", dc.addresses).code == 0
    assert waited(dc, job, "completed")["exit_code"] == 0
    made = dc.target.counts()["total"]
    assert 40 <= made < 80
    status = dc.squall("status", job, "--to", dc.addresses, "--json")
    counters = json.loads(status.out)["workflows"][0]["counters"]
    assert (counters["made"], counters["sent"], counters["failed"]) == (made, made, 0)


def test_a_drained_worker_gets_no_new_work(dc: Cluster) -> None:
    assert dc.squall("drain", "w2", "--to", dc.addresses).code == 0
    try:
        ended = ran(dc, SIMPLE, "--key", "drained")
        check_code(ended)
        nodes = {node["name"]: node for node in dc.ask("nodes")["nodes"]}
        assert nodes["w2"]["state"] in ("draining", "drained")
        (job,) = [each["job"] for each in dc.jobs() if each["key"] == "drained"]
        events = dc.ask("why", job)["events"]
        assert any("Load placed: 2 shares on 1 worker" in line for line in events), events
        assert len(dc.target.counts()["attempts"]) <= 2
    finally:
        assert dc.squall("drain", "w2", "--resume", "--to", dc.addresses).code == 0


def test_jobs_queue_when_all_cores_are_taken_and_an_exclusive_one_gets_its_turn(
    dc: Cluster,
) -> None:
    wide = SIMPLE.replace('"1s"', '"2s"')
    exclusive = wide.replace("vus = 4", 'vus = 4\n    priority = "exclusive"')
    first = submitted(dc, LONGEST)
    waited(dc, first, "running")
    jobs = [submitted(dc, text) for text in (wide, exclusive, wide)]
    views = {view["job"]: view for view in dc.jobs()}
    assert [views[job]["state"] for job in jobs] == ["queued"] * 3, views
    assert views[jobs[1]]["position"] == 1
    dc.ask("cancel", first, "--now")
    for job in jobs:
        waited(dc, job, "completed", within_s=60.0)
    dc.wait_free()


def test_status_why_and_nodes_say_where_things_are(dc: Cluster) -> None:
    job = submitted(dc, LONGEST)
    dc.wait_load(5)
    status = dc.squall("status", job, "--to", dc.addresses)
    assert status.code == 0 and "running" in status.out
    why = dc.squall("why", job, "--to", dc.addresses)
    assert why.code == 0 and "Load" in why.out and "placed" in why.out
    nodes = dc.squall("nodes", "--to", dc.addresses)
    assert all(name in nodes.out for name in ("m1", "w1", "w2"))
    watch = dc.begin("watch", job, "--to", dc.addresses)
    dc.ask("cancel", job, "--now")
    ended = watch.end()
    assert ended.code == 105
    assert re.search(r"\d+/s", ended.out + ended.err)


# Mistakes: one clear line, and the cluster unharmed.


def one_line(ended: Ended, code: int, *parts: str) -> None:
    assert ended.code == code, (ended.code, ended.err)
    lines = [line for line in ended.err.strip().splitlines() if line.strip()]
    assert len(lines) == 1, ended.err
    for part in parts:
        assert part in lines[0], lines[0]


def test_an_unknown_job_is_named(dc: Cluster) -> None:
    for words in (("status",), ("cancel",), ("why",), ("watch",), ("adjust", "--pause")):
        command, *flags = words
        one_line(dc.squall(command, "zzzz-1", *flags, "--to", dc.addresses), 2, "zzzz-1")


def test_a_dead_address_is_exit_code_3(dc: Cluster) -> None:
    file = dc.write(SIMPLE)
    ended = dc.squall("run", file, "--to", "127.0.0.1:9", "--patience", "1s")
    assert ended.code == 3, ended.err
    assert "127.0.0.1:9" in ended.err


def test_a_wrong_secret_is_told(dc: Cluster) -> None:
    wrong = dc.folder / "wrong-secret"
    wrong.write_text("not the secret of this laboratory")
    ended = dc.squall("jobs", "--to", dc.addresses, "--secret-file", str(wrong))
    one_line(ended, 3, "wrong secret or not a Squall node")


def test_a_module_that_the_worker_lacks_is_named_before_anything_starts(
    dc: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "fancy_maths.py").write_text("ONE = 1\n")
    (packages / "fancy_words.py").write_text("TWO = 2\n")
    monkeypatch.setenv("PYTHONPATH", str(packages))
    ended = ran(dc, "import fancy_maths, fancy_words\n" + SIMPLE)
    assert ended.code == 104, (ended.code, ended.err)
    last = ended.err.strip().splitlines()[-1]
    assert "modules not installed on worker w" in last, ended.err
    assert "fancy_maths, fancy_words" in last, ended.err
    assert dc.target.counts()["total"] == 0


def test_a_bundle_that_is_too_large_is_refused_with_its_largest_file(dc: Cluster) -> None:
    with (dc.folder / "huge.bin").open("wb") as file:
        file.truncate(80 * 1024 * 1024)
    text = SIMPLE.replace('"/?delay=10ms"', '"/", document: File = "huge.bin"')
    ended = ran(dc, text.replace("class Load", "from squall import File\n\nclass Load"))
    (dc.folder / "huge.bin").unlink()
    one_line(ended, 104, "a bundle at most", "the largest: huge.bin 83.9 MB")
    assert dc.target.counts()["total"] == 0


def test_code_that_raises_in_preparation_fails_the_job_once(dc: Cluster) -> None:
    text = f"""
class Load(Workflow):
    vus = 2
    duration = "1s"

    @action(at="start")
    async def begin(self) -> None:
        raise RuntimeError("no licence")

    @step()
    async def get(self, url: URL = "/") -> HTTPResponse:
        {GET}
"""
    ended = ran(dc, text)
    local = dc.squall("run", "flow.py", "--host", dc.target.url, "--workers", "1")
    assert ended.code == local.code != 0, (ended.err, local.err)
    assert "no licence" in ended.out
    assert dc.target.counts()["total"] == 0


def test_code_that_raises_on_the_workers_fails_the_job_at_once_with_its_text(dc: Cluster) -> None:
    """Another worker would raise, too: a mistake of the author is no loss, and not tried again."""
    raises = "if 'SQUALL_ATTEMPT' in os.environ:\n    raise RuntimeError('no licence')\n"
    ended = ran(dc, raises + SIMPLE)
    assert ended.code == 107, ended.err
    assert "RuntimeError: no licence" in ended.err
    job = dc.jobs()[0]
    assert job["state"] == "failed" and dc.target.counts()["total"] == 0
    events = dc.ask("why", job["job"])["events"]
    assert sum("placed" in line for line in events) == 1, events


def test_commands_speak_json(dc: Cluster) -> None:
    assert "jobs" in json.loads(dc.squall("jobs", "--json", "--to", dc.addresses).out)
    assert "nodes" in json.loads(dc.squall("nodes", "--json", "--to", dc.addresses).out)
