"""Renders a results document as one HTML file that opens offline.

Tables are rendered here and readable without JavaScript; the page draws plots from the document,
which is inlined once. The content security policy allows only the hashes of the one style and the
one script, so the page fetches nothing and foreign text cannot run as code. This module never
reads the run itself and never writes a file.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from squall.reporting.page.datacenters import datacenters_section
from squall.reporting.page.head import head_section, page_title, thresholds_section
from squall.reporting.page.last_sections import closing_sections
from squall.reporting.page.markup import Markup, joined, tag
from squall.reporting.page.workflow import shown_workflows, workflow_section
from squall.stats.verdict_settings import VerdictSettings

_PAGE = Path(__file__).parent
_SCRIPTS = ("points.js", "plots.js", "views.js", "distribution.js", "report.js")
# Words that identify a reason of the verdict: the document holds reasons as sentences only.
_OFFENCES = {
    "starts": ("planned starts", "starts late"),
    "cpu": (" CPU for ",),
    "lag": ("loop lag", "blocked the loop"),
}
_PLACE = re.compile(r"\{\{(\w+)\}\}")


def render_html(document: dict[str, Any], summary: str = "") -> str:
    """The whole page. `summary` is the text printed at the end of the run, if there is one."""
    style, script = _asset("style.css"), _script()
    shown = shown_workflows(document)
    sections = joined(
        head_section(document, [workflow["name"] for workflow in shown]),
        thresholds_section(document),
        tag(
            "div",
            [workflow_section(document, workflow, index) for index, workflow in enumerate(shown)],
            id="workflows",
        ),
        datacenters_section(document),
        closing_sections(document, summary),
    )
    parts = {
        "policy": _policy(style, script),
        "title": joined(page_title(document)),
        "style": style,
        "sections": sections,
        "judgement": _inline_json(_judgement(document)),
        "document": _inline_json(document),
        "script": script,
    }
    # One pass: text inside a part is not expanded again, even if it contains "{{script}}".
    page = _PLACE.sub(lambda place: parts[place[1]], _asset("template.html"))
    # A broken body may contain lone surrogates; the file must be written anyway.
    return page.encode("utf-8", "replace").decode()


# More late starts than this in a window can raise its p99.
LATE_SHARE = 0.01


def _judgement(document: dict[str, Any]) -> dict[str, Any]:
    """The limits that the verdict found exceeded; windows beyond them are marked red."""
    settings = VerdictSettings()
    reasons = document["verdict"]["reasons"]
    offended = {
        what: any(sign in reason for reason in reasons for sign in signs)
        for what, signs in _OFFENCES.items()
    }
    limits = {
        "cpu": settings.saturated_cpu,
        "saturated_lag_ms": settings.saturated_lag_s * 1e3,
        "lag_ms": settings.lag_degraded_s * 1e3,
        "late_share": LATE_SHARE,
    }
    return {"offended": offended, "limits": limits}


def _policy(style: str, script: str) -> str:
    return (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _inline_json(value: Any) -> Markup:
    """JSON that cannot end its script element or open a comment in it.

    The standard encoder is the fallback for texts that are not valid Unicode, such as lone
    surrogates of a broken body.
    """
    try:
        text = msgspec.json.encode(value).decode()
    except (UnicodeEncodeError, ValueError):
        text = json.dumps(value, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


@cache
def _script() -> str:
    """Joins all scripts in one function scope, so that they share names only with each other."""
    parts = "".join(map(_asset, _SCRIPTS))
    return f'"use strict";\n(() => {{\n{parts}}})();\n'


@cache
def _asset(name: str) -> str:
    return (_PAGE / name).read_text(encoding="utf-8")
