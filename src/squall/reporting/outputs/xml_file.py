"""Writes the results as XML: everything in the document except histograms and windows.

Each object is an element, its numbers are attributes with the units of the document's keys.
Histograms and windows are only in the JSON document, which Squall can read back.
"""

from __future__ import annotations

import re
from typing import Any, cast
from xml.etree import ElementTree as Xml

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LEFT_OUT = ("windows", "buckets")

# Element names for the entries of a list.
_ENTRY = {
    "workflows": "workflow",
    "steps": "step",
    "errors": "error",
    "hook_errors": "error",
    "outcomes": "outcome",
    "statuses": "status",
    "stages": "stage",
    "locations": "location",
    "checks": "check",
    "metrics": "metric",
    "thresholds": "threshold",
    "processes": "process",
    "cores": "core",
    "command": "word",
    "tags": "tag",
    "reasons": "reason",
    "notes": "note",
    "losses": "loss",
}


def render_xml(document: dict[str, Any]) -> bytes:
    root = Xml.Element("results", {"schema": document["schema"]})
    for name, value in document.items():
        if name != "schema":
            _add(root, name, value)
    return serialized(root)


def serialized(root: Xml.Element) -> bytes:
    Xml.indent(root)
    return Xml.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"


def clean(text: object) -> str:
    """Replaces control characters that XML cannot represent; a body may contain them."""
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", str(text))


def _add(parent: Xml.Element, name: str, value: Any) -> None:
    if name in _LEFT_OUT or name.endswith("histogram") or value is None:
        return
    if isinstance(value, dict):
        _add_object(parent, name, cast(dict[str, Any], value))
    elif isinstance(value, list):
        group = Xml.SubElement(parent, name)
        for entry in cast(list[Any], value):
            if isinstance(entry, dict):
                _add(group, _ENTRY.get(name, "entry"), entry)
            else:
                Xml.SubElement(group, _ENTRY.get(name, "entry")).text = _text(entry)
    elif name in ("traceback", "body", "request", "reason", "note"):
        # Attributes do not preserve line breaks.
        Xml.SubElement(parent, name).text = clean(value)
    else:
        parent.set(name, _text(value))


def _add_object(parent: Xml.Element, name: str, value: dict[str, Any]) -> None:
    if name in ("tags", "statuses"):
        # Keys chosen by users or servers need not be valid XML names.
        group = Xml.SubElement(parent, name)
        for key, entry in value.items():
            Xml.SubElement(group, _ENTRY[name], {"name": clean(key), "value": _text(entry)})
        return
    element = Xml.SubElement(parent, name)
    for key, entry in value.items():
        _add(element, key, entry)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else clean(value)
