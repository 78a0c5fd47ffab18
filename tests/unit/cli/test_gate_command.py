"""The flags of `squall gate`: datacenters and members, and one clear line for a mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from squall.api.errors import UsageError
from squall.cli.cluster.gate import datacenters_of
from squall.cli.cluster.members import members_of
from squall.cli.main import main


def test_datacenters_have_one_or_more_managers() -> None:
    assert datacenters_of(["eu=10.0.0.1:7400;10.0.0.2:7400,us=10.1.0.1:7400"]) == {
        "eu": ("10.0.0.1:7400", "10.0.0.2:7400"),
        "us": ("10.1.0.1:7400",),
    }
    assert list(datacenters_of(["eu=a:1", "us=b:1"])) == ["eu", "us"]


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ("eu", "write NAME=HOST:PORT"),
        ("eu=a:1,eu=b:1", "eu is named twice; separate its managers by ;"),
        ("e u=a:1", "a name has 1 to 63 letters"),
        ("eu=a", "eu="),
    ],
)
def test_a_wrong_datacenter_is_refused_with_what_is_wanted(entry: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        datacenters_of([entry])


def test_two_gates_with_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="g1 is named twice"):
        members_of(["g1=a:1,g1=b:1,g3=c:1"], role="gate")
    with pytest.raises(UsageError, match="two gates have the same address"):
        members_of(["g1=a:1,g2=a:1,g3=c:1"], role="gate")
    with pytest.raises(UsageError, match="4 gates; a group has 1, 3 or 5"):
        members_of(["g1=a:1,g2=b:1,g3=c:1,g4=d:1"], role="gate")


def test_a_gate_must_be_among_its_members(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["gate", "--name", "g9", "--listen", "127.0.0.1:1", "--members", "g1=127.0.0.1:1"]
    words += ["--datacenter", "eu=127.0.0.1:2", "--data", str(tmp_path), "--no-launcher"]
    assert main(words) == 2
    assert capsys.readouterr().err == "squall gate: --name g9 is not among --members g1\n"
