"""`squall ping`: what it asks for and how it ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import squall.cli.run.ping as command
from squall.cli.main import main


@pytest.mark.parametrize(("ok", "code"), [(True, 0), (False, 1)])
def test_an_answer_goes_to_stdout_and_a_failure_to_stderr(
    ok: bool, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: dict[str, Any] = {}

    async def ping(url: str, **settings: Any) -> Any:
        asked.update(settings, url=url)
        return SimpleNamespace(ok=ok, render=lambda: "what came of it")

    monkeypatch.setattr(command, "ping", ping)
    words = ["ping", "shop.test:8080/x", "--resolve", "shop.test:8080:[::1]", "--insecure"]
    assert main(words) == code
    captured = capsys.readouterr()
    assert (captured.out if ok else captured.err) == "what came of it\n"
    assert asked == {
        "url": "http://shop.test:8080/x",
        "resolve": {("shop.test", 8080): "::1"},
        "insecure": True,
        "http2": False,
        "ca_file": None,
        "timeout_s": 10.0,
        "certificate": "",
        "proxy": "",
        "proxy_auth": "",
    }
