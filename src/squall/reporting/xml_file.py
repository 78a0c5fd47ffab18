"""The results as XML: everything of the document but histograms and windows.

One element per thing, numbers as attributes with the units of the document's keys.
Histograms and windows stay in JSON, where they can be read back.
"""

from __future__ import annotations

import re
from typing import Any, cast
from xml.etree import ElementTree as Xml

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LEFT_OUT = ("windows", "buckets")

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
"""What an entry of a list is called."""


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
    """XML has no way to write most control characters; a body may hold them."""
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
        # Long texts with line ends do not survive in attributes.
        Xml.SubElement(parent, name).text = clean(value)
    else:
        parent.set(name, _text(value))


def _add_object(parent: Xml.Element, name: str, value: dict[str, Any]) -> None:
    if name in ("tags", "statuses"):
        # Keys that people or servers chose need not be names of XML.
        group = Xml.SubElement(parent, name)
        for key, entry in value.items():
            Xml.SubElement(group, _ENTRY[name], {"name": clean(key), "value": _text(entry)})
        return
    element = Xml.SubElement(parent, name)
    for key, entry in value.items():
        _add(element, key, entry)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else clean(value)
