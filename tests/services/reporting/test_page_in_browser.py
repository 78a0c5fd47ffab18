"""The HTML report in a real browser: it draws, sorts, prints and fetches nothing."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from squall.reporting.document.build import SCHEMA_PATH
from squall.reporting.page.render import render_html
from tests.lab.browser import Browser, Page, browser_program, running_browser
from tests.services.reporting.lab.document import (
    LATE_SECONDS,
    NASTY,
    QUIET_SECOND,
    SECONDS,
    report_document,
)

SUMMARY = "shop.py  Shop  DEGRADED\nRequests/sec: 40.0"
PLOTS = "[...document.querySelectorAll('section:not([hidden]) [data-plot]')]"
ROWS = "[...document.querySelectorAll('#workflow-0 tbody tr[data-row]')].map(r => r.dataset.row)"
SHOWN = (
    "[...document.querySelectorAll('section.workflow')]"
    ".filter(s => s.offsetHeight).map(s => s.dataset.workflow)"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = browser_program()
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("chromium is not installed")
        pytest.skip("chromium is not installed")
    with running_browser(program, tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render_html(report_document(), SUMMARY), encoding="utf-8")
    return path.as_uri()


def plots(page: Page) -> dict[str, dict[str, str]]:
    return page.ask(f"Object.fromEntries({PLOTS}.map(p => [p.dataset.plot, {{...p.dataset}}]))")


def test_the_document_of_these_tests_is_a_true_one() -> None:
    jsonschema.validate(report_document(), json.loads(SCHEMA_PATH.read_text()))


def test_it_draws_every_plot_from_the_document_without_a_complaint(
    browser: Browser, address: str
) -> None:
    page = browser.open(address)
    assert page.ask("document.documentElement.dataset.ready") == "true"
    drawn = plots(page)
    assert list(drawn) == ["rate", "latency", "users", "cpu", "lag", "distribution"]
    for name in ("rate", "users", "cpu", "lag"):
        assert drawn[name]["points"] == str(SECONDS)
    assert int(drawn["distribution"]["points"]) > 5
    paths = page.ask(
        f"{PLOTS}.flatMap(p => [...p.querySelectorAll('path')]).map(p => p.getAttribute('d'))"
    )
    assert len(paths) == 11 and all(paths) and not any("NaN" in path for path in paths)
    assert page.complaints() == []


def test_a_window_with_too_few_samples_is_a_gap_and_a_late_one_is_marked(
    browser: Browser, address: str
) -> None:
    page = browser.open(address)
    drawn = plots(page)
    assert drawn["latency"]["gaps"] == "1", f"second {QUIET_SECOND}"
    assert drawn["latency"]["points"] == str(SECONDS - 1)
    assert page.ask("document.querySelector('.lag .offence') !== null") is True
    assert drawn["lag"]["offences"] == str(len(LATE_SECONDS))
    assert drawn["users"]["offences"] == drawn["cpu"]["offences"] == "0"


def test_a_run_of_few_samples_gets_wider_windows_from_merged_buckets(
    browser: Browser, tmp_path: Path
) -> None:
    document = report_document()
    iteration = document["workflows"][0]["iteration"]
    five = iteration["windows"]["buckets"][QUIET_SECOND]
    iteration["windows"] |= {"count": [5] * SECONDS, "buckets": [five] * SECONDS}
    path = tmp_path / "few.html"
    path.write_text(render_html(document), encoding="utf-8")
    page = browser.open(path.as_uri())
    assert plots(page)["latency"]["points"] == str(SECONDS // 5)
    assert "windows of 5 s" in page.ask("document.querySelector('.latency small').textContent")


def test_nothing_is_fetched_and_texts_of_strangers_stay_texts(
    browser: Browser, address: str
) -> None:
    page = browser.open(address)
    page.ask("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert page.fetched() == [address]
    assert "DEGRADED" in page.ask("document.title")
    assert page.ask("document.querySelectorAll('img, iframe, link, [src], a[href]').length") == 0
    assert NASTY in page.ask("document.querySelector('.errors pre.body').textContent")
    assert NASTY in page.ask(ROWS)


def test_the_policy_refuses_what_another_script_would_fetch(browser: Browser, address: str) -> None:
    page = browser.open(address)
    page.ask("{ const i = new Image(); i.src = 'http://127.0.0.1:9/x'; document.body.append(i); }")
    page.ask(
        "document.body.append("
        "Object.assign(document.createElement('script'), {text: 'window.ran = 1'}))"
    )
    assert page.ask("window.ran === undefined") is True
    refused = json.dumps(page.complaints())
    assert "Content Security Policy" in refused and "img" in refused


def test_the_table_sorts_by_click_and_by_address(browser: Browser, address: str) -> None:
    page = browser.open(address)
    as_written = ["login", "pay", NASTY]
    assert page.ask(ROWS) == as_written
    click = "document.querySelector('#workflow-0 th[data-key=p99] button').click()"
    orders = []
    for _ in range(3):
        page.ask(click)
        orders.append(page.ask(ROWS))
    assert orders == [["pay", NASTY, "login"], ["login", NASTY, "pay"], as_written]
    linked = browser.open(f"{address}#sort=p99:desc")
    assert linked.ask(ROWS) == ["pay", NASTY, "login"]
    assert linked.ask("document.querySelector('#workflow-0 [aria-sort]').ariaSort") == "descending"


def test_a_click_on_a_step_shows_its_distribution_with_both_times(
    browser: Browser, address: str
) -> None:
    page = browser.open(f"{address}#log=1")
    page.ask("document.querySelector('#workflow-0 tr[data-row=pay] button').click()")
    assert plots(page)["distribution"]["step"] == "pay"
    assert page.ask("document.querySelectorAll('#workflow-0 .quantile').length") == 3
    assert page.ask("document.querySelector('#workflow-0 path.service').getAttribute('d')")
    assert page.ask("location.hash") == "#workflow=Shop&step=pay&log=1"
    assert plots(browser.open(f"{address}#step=pay"))["distribution"]["step"] == "pay"


def test_workflows_are_tabs_for_mouse_keyboard_and_address(browser: Browser, address: str) -> None:
    page = browser.open(address)
    assert page.ask(SHOWN) == ["Shop"]
    page.ask("document.querySelector('[role=tab]').focus()")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight", code="ArrowRight")
    assert page.ask(SHOWN) == ["Browse"]
    assert page.ask("document.activeElement.textContent") == "Browse"
    assert browser.open(f"{address}#workflow=Browse").ask(SHOWN) == ["Browse"]


def test_one_line_runs_through_all_plots_and_the_keys_move_it(
    browser: Browser, address: str
) -> None:
    page = browser.open(address)
    page.ask("document.querySelector('.frame').focus()")
    for _ in range(3):
        page.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight", code="ArrowRight")
    places = page.ask(
        "[...document.querySelectorAll('#workflow-0 .cursor')].map(c => c.getAttribute('x1'))"
    )
    assert len(places) == 5 and len(set(places)) == 1
    assert page.ask("document.querySelector('.at').value") == "00:02"
    assert page.ask("document.querySelector('.rate .key.achieved b').textContent") == "40.0/s"


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_gets_one_column_and_the_page_never_scrolls_sideways(
    browser: Browser, address: str, dark: bool
) -> None:
    page = browser.open(address, width=390, height=844, dark=dark)
    assert page.ask("document.documentElement.scrollWidth") == 390
    light = "rgb(255, 255, 255)"
    assert (page.ask("getComputedStyle(document.body).backgroundColor") == light) is not dark


def test_print_opens_every_section(browser: Browser, address: str) -> None:
    page = browser.open(address)
    printed = page.call("Page.printToPDF")
    assert base64.b64decode(printed["data"]).startswith(b"%PDF")
    page.ask("dispatchEvent(new Event('beforeprint'))")
    assert page.ask(SHOWN) == ["Shop", "Browse"]
    assert page.ask("[...document.querySelectorAll('details')].every(d => d.open)") is True
    page.ask("dispatchEvent(new Event('afterprint'))")
    assert page.ask(SHOWN) == ["Shop"]
    assert page.complaints() == []


def test_it_can_be_read_without_script(browser: Browser, address: str) -> None:
    page = browser.open(address, script=False)
    tree = json.dumps(page.call("DOMSnapshot.captureSnapshot", computedStyles=[])["strings"])
    for text in (
        "Plots need JavaScript",
        "Requests/sec: 40.0",
        "503 Service Unavailable",
        "iteration",
    ):
        assert text in tree
    assert page.ask("document.documentElement.dataset.ready === undefined") is True


def test_the_button_hands_out_the_document(browser: Browser, address: str, tmp_path: Path) -> None:
    browser.call(
        "Browser.setDownloadBehavior",
        {"behavior": "allow", "downloadPath": str(tmp_path), "eventsEnabled": True},
    )
    page = browser.open(address)
    page.ask("document.getElementById('download').click()")

    def is_done(event: dict[str, Any]) -> bool:
        return (
            event.get("method") == "Browser.downloadProgress"
            and event["params"]["state"] == "completed"
        )

    browser.wait_for(is_done)
    assert json.loads((tmp_path / "squall-01J9Z4.json").read_text()) == report_document()


@pytest.mark.parametrize("beyond_s", [0.3, 0.7])
def test_every_plot_ends_with_the_run(browser: Browser, tmp_path: Path, beyond_s: float) -> None:
    document = report_document()
    end_s = SECONDS - 1 + beyond_s
    document["elapsed_s"] = end_s
    for flow in document["workflows"]:
        flow["elapsed_s"] = flow["measured_s"] = end_s
    # The health of the last, partial second belongs to the one before.
    for values in (v for v in document["generator"]["windows"].values() if isinstance(v, list)):
        values.pop()
    path = tmp_path / "partial.html"
    path.write_text(render_html(document), encoding="utf-8")
    page = browser.open(path.as_uri())
    drawn = plots(page)
    assert [float(drawn[name]["until"]) for name in ("rate", "latency", "users", "cpu", "lag")] == [
        pytest.approx(end_s)
    ] * 5
