"""The HTML report holds everything of its document, and nothing in it can break the page."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from squall.reporting.document.build import build_document, encode_document
from squall.reporting.page.markup import Markup, joined, tag
from squall.reporting.page.render import render_html
from squall.reporting.text.summary import render_summary
from squall.stats.verdict import Verdict

NASTY = "</script><script>alert(1)</script><img src=http://evil.example/x onerror=alert(2)><!--"
VOID = {"meta", "br", "hr", "rect", "line", "img", "link", "wbr"}
HAS_DATA = re.compile(r'<script type="application/json" id="document">(.*?)</script>', re.DOTALL)


class Reader(HTMLParser):
    """Elements, attributes and visible text; fails on an element closed out of turn."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for element, attributes in self.elements if element == name]


def read_back(outcome: Any) -> dict[str, Any]:
    return json.loads(encode_document(build_document(outcome)))


def replaced_texts(value: Any, text: str) -> Any:
    """The document with every text that a stranger may choose replaced."""
    chosen = {"name", "reason", "traceback", "body", "request", "shape", "location", "file", "note"}
    if isinstance(value, dict):
        return {
            key: text if key in chosen and isinstance(each, str) else replaced_texts(each, text)
            for key, each in value.items()
        }
    return [replaced_texts(each, text) for each in value] if isinstance(value, list) else value


def test_the_page_is_well_formed_and_closes_what_it_opens(
    make_outcome: Any, make_mixed: Any
) -> None:
    for outcome in (make_outcome(), make_mixed()):
        reader = Reader(render_html(read_back(outcome), "summary"))
        assert reader.open == []
        assert len(reader.all("main")) == 1


def test_verdict_thresholds_and_facts_stand_at_the_top(make_outcome: Any) -> None:
    text = Reader(render_html(read_back(make_outcome()))).text
    for part in (
        *("VALID", "2 of 3 thresholds failed", "shop.py", "15 Nov 2026 20:01 UTC", "2 cores"),
        *("pay.p(99) < 800ms", "912 ms", "no samples", "00:03", "team=shop"),
    ):
        assert part in text
    assert "errors < 100%" not in text, "a built-in that held is no news"


def test_a_threshold_has_a_bar_with_value_and_limit(make_outcome: Any) -> None:
    reader = Reader(render_html(read_back(make_outcome())))
    labels = [each["aria-label"] for each in reader.all("svg")]
    assert labels == ["912 ms, limit 800 ms", "3 %, limit 5 %"], "none without a value"
    limits = [float(each["x"] or 0) for each in reader.all("rect") if each["class"] == "limit"]
    values = [float(each["width"] or 0) for each in reader.all("rect") if each["class"] == "bad"]
    assert values[0] > limits[0], "a failed upper limit is passed by the bar"


def test_a_limit_in_another_unit_is_converted(make_outcome: Any) -> None:
    document = read_back(make_outcome())
    document["thresholds"][0]["expression"] = "pay.p(99) < 0.8s"
    assert "912 ms, limit 800 ms" in render_html(document)


def test_a_threshold_of_a_later_grammar_has_no_bar(make_outcome: Any) -> None:
    document = read_back(make_outcome())
    document["thresholds"][0]["expression"] = "pay is somehow fine"
    page = render_html(document)
    assert "pay is somehow fine" in page
    assert "limit 800 ms" not in page


def test_tables_hold_steps_errors_checks_and_metrics_without_script(make_outcome: Any) -> None:
    text = Reader(render_html(read_back(make_outcome()))).text
    for part in (
        *("login", "pay", "iteration", "503 Service Unavailable", "timeout after 5 s"),
        *("KeyError: 'id'", "shop.py:31 in pay", "Traceback (most recent call last)", "busy"),
        *("has_price", "97.9 %", "orders", "server_time", "squall run shop.py", "a1b2c3d"),
        *("open 50/s for 10s", "times from the planned start"),
    ):
        assert part in text, part


def test_numeric_cells_carry_the_value_to_sort_by(make_outcome: Any) -> None:
    reader = Reader(render_html(read_back(make_outcome())))
    keys = [each["data-key"] for each in reader.all("th") if "data-key" in each]
    assert keys == [
        *("name", "count", "rate", "failed"),
        *("p50", "p90", "p95", "p99", "p999", "max"),
    ]
    assert [each["data-row"] for each in reader.all("tr") if "data-row" in each] == [
        *("login", "pay", "iteration"),
    ]
    assert "5000.0" in [each.get("data-value") for each in reader.all("td")]


def test_the_summary_is_in_the_page_as_text(make_outcome: Any) -> None:
    outcome = make_outcome()
    summary = render_summary(outcome)
    assert summary in "".join(Reader(render_html(read_back(outcome), summary)).texts)
    assert "Summary as text" not in render_html(read_back(outcome))


def test_every_workflow_that_measured_or_failed_has_a_section(make_mixed: Any) -> None:
    reader = Reader(render_html(read_back(make_mixed())))
    shown = [each.get("data-workflow") for each in reader.all("section")]
    assert [name for name in shown if name] == ["Browse", "Buy", "Audit"]
    for part in ("INVALID", "process 0 died", "partial", "killed by signal 9", "Setup"):
        assert part in reader.text
    assert "Browse.home blocked 840 ms at mix.py:14 (time.sleep)" in reader.text


