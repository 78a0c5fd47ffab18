"""Arguments of the cluster commands: how they are parsed, and one clear line for each mistake."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any, Literal

import pytest

from squall.api.errors import ConfigError, UsageError
from squall.cli.cluster.jobs import adjustment_of, status_lines
from squall.cli.cluster.members import members_of
from squall.cli.main import build_parser, main
from squall.cli.shared.cluster_run import destination_of
from squall.cli.shared.node_settings import node_settings
from squall.cluster.client import access
from squall.cluster.client.cluster_client import cores_of
from squall.cluster.client.connection import is_alive, process_name
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.messages import Counters, JobView, NodeView, WorkflowView
from squall.cluster.wire.roles import Role
from squall.cluster.wire.seal.secrets import client_credential, key_name, worker_credential
from squall.reporting.text.standard_streams import value_of
from squall.settings.shared_sections import ClusterSettings

SECRET = "a secret of the command tests"


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("SQUALL_TO", "SQUALL_SECRET", "SQUALL_SECRET_FILE", "SQUALL_CLUSTER_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("SQUALL_CLUSTER_SECRET_FILE", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def parsed(*words: str) -> Namespace:
    return build_parser().parse_args(words)


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Exit code and the one line on stderr. Nodes run in this process, whose stderr it reads."""
    nodes = ("manager", "gate", "worker", "agent")
    alone = ["--no-launcher"] if words[0] in nodes else []
    code = main([*words, *alone])
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return code, lines[0]


def test_a_page_without_its_libraries_is_refused_before_the_node_starts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SQUALL_SECRET", SECRET)
    monkeypatch.setattr("squall.web.server.find_spec", lambda _: None)
    listen = ("--listen", "127.0.0.1:7400", "--data", "data", "--web")
    for words in (
        ("manager", "--dc", "eu", "--name", "m1", "--members", "m1=127.0.0.1:7400", *listen),
        ("gate", "--name", "g1", "--members", "g1=127.0.0.1:7400", "--datacenter",
         "eu=127.0.0.1:7401", *listen),
        ("agent", "--store", "redis://127.0.0.1:1", "--data", "data", "--web"),
        ("dev", "--data", "data", "--web"),
    ):  # fmt: skip
        code, line = said(capsys, *words)
        assert code == 104, line
        assert "--web needs starlette and uvicorn" in line
        assert "pip install 'squall[web]'" in line
        assert not (tmp_path / "data").exists()


