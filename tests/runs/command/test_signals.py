"""Ctrl-C once and twice, and core processes that are killed during a run."""

from __future__ import annotations

import os
import signal
import textwrap
from pathlib import Path

import pytest

from tests.runs.lab.command import GET, CommandLab, Ended, Started, sent, wait_until

ENDLESS = """
    class Setup(Workflow):
        @step()
        async def tenant(self, url: URL = "/tenants") -> str:
            return str((await self.client.http.post(url)).json()["id"])

    @depends("Setup")
    class Shop(Workflow):
        vus = 3
        duration = "10m"

        @step()
        async def order(self, tenant: str, url: URL = "/orders?delay=5ms") -> HTTPResponse:
            return await self.client.http.post(url, json={"tenant": tenant})

    @depends("Setup", "Shop", when="always")
    class Teardown(Workflow):
        @step()
        async def remove(self, tenant: str, url: URL = "/tenants/{id}") -> None:
            await self.client.http.delete(url, path={"id": tenant})
"""
HANGING = f"""
    class Stuck(Workflow):
        vus = 3
        duration = "10m"
        grace = "GRACE"

        @step()
        async def wait(self, url: URL = "/?hang=1") -> HTTPResponse:
            {GET}
"""


def started(command: CommandLab, text: str, *words: str, requests: int) -> Started:
    """A run that has sent so many requests."""
    file = command.write(text)
    run = command.start(
        "run",
        file,
        "--host",
        command.target.url,
        "--json",
        "results.json",
        "--workers",
        "2",
        *words,
    )
    wait_until(lambda: run.process.poll() is not None or arrived(command) >= requests)
    assert run.process.poll() is None, run.end()
    return run


def ctrl_c_twice(run: Started) -> None:
    """Two signals at once may arrive as one."""
    run.ctrl_c()
    wait_until(lambda: "! stopping; " in run.said)
    assert run.process.poll() is None, run.end()
    run.ctrl_c()


def arrived(command: CommandLab) -> int:
    return command.target.counts()["total"]


def test_ctrl_c_once_ends_gracefully_with_teardown_summary_and_document(
    command: CommandLab,
) -> None:
    run = started(command, ENDLESS, requests=20)
    run.ctrl_c()
    ended = run.end()
    assert ended.code == 105
    assert ended.without_traceback()
    assert ended.first_line.endswith("interrupted")
    assert "STEPS" in ended.out and "Requests/sec:" in ended.out
    counts = command.target.counts()
    assert [name for name in counts["methods"] if name.startswith("DELETE /tenants/")]
    assert ended.document["status"] == "interrupted"
    assert sent(ended.document) == counts["total"]
    statuses = {w["name"]: w["status"] for w in ended.document["workflows"]}
    assert statuses == {"Setup": "completed", "Shop": "interrupted", "Teardown": "completed"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_after_ctrl_c_running_steps_get_their_grace_and_count_as_interrupted(
    number: signal.Signals, command: CommandLab
) -> None:
    run = started(command, HANGING.replace("GRACE", "200ms"), requests=3)
    # As a terminal does: to the whole group.
    os.killpg(run.process.pid, number)
    ended = run.end()
    assert ended.code == 105
    assert "! stopping; running iterations get up to 200ms" in ended.err
    step = ended.document["workflows"][0]["steps"][0]
    assert (step["started"], step["count"], step["interrupted"]) == (3, 0, 3)


def test_ctrl_c_twice_ends_at_once_still_with_summary_and_document(command: CommandLab) -> None:
    """The grace is longer than the test may take: only the second Ctrl-C can end it."""
    run = started(command, HANGING.replace("GRACE", "1h"), requests=3)
    ctrl_c_twice(run)
    ended = run.end()
    assert ended.code == 105
    assert ended.first_line.endswith("interrupted")
    assert ended.document["workflows"][0]["starts"]["interrupted"] == 3


def test_ctrl_c_twice_ends_a_start_action_that_hangs(command: CommandLab) -> None:
    text = HANGING.replace("GRACE", "1h").replace("@step()", '@action(at="start")')
    text = text.replace("-> HTTPResponse", "-> None").replace("return await", "await")
    text += f"""
        @step()
        async def home(self, url: URL = "/") -> HTTPResponse:
            {GET}
    """
    run = started(command, text, requests=3)
    ctrl_c_twice(run)
    ended = run.end()
    assert ended.code == 105
    assert ended.without_traceback()


def test_ctrl_c_while_the_file_is_imported_is_one_line(command: CommandLab) -> None:
    text = "open('importing', 'w').close()\ntime.sleep(600)\n"
    run = command.start("run", command.write(text))
    wait_until((command.folder / "importing").exists)
    run.ctrl_c()
    ended = run.end()
    assert ended.code == 105
    assert ended.err == "squall run: interrupted\n"
    assert ended.out == ""


def test_core_processes_end_when_the_parent_is_killed(command: CommandLab) -> None:
    run = started(command, ENDLESS, requests=20)
    cores = run.cores()
    assert len(cores) == 2
    run.process.kill()
    run.end()
    wait_until(lambda: not any(is_running(pid) for pid in cores))


DIES_ONCE = """
import itertools, signal
calls = itertools.count(1)

def die_once():
    if next(calls) == 10:
        try:
            open("died", "x").close()
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)
"""


def run_in_which_a_core_dies(command: CommandLab, text: str, *words: str) -> Ended:
    """One of two, in its tenth call: a kill from outside may come after the end."""
    whole = DIES_ONCE + textwrap.dedent(text).replace(
        "return await self.client.http.", "die_once(); return await self.client.http."
    )
    options = ("--host", command.target.url, "--json", "results.json", "--workers", "2")
    return command.process("run", command.write(whole), *options, *words)


def test_a_killed_core_process_makes_the_run_invalid_and_is_named(command: CommandLab) -> None:
    ended = run_in_which_a_core_dies(command, ENDLESS, "-d", "2s")
    assert ended.code == 98
    assert ended.without_traceback()
    reasons = ended.document["verdict"]["reasons"]
    assert ended.document["verdict"]["state"] == "INVALID"
    assert any("core process" in reason and "SIGKILL" in reason for reason in reasons)
    assert f"INVALID  {reasons[0]}" in ended.out
    assert f"! INVALID: {reasons[0]}" in ended.err


OPEN = """
class Steady(Workflow):
    rate = "100/s"
    duration = "3s"

    @step()
    async def one(self, url: URL = "/") -> HTTPResponse:
        return await self.client.http.get(url)
"""


def test_the_load_that_a_killed_core_owed_is_accounted_for(command: CommandLab) -> None:
    ended = run_in_which_a_core_dies(command, OPEN)
    [loss] = ended.document["losses"]
    starts = ended.document["workflows"][0]["starts"]
    assert starts["planned"] == 300
    assert loss["workflow"] == "Steady"
    # What it had planned and not made when it reported last is in neither.
    assert 0 < loss["starts"] <= 300 - starts["made"] - starts["dropped"]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    # A process that has ended and was not waited for yet is a zombie.
    return state != "Z"
