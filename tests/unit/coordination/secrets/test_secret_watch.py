"""The secret watch finds secrets: a test that passes it was really checked."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from squall.coordination import Coordinator, events
from squall.coordination.errors import ConfigurationError
from squall.coordination.secrets.sources import generate_secret
from tests.lab.programs import ROOT
from tests.lab.secret_watch import watched, watching

SECRET = generate_secret()


@pytest.fixture(autouse=True)
def nothing_secret_is_told() -> None:
    """Not over this module, which shows secrets on purpose."""


def rejected(reason: str) -> events.SignalRejected:
    return events.SignalRejected(reason=reason, sender_id="a", signal_id="s")


def a_member() -> Coordinator:
    return Coordinator("memory:", profile="fast", unsafe_timings=True, secret=SECRET)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "place", ["log", "event", "error", "repr", "signature", "python's log", "process"]
)
async def test_the_watch_finds_a_secret_in_every_output(place: str, tmp_path: Path) -> None:
    with watching() as watch:
        async with a_member() as member:
            keyring = member.parts.codec.keyring
            assert keyring is not None and watch.leaks() == []
            if place == "log" and member.parts.log is not None:
                member.parts.log.warning("oops", text=f"the key is {SECRET}")
            elif place == "event":
                member.parts.bus.emit(rejected(SECRET))
            elif place == "error":
                ConfigurationError(f"{SECRET} is wrong")
            elif place == "repr":
                watch.show([SECRET])
            elif place == "python's log":
                logging.getLogger("asyncio").error("never retrieved: %s", SECRET)
            elif place == "process":
                tmp_path.joinpath("a.err").write_text(f"Traceback: {SECRET}")
                watch.read(tmp_path)
            else:
                signature = keyring._signing.sign(b"x")  # pyright: ignore[reportPrivateUsage]
                member.parts.bus.emit(rejected(signature))
        assert watch.leaks()


def test_a_test_that_tells_a_secret_fails_and_does_not_pass_when_it_is_tried_again(
    request: pytest.FixtureRequest,
) -> None:
    def play(told: str) -> None:
        with watched(request.node) as watch:
            watch.know(SECRET)
            ConfigurationError(told)

    play("it is wrong")
    for told in (f"{SECRET} is wrong", "it is wrong"):
        with pytest.raises(AssertionError, match="was told"):
            play(told)


@pytest.mark.parametrize("folder", ["unit", "services"])
def test_each_folder_of_coordination_tests_is_watched(folder: str) -> None:
    conftest = ROOT / "tests" / folder / "coordination" / "conftest.py"
    assert '"nothing_secret_is_told"' in conftest.read_text(encoding="utf-8")
