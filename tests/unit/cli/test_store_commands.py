"""`--store` together with `--to`, and `squall agent`: one clear line for each mistake."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from squall.api.errors import UsageError
from squall.cli.main import build_parser, main
from squall.cli.shared.cluster_access import client_access
from squall.cli.shared.cluster_run import destination_of
from squall.cli.shared.run_options import run_options
from squall.cluster.client.access import ClusterAccess
from squall.cluster.wire.seal.secrets import client_credential, worker_credential
from squall.store_mode.client_side import StoreRoute
from squall.store_mode.find_coordinator import LEADER_ADDRESS

SECRET = "a secret of the store tests"
ASKING = (
    ("jobs",),
    ("status", "j"),
    ("watch", "j"),
    ("cancel", "j"),
    ("why", "j"),
    ("adjust", "j", "--pause"),
    ("nodes",),
)


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("TO", "STORE", "STORE_PREFIX", "SECRET_FILE", "CLUSTER_ID", "CLUSTER_SECRET_FILE"):
        monkeypatch.delenv(f"SQUALL_{name}", raising=False)
    monkeypatch.setenv("SQUALL_SECRET", SECRET)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def parsed(*words: str) -> Namespace:
    return build_parser().parse_args(words)


def place_of(access: ClusterAccess) -> StoreRoute:
    assert isinstance(access.route, StoreRoute)
    return access.route


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Exit code and the one line on stderr. Nodes run in this process, whose stderr it reads."""
    alone = ["--no-launcher"] if words[0] == "agent" else []
    code = main([*words, *alone])
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return code, lines[0]


@pytest.mark.parametrize("words", ASKING)
def test_every_question_and_wish_takes_a_store(words: tuple[str, ...]) -> None:
    arguments = parsed(*words, "--store", "redis://h:1/0", "--prefix", "team")
    found = client_access(arguments)
    assert found.addresses == (LEADER_ADDRESS,)
    place = place_of(found)
    assert (place.url, place.prefix) == ("redis://h:1/0", "team")
    assert len(place.proofs) == 1 and SECRET not in repr(found)


def test_questions_may_take_the_store_from_the_environment_but_a_run_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SQUALL_STORE", "redis://h:1/0")
    found = client_access(parsed("jobs"))
    assert place_of(found).prefix == "squall"
    assert destination_of(parsed("run", "f.py")) is None
    assert client_access(parsed("jobs", "--to", "h:2")).route is None


def test_a_store_and_managers_at_once_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="choose one"):
        client_access(parsed("jobs", "--to", "h:1", "--store", "redis://h:1/0"))
    monkeypatch.setenv("SQUALL_STORE", "redis://h:1/0")
    monkeypatch.setenv("SQUALL_TO", "h:1")
    with pytest.raises(UsageError, match="both set"):
        client_access(parsed("jobs"))


def test_a_credential_of_a_client_is_enough_and_one_of_a_worker_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SQUALL_SECRET", client_credential(SECRET, "ann"))
    found = client_access(parsed("jobs", "--store", "redis://h:1/0"))
    assert place_of(found).proofs == ()
    code, line = said(capsys, "agent", "--store", "redis://h:1/0")
    assert code == 104 and "needs the secret of the cluster itself" in line
    monkeypatch.setenv("SQUALL_SECRET", worker_credential(SECRET))
    code, line = said(capsys, "jobs", "--store", "redis://h:1/0")
    assert code == 104 and "one of a worker" in line


@pytest.mark.parametrize("url", ["memory:", "etcd://h", "redis", "file:///x"])
@pytest.mark.parametrize("command", ["agent", "jobs"])
def test_what_is_no_store_is_one_line(
    url: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, line = said(capsys, command, "--store", url)
    assert code == 2 and line.startswith(f"squall {command}: --store {url}: ")


def test_an_agent_needs_a_store(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "agent") == (
        2,
        "squall agent: no store named: give one with --store URL or SQUALL_STORE",
    )


def test_a_question_never_makes_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, line = said(capsys, "jobs", "--store", f"sqlite:///{tmp_path}/none.db")
    assert code == 2 and "no agent was ever there" in line
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize("words", [("agent", "--no-launcher"), ("jobs",)])
def test_a_store_that_does_not_answer_is_one_line_and_exit_code_3(
    words: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    code = main([*words, "--store", "redis://127.0.0.1:1/0"])
    assert code == 3
    line = capfd.readouterr().err.strip().splitlines()[-1]
    assert line.startswith("redis://127.0.0.1:1/0: the store does not answer")


def test_what_becomes_of_a_lost_machine_is_a_part_of_the_job() -> None:
    kept = run_options(parsed("run", "f.py", "--store", "redis://h:1/0"))
    assert kept.on_agent_loss == "replan" and kept.lease_min_s == 0.0
    going_on = run_options(parsed("submit", "f.py", "--on-agent-loss", "continue"))
    assert going_on.on_agent_loss == "continue" and going_on.lease_min_s == 300.0
    with pytest.raises(UsageError, match="--on-agent-loss is for a run on a cluster"):
        destination_of(parsed("run", "f.py", "--on-agent-loss", "continue"))


def test_what_workers_do_without_a_manager_is_a_part_of_the_job() -> None:
    words = ("run", "f.py", "--to", "h:1", "--on-control-loss", "continue")
    assert run_options(parsed(*words)).on_control_loss == "continue"
    assert run_options(parsed("submit", "f.py")).on_control_loss == ""
    with pytest.raises(UsageError, match="--on-control-loss is for a run on a cluster"):
        destination_of(parsed("run", "f.py", "--on-control-loss", "stop"))


def test_agents_are_waited_for_without_an_end_unless_patience_is_named() -> None:
    there = ("run", "f.py", "--store", "redis://h:1/0")
    kept, short = destination_of(parsed(*there)), destination_of(parsed(*there, "--patience", "7s"))
    assert kept is not None and kept.waits_s == float("inf")
    assert short is not None and short.waits_s == 7.0


def test_explain_tells_what_a_run_asks_of_a_store_and_asks_it_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = "http://127.0.0.1:1/"
    there = ("--store", "s3://no-such-bucket/p", "--agents", "10")
    assert main(["explain", url, "-u", "5", "-d", "10m", *there]) == 0
    shown = capsys.readouterr().out
    assert "store  s3, 10 agents" in shown
    assert "this run of 10m" in shown and "USD for this run" in shown
    assert main(["explain", url, "-d", "10s", "--store", f"sqlite:///{tmp_path}/s.db"]) == 0
    assert "no requests are sent" in capsys.readouterr().out
    assert not (tmp_path / "s.db").exists()


def test_explain_refuses_agents_without_a_store(capsys: pytest.CaptureFixture[str]) -> None:
    code, line = said(capsys, "explain", "http://127.0.0.1:1/", "--agents", "3")
    assert code == 2 and "add --store URL" in line