def test_the_document_is_inlined_once_and_whole(make_outcome: Any) -> None:
    document = read_back(make_outcome())
    page = render_html(document)
    found = HAS_DATA.findall(page)
    assert len(found) == 1
    assert json.loads(found[0]) == document


def test_texts_of_strangers_are_shown_and_never_parsed(make_outcome: Any) -> None:
    document = replaced_texts(read_back(make_outcome()), NASTY)
    page = render_html(document, NASTY)
    reader = Reader(page)
    assert reader.open == []
    assert reader.all("img") == []
    assert len(reader.all("script")) == 3
    assert NASTY in reader.text
    assert json.loads(HAS_DATA.findall(page)[0]) == document


def test_placeholders_in_the_document_stay_what_they_are(make_outcome: Any) -> None:
    document = replaced_texts(read_back(make_outcome()), "{{script}}{{nothing}}")
    assert "{{script}}{{nothing}}" in Reader(render_html(document)).text


def test_a_body_that_is_no_unicode_does_not_lose_the_report(make_outcome: Any) -> None:
    document = replaced_texts(read_back(make_outcome()), "half \udc80")
    page = render_html(document)
    assert page.encode("utf-8", "strict")
    assert json.loads(HAS_DATA.findall(page)[0])["run"]["file"] == "half \udc80"


def test_the_policy_allows_the_own_style_and_script_only(make_outcome: Any) -> None:
    page = render_html(read_back(make_outcome()))
    reader = Reader(page)
    policy = next(
        each["content"] or ""
        for each in reader.all("meta")
        if each.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy and "http" not in policy
    for kind, element in (("style-src", "style"), ("script-src", "script")):
        source = re.findall(rf"<{element}>(.*?)</{element}>", page, re.DOTALL)
        assert len(source) == 1
        digest = base64.b64encode(hashlib.sha256(source[0].encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}'" in policy


def test_nothing_in_the_page_points_elsewhere_or_carries_inline_code(make_outcome: Any) -> None:
    page = render_html(read_back(make_outcome()), "summary")
    for element, attributes in Reader(page).elements:
        assert element not in ("link", "img", "iframe", "object", "embed", "base")
        for name in attributes:
            assert name not in ("src", "href", "style", "srcset", "action"), (element, name)
            assert not name.startswith("on"), (element, name)


def test_the_page_without_data_is_small(make_outcome: Any) -> None:
    document = read_back(make_outcome())
    rest = len(render_html(document).encode()) - len(encode_document(document))
    assert rest < 300_000


@pytest.mark.parametrize(
    ("reason", "offended"),
    [
        ("Shop made 238 of 3750 starts late (6.3 %, at most 87 ms); lower the rate", "starts"),
        ("Shop dropped 2 of 10 planned starts (20 %); raise max_vus", "starts"),
        ("Shop made 2 of 10 planned starts (20 %), 8 dropped; raise max_vus", "starts"),
        ("generator at 98 % CPU for 212 of 300 s; start again with fewer VUs", "cpu"),
        ("loop lag p99 47 ms at 90 % CPU: the generator was late to see answers", "lag"),
        ("Shop.pay blocked the loop for 12 % of the run at shop.py:3", "lag"),
    ],
)
def test_only_what_the_verdict_took_offence_at_is_marked(
    make_outcome: Any, reason: str, offended: str
) -> None:
    outcome = make_outcome(verdict=Verdict(state="DEGRADED", reasons=[reason]))
    page = render_html(read_back(outcome))
    found = re.findall(r'id="judgement">(.*?)</script>', page)
    marked = json.loads(found[0])["offended"]
    assert [name for name, is_marked in marked.items() if is_marked] == [offended]


def test_a_run_that_measured_nothing_still_has_a_page(make_outcome: Any) -> None:
    document = read_back(make_outcome())
    for workflow in document["workflows"]:
        for row in (*workflow["steps"], workflow["iteration"]):
            row |= {"count": 0, "failed": 0, "rps": 0.0, "latency_ms": None, "errors": []}
    document |= {"thresholds": [], "checks": [], "metrics": [], "status": "interrupted"}
    document["generator"]["processes"] = [{"index": 0, "pid": 1, "died": "at once"}]
    text = Reader(render_html(document)).text
    assert "interrupted" in text and "ended: at once" in text and " - " in text


def test_markup_escapes_all_that_is_not_markup() -> None:
    made = tag(
        "td", "<b>", [1, None, Markup("<i></i>")], class_="a", data_x='"', hidden=True, id=None
    )
    assert made == '<td class="a" data-x="&quot;" hidden>&lt;b&gt;1<i></i></td>'
    assert joined("a & b", ("<",)) == "a &amp; b&lt;"
    assert tag("rect", x=1) == '<rect x="1"/>'


def test_the_page_has_a_section_by_datacenter(in_two_datacenters: Any) -> None:
    page = render_html(build_document(in_two_datacenters))
    texts = " ".join(Reader(page).texts)
    for shown in ("Datacenters", "60 %", "lost", "no manager answers", "1.5 s later"):
        assert shown in texts
    assert "by datacenter" in page, "the script draws a line for each"