def test_without_an_address_or_a_secret_nothing_is_tried(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, line = said(capsys, "jobs")
    assert code == 2 and "--to HOST:PORT" in line
    code, line = said(capsys, "jobs", "--to", "127.0.0.1:1")
    assert code == 104 and "SQUALL_SECRET_FILE" in line
    code, line = said(capsys, "worker", "--dc", "x", "--managers", "127.0.0.1:1")
    assert code == 104 and "no secret" in line
    code, line = said(
        capsys, "manager", "--dc", "x", "--name", "m1", "--listen", "127.0.0.1:1",
        "--members", "m1=127.0.0.1:1", "--data", "d",
    )  # fmt: skip
    assert code == 104 and "no secret" in line


def test_a_dead_address_is_one_line_and_exit_code_3(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQUALL_SECRET", SECRET)
    monkeypatch.setattr("squall.cluster.client.cluster_client.QUERY_TIMEOUT_S", 0.2)
    code, line = said(capsys, "nodes", "--to", "127.0.0.1:1")
    assert code == 3
    assert line == "no manager answers: 127.0.0.1:1: connection refused: nothing listens there"


@pytest.mark.parametrize("text", ["host", "host:", ":7", "host:70000", "host:x", "host:0"])
def test_an_address_is_host_and_port(text: str) -> None:
    with pytest.raises(UsageError, match="write HOST:PORT"):
        access.address_of(text, "--to")


def test_addresses_come_from_the_flag_then_the_environment_then_the_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = ClusterSettings(managers=("c:3",))
    assert access.given_addresses("a:1,b:2,a:1", "--to", settings) == (("a", 1), ("b", 2))
    assert access.given_addresses(None, "--to", settings) == (("c", 3),)
    monkeypatch.setenv("SQUALL_TO", "[::1]:4")
    assert access.given_addresses(None, "--to", settings) == (("::1", 4),)


def test_a_secret_file_may_hold_the_old_secret_too(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n\nan older secret of them\n")
    arguments = parsed("nodes", "--secret-file", str(file))
    lines = access.secret_lines(arguments.secret_file, ClusterSettings())
    assert lines == [SECRET, "an older secret of them"]
    made = access.client_secrets(lines)
    assert made.role is Role.CLIENT and made.name == access.user_name()
    assert made.operator, "the cluster's own secret counts as an operator's"
    assert len(made.for_role(Role.CLIENT, key_name(made.name, operator=True))) == 2
    assert made.for_role(Role.NODE) == ()


def test_each_role_needs_its_own_credential() -> None:
    worker, client = [worker_credential(SECRET)], [client_credential(SECRET, "ann")]
    assert access.worker_secrets(worker).role is Role.WORKER
    with pytest.raises(ConfigError, match="one of a worker; a client needs its own"):
        access.client_secrets(worker)
    assert access.client_secrets(client).name == "ann"
    with pytest.raises(ConfigError, match="secret of the cluster itself"):
        access.node_secrets(client)


@pytest.mark.parametrize("content", [None, "", "\n\n"])
def test_a_secret_file_that_is_missing_or_empty_is_named(
    tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=str(file)):
        access.secret_lines(str(file), ClusterSettings())


def test_a_new_secret_makes_credentials(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "secret"
    assert main(["secret", "new", "-o", str(file)]) == 0
    assert file.stat().st_mode & 0o777 == 0o600
    assert main(["secret", "client", "ann", "--secret-file", str(file)]) == 0
    credential = capsys.readouterr().out.strip()
    assert credential == client_credential(file.read_text().strip(), "ann")
    assert main(["secret", "client", "ann", "--operator", "--secret-file", str(file)]) == 0
    operator = capsys.readouterr().out.strip()
    assert access.client_secrets([operator]).operator
    assert not access.client_secrets([credential]).operator
    assert main(["secret", "worker", "--secret-file", str(file)]) == 0
    assert capsys.readouterr().out.strip() == worker_credential(file.read_text().strip())
    before = file.read_text()
    code, line = said(capsys, "secret", "new", "-o", str(file))
    assert code == 2 and "exists" in line and file.read_text() == before
    (tmp_path / "client").write_text(credential)
    code, line = said(capsys, "secret", "worker", "--secret-file", str(tmp_path / "client"))
    assert code == 104 and "cannot make another" in line


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        (["m1"], "write NAME=HOST:PORT"),
        (["m1=h"], "write HOST:PORT"),
        (["m1=h:1,m1=h:2"], "named twice"),
        (["m1=h:1,m2=h:1,m3=h:2"], "the same address"),
        (["m1=h:1,m2=h:2"], "survives no failure; use 1 or 3"),
        (["m1=h:1,m2=h:2,m3=h:3,m4=h:4"], "1, 3 or 5"),
    ],
)
def test_members_that_cannot_be_a_group_are_refused(entries: list[str], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        members_of(entries)


def test_members_may_be_repeated_or_joined() -> None:
    assert members_of(["m1=a:1", "m2=b:2,m3=c:3"]) == {
        "m1": ("a", 1),
        "m2": ("b", 2),
        "m3": ("c", 3),
    }


def test_a_manager_is_one_of_its_members(capsys: pytest.CaptureFixture[str]) -> None:
    code, line = said(
        capsys, "manager", "--dc", "x", "--name", "m9", "--listen", "127.0.0.1:1",
        "--members", "m1=127.0.0.1:1", "--data", "d",
    )  # fmt: skip
    assert code == 2 and "m9 is not among --members m1" in line


def test_an_adjustment_names_what_it_changes() -> None:
    change = adjustment_of(parsed("adjust", "j", "--rate", "Shop=300/s"))
    assert (change.workflow, change.rate_per_s, change.vus, change.paused) == (
        "Shop",
        300.0,
        None,
        None,
    )
    assert adjustment_of(parsed("adjust", "j", "--vus", "20")).vus == 20
    assert adjustment_of(parsed("adjust", "j", "--pause")).paused is True
    assert adjustment_of(parsed("adjust", "j", "--resume")).paused is False


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "nothing to change"),
        (["--pause", "--resume"], "choose one"),
        (["--rate", "fast"], "rate"),
        (["--vus", "-3"], "vus"),
        (["--rate", "A=3/s", "--vus", "B=3"], "different workflows"),
    ],
)
def test_an_adjustment_that_means_nothing_is_refused(words: list[str], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        adjustment_of(parsed("adjust", "j", *words))


def test_a_run_goes_to_a_cluster_only_by_its_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUALL_TO", "127.0.0.1:1")
    monkeypatch.setenv("SQUALL_SECRET", SECRET)
    assert destination_of(parsed("run", "shop.py")) is None
    sent = destination_of(parsed("run", "shop.py", "--to", "b:2", "--key", "k", "--patience", "5s"))
    assert sent is not None
    assert (sent.access.addresses, sent.key, sent.patience_s) == ((("b", 2),), "k", 5.0)
    assert all(parsed(word, "shop.py", "--detach").detach for word in ("run", "submit"))
    for words in (["--key", "k"], ["--patience", "5s"]):
        with pytest.raises(UsageError, match="add --to"):
            destination_of(parsed("run", "shop.py", *words))
    with pytest.raises(UsageError, match="--once"):
        destination_of(parsed("run", "shop.py", "--once", "--to", "b:2"))


def test_json_has_every_field() -> None:
    view = JobView(job=JobId("a-1"), state="queued", file="shop.py")
    shown: dict[str, Any] = value_of(view)
    assert shown["position"] == 0 and shown["workflows"] == []
    assert set(shown) == set(JobView.__struct_fields__)


def test_a_status_says_where_the_job_is() -> None:
    view = JobView(
        job=JobId("a-1"),
        state="queued",
        file="shop.py",
        principal="ann",
        position=3,
        leader="m2",
        workflows=[
            WorkflowView(
                name="Shop",
                state="running",
                cores=2,
                workers=["w1", "w2"],
                priority="high",
                counters=Counters(made=1200, sent=2400, failed=3),
            ),
            WorkflowView(name="Clean", state="pending", layer=1),
        ],
        adjustments=["Shop: paused at 3.0 s by ann (lunch)"],
    )
    head, *rest = status_lines(view)
    assert head.startswith("a-1  queued  shop.py  by ann") and "place 3 in the queue" in head
    assert "  led by m2  " in head
    assert rest[1].split() == [
        "Shop", "running", "1", "high", "2", "w1,w2", "1,200", "2,400", "3", "0", "0",
    ]  # fmt: skip
    assert rest[2].split() == ["Clean", "pending", "2", "auto", "0", *"----", "0", "0"]
    assert rest[3] == "Shop: paused at 3.0 s by ann (lunch)"


def test_a_status_says_what_people_changed() -> None:
    shop = WorkflowView(name="Shop", state="running", cores=2, attempts=2, adjusted="120/s, paused")
    view = JobView(job=JobId("a-1"), state="running", file="shop.py", age_s=3.0, workflows=[shop])
    head, _, line = status_lines(view)
    assert head.endswith("submitted 3s ago") and line.endswith("120/s, paused")


def test_a_run_counts_the_cores_that_may_be_given_work() -> None:
    def node(state: str, role: Literal["manager", "worker"] = "worker") -> NodeView:
        return NodeView(name="n", role=role, address="h", pid=1, state=state, boot="b", cores=2)

    states = ("idle", "busy", "gone", "silent", "draining", "drained")
    assert cores_of([*map(node, states), node("leads", "manager")]) == 4


def test_a_process_is_known_by_when_it_began() -> None:
    import os

    own = process_name(os.getpid())
    assert is_alive(own)
    assert not is_alive(own.partition(":")[0] + ":1")
    assert not is_alive("") and not is_alive("999999999:1")


def test_a_node_warns_of_a_secret_file_that_others_can_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET)
    words = ("worker", "--dc", "x", "--managers", "127.0.0.1:1", "--secret-file", str(file))
    file.chmod(0o600)
    node_settings(parsed(*words))
    assert capsys.readouterr().err == ""
    file.chmod(0o644)
    node_settings(parsed(*words))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warning: secret file {file} has mode 644") and "chmod 600" in line
