"""The watch over secrets finds them: a module that it calls clean was looked at."""

from __future__ import annotations

import pytest

from secret_watch import watching
from squall.coordination import Coordinator, events
from squall.coordination.errors import ConfigurationError
from squall.coordination.secrets import generate_secret

pytestmark = pytest.mark.asyncio
SECRET = generate_secret()


def rejected(reason: str) -> events.SignalRejected:
    return events.SignalRejected(reason=reason, sender_id="a", signal_id="s")


@pytest.mark.parametrize("place", ["log", "event", "error", "repr", "signature"])
async def test_the_watch_sees_a_secret_wherever_it_is_told(place: str) -> None:
    with watching() as watch:
        async with Coordinator(
            "memory:", profile="fast", unsafe_timings=True, secret=SECRET
        ) as member:
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
            else:
                signature = keyring._signing.sign(b"x")  # pyright: ignore[reportPrivateUsage]
                member.parts.bus.emit(rejected(signature))
        assert watch.leaks()
