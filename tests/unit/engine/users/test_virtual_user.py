"""The end of users: grace, cancellation, and users that ignore it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from squall.engine.users import virtual_user
from squall.engine.users.virtual_user import User, end_users


class _Life:
    """What `end_users` sees of a user."""

    def __init__(self, life: Coroutine[Any, Any, None]) -> None:
        self.task = asyncio.create_task(life)
        self.is_leaving = False


async def _hears() -> None:
    await asyncio.sleep(60)


async def _ignores(stop: asyncio.Event) -> None:
    while not stop.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await stop.wait()


def _said(*, ignored: bool) -> str:
    async def run() -> str:
        stop = asyncio.Event()
        lives = [_Life(_hears()), *([_Life(_ignores(stop))] if ignored else [])]
        await asyncio.sleep(0)
        said = await end_users(cast(list[User], lives), 0.01)
        stop.set()
        await asyncio.wait([life.task for life in lives])
        return said

    return asyncio.run(run())


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_user, "END_ACTIONS_S", -0.9)


def test_a_user_that_ignores_its_cancellation_is_named_with_its_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        virtual_user, "author_place", lambda file, line: "shop.py:7" if file == __file__ else ""
    )
    assert _said(ignored=True) == (
        "users ignored their cancellation at shop.py:7;"
        " catch Exception there, or raise CancelledError again"
    )


def test_nothing_is_said_of_users_that_end() -> None:
    assert _said(ignored=False) == ""
