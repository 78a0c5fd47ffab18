"""`squall.run` and `Client.submit`: every argument with every kind of value.

It gives options, or a line that says why not. Nothing runs: the tests look at the options that a
run or a job would have.
"""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trustme

import squall
from squall import python
from squall.api.errors import ConfigError, UsageError
from squall.engine.run_options import ProfileFlags, RunOptions


class Thing:
    """No plain data."""


VALUES: dict[str, Any] = {
    "number": 5,
    "negative": -1,
    "fraction": 0.5,
    "true": True,
    "text": "x",
    "bytes": b"x",
    "class": Thing,
    "instance": Thing(),
    "list": [5],
    "texts": ["x"],
    "dict": {"a": "b"},
    "dict of numbers": {5: 5},
    "none": None,
}
ARGUMENTS = [
    each.name
    for each in inspect.signature(squall.run).parameters.values()
    if each.kind is each.KEYWORD_ONLY
]


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[RunOptions]:
    """The options of the runs and jobs that were asked for."""
    found: list[RunOptions] = []

    def note(options: RunOptions, feed: object = None) -> Any:
        # A core process receives them like this.
        msgspec.msgpack.decode(msgspec.msgpack.encode(options), type=RunOptions)
        found.append(options)
        return SimpleNamespace(document={})

    async def submitted(_: squall.Client, options: RunOptions, key: str, targets: Any) -> Any:
        return note(options)

    monkeypatch.setattr(python, "_blocking", note)
    monkeypatch.setattr(squall.Client, "_submitted", submitted)
    return found


def submit(workflow: Any, **arguments: Any) -> Any:
    return asyncio.run(squall.Client("127.0.0.1:1").submit(workflow, **arguments))


CALLERS = {"squall.run": squall.run, "Client.submit": submit}
ONLY_HERE = {"workers"}
"""Arguments of `squall.run` that a job does not have: the cluster decides."""


def test_a_job_has_the_arguments_of_a_run() -> None:
    assert set(ARGUMENTS) - ONLY_HERE < set(inspect.signature(squall.Client.submit).parameters)


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("argument", ARGUMENTS)
@pytest.mark.parametrize("kind", VALUES)
def test_an_argument(caller: str, argument: str, kind: str, planned: list[RunOptions]) -> None:
    if caller == "Client.submit" and argument in ONLY_HERE:
        pytest.skip("a job does not have it")
    refused = ""
    try:
        CALLERS[caller]("shop.py", **{argument: VALUES[kind]})
    except (UsageError, ConfigError) as error:
        refused = str(error)
    assert bool(refused) == (not planned)
    assert "\n" not in refused
    assert not refused or refused.startswith(caller)


@pytest.mark.parametrize("kind", VALUES)
def test_what_to_run(kind: str, planned: list[RunOptions]) -> None:
    if kind == "text":
        squall.run(VALUES[kind])
        assert planned[0].file == "x"
    else:
        with pytest.raises((UsageError, ConfigError)):
            squall.run(VALUES[kind])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"workers": "two"}, "squall.run: workers: Expected int | null, got str"),
        ({"load": {"Shop": {"users": 5}}}, 'squall.run: load of Shop has no "users"'),
        ({"html": 5}, "squall.run: html=5: name a file"),
        ({"pdf": "x.pdf"}, "squall.run has no argument pdf"),
        ({"duration": "x"}, None),
        ({"env": {"A": 5}}, "squall.run: env"),
        ({"resolve": {"shop.test": "127.0.0.1"}}, "squall.run: resolve shop.test:127.0.0.1: write"),
        ({"resolve": {"shop.test:0": "127.0.0.1"}}, "squall.run: resolve"),
        ({"proxy": "foo:abc"}, "squall.run: proxy: write http://host:port"),
        ({"cacert": "nope.pem"}, "squall.run: cacert nope.pem: No such file"),
        ({"cert": "nope.pem"}, "squall.run: cert nope.pem: No such file"),
        ({"cert_key": "nope.pem"}, "squall.run: cert_key nope.pem is the key of which certificate"),
    ],
)
def test_the_lines_name_the_argument(
    arguments: dict[str, Any], said: str | None, planned: list[RunOptions]
) -> None:
    if said is None:
        # The planner reads the load, with the file.
        squall.run("shop.py", **arguments)
        assert planned[0].profiles[""].duration == "x"
        return
    with pytest.raises(UsageError) as caught:
        squall.run("shop.py", **arguments)
    assert said in str(caught.value)


def test_one_text_is_one_threshold(planned: list[RunOptions]) -> None:
    squall.run("shop.py", thresholds="errors < 1%", stages="1s:5")
    assert planned[0].thresholds == ("errors < 1%",)
    assert planned[0].profiles[""].stages == ("1s:5",)


@pytest.mark.parametrize("caller", CALLERS)
def test_load_of_each_workflow_and_what_a_connection_needs(
    caller: str, planned: list[RunOptions], tmp_path: Path
) -> None:
    authority = str(tmp_path / "ca.pem")
    trustme.CA().cert_pem.write_to_path(authority)
    CALLERS[caller](
        "shop.py",
        load={"Shop": {"vus": 5}, "Browse": {"rate": "9/s", "duration": "3s"}},
        cacert=authority,
        resolve={"shop.test:443": "127.0.0.1"},
        secrets={"TOKEN": "s3cret"},
        proxy="ada:pw@proxy.test:3128",
        host="127.0.0.1:8080",
    )
    options = planned[0]
    assert options.profiles == {
        "Shop": ProfileFlags(vus=5),
        "Browse": ProfileFlags(rate="9/s", duration="3s"),
    }
    assert options.ca_file == authority
    assert options.resolve == {"shop.test:443": "127.0.0.1"}
    assert options.secrets == {"TOKEN": "s3cret", "SQUALL_PROXY_AUTH": "ada:pw"}
    assert (options.proxy, options.host) == ("http://proxy.test:3128", "http://127.0.0.1:8080")
