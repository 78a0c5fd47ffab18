"""`--to dev` finds the datacenter that `squall dev` runs on this machine, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from squall.api.errors import UsageError
from squall.cluster.client import local_datacenter
from squall.cluster.client.access import AccessOptions
from squall.cluster.client.connection import process_name
from squall.cluster.client.local_datacenter import LocalDatacenter, announce, withdraw
from squall.cluster.wire.roles import Role
from squall.store_mode.access import client_access

SECRET = "a secret of a dev cluster"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("SQUALL_TO", "SQUALL_SECRET_FILE", "SQUALL_SECRET", "SQUALL_CLUSTER_ID"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "secret").write_text(SECRET)
    return tmp_path


def here(home: Path, to: str = "127.0.0.1:4001,127.0.0.1:4002") -> LocalDatacenter:
    return LocalDatacenter(to=to, secret_file=str(home / "secret"), cluster="mine")


def test_dev_stands_for_address_secret_and_cluster_of_the_running_one(home: Path) -> None:
    assert announce(here(home))
    found = client_access(AccessOptions(to="dev"))
    assert found.addresses == (("127.0.0.1", 4001), ("127.0.0.1", 4002))
    assert found.cluster == "mine"
    assert found.secrets.role is Role.CLIENT and found.secrets.operator


def test_a_secret_of_another_cluster_in_the_environment_is_not_sent_to_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    announce(here(home))
    monkeypatch.setenv("SQUALL_SECRET_FILE", str(home / "absent"))
    monkeypatch.setenv("SQUALL_CLUSTER_ID", "other")
    monkeypatch.setenv("SQUALL_TO", "dev")
    assert client_access(AccessOptions()).cluster == "mine"


def test_without_a_running_one_the_refusal_says_how_to_start_it(home: Path) -> None:
    with pytest.raises(UsageError, match="no `squall dev` of yours runs"):
        client_access(AccessOptions(to="dev"))
    announce(here(home))
    withdraw()
    with pytest.raises(UsageError, match="start one with: squall dev"):
        client_access(AccessOptions(to="dev"))


def test_one_that_was_killed_is_not_found_and_not_dialled(home: Path) -> None:
    announce(here(home))
    path = own_file(home)
    left = msgspec.json.decode(path.read_bytes(), type=LocalDatacenter)
    # The same process id, started at another time: the number was reused.
    dead = msgspec.structs.replace(left, owner=f"{left.owner}9")
    path.write_bytes(msgspec.json.encode(dead))
    with pytest.raises(UsageError, match="no `squall dev` of yours runs"):
        client_access(AccessOptions(to="dev"))


def own_file(home: Path) -> Path:
    return home / "state" / "squall" / f"dev-{os.getpid()}.json"


def announce_another(home: Path, to: str, owner: str) -> Path:
    """As another process would."""
    announce(here(home, to))
    path = own_file(home).with_name("dev-1.json")
    own_file(home).rename(path)
    known = msgspec.json.decode(path.read_bytes(), type=LocalDatacenter)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(known, owner=owner)))
    return path


def test_of_two_the_later_is_found_and_after_its_end_the_other(home: Path) -> None:
    first = announce_another(home, "127.0.0.1:1", process_name(os.getpid()))
    os.utime(first, ns=(1, 1))
    announce(here(home, "127.0.0.1:2"))
    assert client_access(AccessOptions(to="dev")).addresses == (("127.0.0.1", 2),)
    withdraw()
    assert client_access(AccessOptions(to="dev")).addresses == (("127.0.0.1", 1),)


def test_what_a_killed_one_left_is_removed(home: Path) -> None:
    left = announce_another(home, "127.0.0.1:1", f"{process_name(os.getpid())}9")
    announce(here(home))
    assert not left.exists()


def test_another_address_is_left_alone(home: Path) -> None:
    options = AccessOptions(to="10.0.0.1:7400")
    assert local_datacenter.resolved(options) is options


def test_a_state_directory_that_cannot_be_written_is_no_error(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "file"))
    assert not announce(here(home))
