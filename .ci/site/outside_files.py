"""Hooks of mkdocs: files outside of `docs/` that pages link to become part of the site.

On GitHub a page links to `../examples/hello.py` or `../CONTRIBUTING.md`. A site has only what is
in its folder, so these files are added below `repository/`, and the links are changed.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"(\]\()([^)#\s:]+)(#[^)\s]*)?(\))")


def on_files(files: Files, config: Any) -> Files:
    """Adds what is linked to, and what the added pages link to."""
    pending = [Path(each.abs_src_path) for each in files.documentation_pages()]
    added: set[Path] = set()
    while pending:
        page = pending.pop()
        for link in LINK.finditer(page.read_text(encoding="utf-8")):
            target = Path(os.path.normpath(page.parent / link[2]))
            if target in added or target.is_relative_to(DOCS) or not target.is_file():
                continue
            added.add(target)
            files.append(_added(target, config))
            if target.suffix == ".md":
                pending.append(target)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    here = page.file.src_uri
    source = _source(here)

    def changed(link: re.Match[str]) -> str:
        target = Path(os.path.normpath(source.parent / link[2]))
        if not target.is_file():
            return link[0]
        address = posixpath.relpath(_place(target), posixpath.dirname(here) or ".")
        return f"{link[1]}{address}{link[3] or ''}{link[4]}"

    return LINK.sub(changed, markdown)


def _place(target: Path) -> str:
    """Where a file of the repository is in the site."""
    if target.is_relative_to(DOCS):
        return target.relative_to(DOCS).as_posix()
    place = f"repository/{target.relative_to(ROOT).as_posix()}"
    # Browsers show text instead of offering a download.
    return place if target.suffix in (".md", ".png") else f"{place}.txt"


def _source(place: str) -> Path:
    inside = place.removeprefix("repository/")
    return ROOT / inside if inside != place else DOCS / place


def _added(target: Path, config: Any) -> File:
    content: str | bytes = target.read_bytes()
    return File.generated(
        config, _place(target), content=content, inclusion=InclusionLevel.NOT_IN_NAV
    )
