"""The documents as text: their pages, code blocks, headings and links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.lab.programs import ROOT

DOCS = ROOT / "docs"
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^(#+) (.+)$", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


class Block(NamedTuple):
    page: Path
    line: int
    """Of its first line, from 1."""
    language: str
    text: str

    @property
    def id(self) -> str:
        return f"{self.page.name}:{self.line}"


def pages() -> list[Path]:
    """Every page that a reader may meet."""
    loose = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    return [*loose, *sorted(DOCS.rglob("*.md")), *sorted((ROOT / "examples").glob("*.md"))]


def fenced(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 2
        indent = len(match[1])
        body = "".join(each[indent:] for each in match[3].splitlines(keepends=True))
        yield Block(page, line, match[2], body)


def python_blocks(page: Path) -> list[Block]:
    return [block for block in fenced(page) if block.language == "python"]


def command_lines(page: Path) -> Iterator[tuple[int, str, bool]]:
    """Lines of code that a reader could type, with their number: indented ones and those of blocks
    after a prompt (`$ squall run`). A line that ends with a backslash continues. Also code inside
    a sentence, with False: it may be the beginning of a command only."""
    text = page.read_text(encoding="utf-8")
    for block in fenced(page):
        if block.language in ("", "sh", "text"):
            joined = re.sub(r" *\\\n *", " ", block.text)
            for line in joined.splitlines():
                prompt = re.match(r"[\w@-]*\$ +", line)
                if prompt:
                    yield block.line, line[prompt.end() :], True
    without = _FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)
    for number, line in enumerate(without.splitlines(), 1):
        if line.startswith("    ") and not line.lstrip().startswith(("-", "*", "|")):
            yield number, line.strip(), True
        else:
            yield from ((number, each, False) for each in re.findall(r"`([^`]+)`", line))


def anchors(page: Path) -> set[str]:
    """The anchors of the headings, as GitHub and the site make them."""
    without = _FENCE.sub("", page.read_text(encoding="utf-8"))
    found: set[str] = set()
    for _, heading in _HEADING.findall(without):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        name, copies = slug, 0
        while name in found:
            copies += 1
            name = f"{slug}-{copies}"
        found.add(name)
    return found


def links(page: Path) -> Iterator[tuple[int, str]]:
    """Addresses of links and pictures outside of code, with their line."""
    text = page.read_text(encoding="utf-8")
    without = _FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)
    without = re.sub(r"`[^`\n]*`", lambda match: " " * len(match[0]), without)
    for match in _LINK.finditer(without):
        yield without.count("\n", 0, match.start()) + 1, match[1] or match[2]
