"""Targets become typed configurations; secrets are read from elsewhere and never shown."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import pytest

from squall.api.errors import UsageError
from squall.reporting.outputs.delivery import parse_output
from squall.reporting.outputs.registry import KINDS, OutputKind
from squall.reporting.outputs.targets import Secret, create
from squall.reporting.redaction import without_credentials


class Config(msgspec.Struct):
    hosts: list[str]
    topic: str = ""
    token: Annotated[str, Secret("LIVE_TEST_TOKEN")] = ""
    batch: int = 10


@dataclass
class Place:
    url: str
    password: Annotated[str, Secret()] = ""


def make(config: Config) -> Config:
    return config


def place(config: Place, flag: str) -> tuple[Place, str]:
    return config, flag


def test_parts_without_a_name_belong_to_the_first_field_or_continue_a_list() -> None:
    config = create(make, "a:9092,b:9092,topic=load,batch=5", "-o x").made
    assert config == Config(["a:9092", "b:9092"], "load", "", 5)


def test_a_secret_comes_from_a_file_the_environment_or_its_own_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("from file\n")
    created = create(make, f"a,token=@{tmp_path / 'token'}", "-o x")
    assert created.made.token == "from file" and "from file" in created.secrets
    monkeypatch.setenv("ELSEWHERE", "from variable")
    created = create(make, "a,token=env:ELSEWHERE", "-o x")
    assert created.made.token == "from variable" and "from variable" in created.secrets
    monkeypatch.setenv("LIVE_TEST_TOKEN", "its own")
    created = create(make, "a", "-o x")
    assert created.made.token == "its own" and created.secrets == ("its own",)


def test_the_password_of_a_url_is_a_secret_and_the_flag_is_passed() -> None:
    created = create(place, "postgres://me:hunter2@db/x", "-o pg")
    assert created.made == (Place("postgres://me:hunter2@db/x"), "-o pg")
    assert created.secrets == ("hunter2",)


@pytest.mark.parametrize(
    ("target", "part"),
    [
        ("a,b,tpic=x", "tpic=...: write NAME=VALUE; names are hosts, topic, token, batch"),
        ("a,topic=x,rest", "a part after the first: write NAME=VALUE"),
        ("a,topic=x,topic=y", "topic= is given twice"),
        ("a,token=env:NO_SUCH_VARIABLE", "the environment has no NO_SUCH_VARIABLE; export it"),
        ("a,token=@/no/such/file", "token=@/no/such/file: No such file"),
        ("a,batch=many", "Expected `int`"),
    ],
)
def test_a_target_that_cannot_be_read_is_one_line(target: str, part: str) -> None:
    with pytest.raises(UsageError) as caught:
        create(make, target, "-o x")
    assert part in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("influx=http://u:p@h:1/x,token=t0k", "influx=http://***@h:1/x,token=***"),
        ("x=http://u:p@q@h/,db=1", "x=http://***@h/,db=1"),
        ("x=h,api_key=abc,tag=1", "x=h,api_key=***,tag=1"),
        ("x=h,token=env:TOKEN,password=@file", "x=h,token=env:TOKEN,password=@file"),
        ("json=results/run.json", "json=results/run.json"),
    ],
)
def test_the_shown_target_has_no_credentials(text: str, shown: str) -> None:
    assert without_credentials(text) == shown


@pytest.mark.parametrize("text", ["nokind=http://u:hunter2@h", "token=hunter2hunter2"])
def test_an_unknown_kind_shows_no_secret(text: str) -> None:
    with pytest.raises(UsageError, match="there is no output") as caught:
        parse_output(text)
    assert "hunter2" not in str(caught.value)


def test_a_missing_library_is_one_line_that_says_how_to_install_it() -> None:
    kind = OutputKind(
        *("x", "text", "example", "queue", "no_such_module", "x"),
        extra="queues",
        modules=("json", "no_such_package.sub"),
    )
    with pytest.raises(UsageError) as caught:
        kind.create("target", "-o x")
    assert str(caught.value) == (
        "-o x: needs no_such_package.sub, which is not installed: pip install 'squall[queues]'"
    )


def test_the_table_is_complete() -> None:
    for name, kind in KINDS.items():
        assert kind.name == name and kind.text and kind.example
        assert bool(kind.extra) == bool(kind.modules), name
