"""The routes of a page over HTTP: roles, bodies, headers, the report and the comparison."""

from __future__ import annotations

from typing import Any

import pytest

from squall.api.errors import UsageError
from squall.engine.load_change import LoadChange
from squall.web.access import access_for
from squall.web.feed import FinishedRun, PageControls, RunFeed
from squall.web.run_app import guarded, one_run_app
from tests.services.reporting.lab.document import report_document
from tests.unit.ui.lab.screens import manifest
from tests.unit.web.lab.asgi_client import AsgiClient

ACCESS = access_for("127.0.0.1")
CONTROL = {"x-squall-token": ACCESS.control_token}


class Asked:
    """What viewers asked the run for."""

    def __init__(self) -> None:
        self.changes: list[LoadChange] = []
        self.factors: list[tuple[float, str]] = []
        self.stops: list[bool] = []

    async def change(self, change: LoadChange) -> None:
        if change.workflow == "Unknown":
            raise UsageError("the run has no test workflow Unknown")
        self.changes.append(change)

    async def multiply(self, factor: float, workflow: str) -> None:
        self.factors.append((factor, workflow))

    def stop(self, now: bool) -> None:
        self.stops.append(now)


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
def feed(asked: Asked) -> RunFeed:
    feed = RunFeed("shop.py")
    feed.start(manifest(), 2)
    feed.offer(PageControls(asked.change, asked.multiply, asked.stop))
    return feed


@pytest.fixture
def client(feed: RunFeed) -> AsgiClient:
    return AsgiClient(guarded(one_run_app(feed), ACCESS))


def test_every_answer_has_the_security_headers(client: AsgiClient) -> None:
    for path in ("/", "/static/run.js", "/static/style.css", "/static/nothing.js", "/nowhere"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"


def test_static_files_are_those_of_the_package_only(client: AsgiClient) -> None:
    assert client.get("/static/uplot.min.js").headers["content-type"].startswith("text/javascript")
    for path in ("/static/..%2faccess.py", "/static/%2e%2e/access.py", "/static/access.py"):
        assert client.get(path).status == 404


def test_a_page_of_another_name_is_refused(client: AsgiClient) -> None:
    answer = client.get("/", {"host": "evil.example"})
    assert answer.status == 403 and "content-security-policy" in answer.headers


def test_control_is_refused_without_the_token(client: AsgiClient, asked: Asked) -> None:
    for path, body in (("/api/change", {"paused": True}), ("/api/stop", {"now": False})):
        for headers in ({}, {"x-squall-token": "wrong"}, {"x-squall-token": ACCESS.view_token}):
            answer = client.post(path, body, headers)
            assert answer.status == 403 and "read only" in answer.json()["error"]
        assert client.post(f"{path}?key={ACCESS.control_token}", body).status == 403
    assert not asked.changes and not asked.stops


def test_changes_reach_the_run(client: AsgiClient, asked: Asked) -> None:
    for body in ({"paused": True}, {"workflow": "Shop", "rate_per_s": 12.5}, {"vus": 3}):
        assert client.post("/api/change", body, CONTROL).json() == {"ok": True}
    client.post("/api/change", {"factor": 1.1, "workflow": "Shop"}, CONTROL)
    client.post("/api/stop", {"now": True}, CONTROL)
    assert asked.changes == [
        LoadChange(paused=True),
        LoadChange(workflow="Shop", rate_per_s=12.5),
        LoadChange(vus=3),
    ]
    assert asked.factors == [(1.1, "Shop")] and asked.stops == [True]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"paused": "yes"}', 400),
        (b'{"stop": true}', 400),
        (b"not json", 400),
        (b'{"factor": 2.0, "paused": true}', 400),
        (b'{"factor": 1e9}', 400),
        (b'{"workflow": "Unknown", "paused": true}', 400),
        (b'{"workflow": "' + b"x" * 70_000 + b'"}', 413),
    ],
)
def test_a_body_that_does_not_fit_is_one_line(
    client: AsgiClient, asked: Asked, body: bytes, status: int
) -> None:
    headers = CONTROL | {"content-type": "application/json"}
    answer = client.post("/api/change", body, headers)
    assert answer.status == status and "\n" not in answer.json()["error"]
    assert not asked.changes


def test_a_form_cannot_control(client: AsgiClient, asked: Asked) -> None:
    answer = client.post("/api/change", b"paused=true", CONTROL)
    assert answer.status == 415
    assert not asked.changes


def finished(document: dict[str, Any]) -> FinishedRun:
    from squall.reporting.document.build import encode_document

    return FinishedRun(encode_document(document), b"<html><script>1</script></html>")


def test_the_report_comes_with_the_end_in_an_origin_of_its_own(
    client: AsgiClient, feed: RunFeed
) -> None:
    assert client.get("/report.html").status == 404
    assert client.post("/api/compare", b"{}").status == 409
    document = report_document()
    feed.end(finished(document))
    report = client.get("/report.html")
    assert report.status == 200
    assert report.headers["content-security-policy"].startswith("sandbox allow-scripts")
    assert "allow-same-origin" not in report.headers["content-security-policy"]
    assert client.get("/results.json").json() == document
    assert client.post("/api/change", {"paused": True}, CONTROL).status == 409


def test_an_earlier_run_is_compared_at_the_end(client: AsgiClient, feed: RunFeed) -> None:
    feed.end(finished(report_document()))
    content = client.get("/results.json").content
    text = client.post("/api/compare", content).json()["text"]
    assert "this run" in text and "no difference" in text
    wrong = client.post("/api/compare", b'{"schema": "other"}')
    assert wrong.status == 400 and "is not a results document" in wrong.json()["error"]


def test_elsewhere_than_on_this_machine_looking_needs_a_token(feed: RunFeed) -> None:
    access = access_for("0.0.0.0")
    client = AsgiClient(guarded(one_run_app(feed), access), "10.0.0.1:8650")
    feed.end(finished(report_document()))
    assert client.get("/").status == 200
    assert client.get("/results.json").status == 401
    assert client.get("/api/events").status == 401
    allowed = client.get("/results.json", {"x-squall-token": access.view_token})
    assert allowed.status == 200
    assert client.get(f"/report.html?key={access.view_token}").status == 200
