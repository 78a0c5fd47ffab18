"""The files that the documents print run as they are printed, and their other code is code.

Only the address of the server and the amount of load are replaced, by flags.
"""

from __future__ import annotations

import re
import textwrap

import pytest

from tests.lab.documents import DOCS, Block, python_blocks
from tests.lab.programs import ROOT
from tests.runs.lab.command import CommandLab

ADDRESS = "http://127.0.0.1:8080"
PRINTED_ONCE = """
import asyncio
from dataclasses import dataclass
from custom_protocol import EchoClient
from squall import *
"""
RUN = [ROOT / "README.md", *(DOCS / f"{name}.md" for name in ("tutorial", "recipes", "test-types"))]
RUN += sorted(DOCS.glob("from-*.md"))
"""Pages whose whole files are run. The coordination library's pages have a test of their own."""
LITTLE = ("-u", "2", "-i", "6")
SHORTER = {
    "Two kinds of users at once": ("-d", "500ms"),
    # The rare step has a tenth of the weight: 200 iterations without it never happen.
    "Mix several kinds of visits": ("-u", "2", "-i", "200"),
}
"""Load for files that need another one, by the heading above them."""
WORKFLOW = re.compile(r"^class \w+\((Workflow|_\w+)\)", re.MULTILINE)


def is_whole(block: Block) -> bool:
    return bool(WORKFLOW.search(block.text)) and "from squall import" in block.text


def as_parameters(blocks: list[Block]) -> list[object]:
    return [pytest.param(block, id=block.id) for block in blocks]


ALL = [
    block
    for page in [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
    for block in python_blocks(page)
]
WHOLE = [block for page in RUN for block in python_blocks(page) if is_whole(block)]
LOADED = [block for block in ALL if WORKFLOW.search(block.text) and block not in WHOLE]


def heading_above(block: Block) -> str:
    lines = block.page.read_text(encoding="utf-8").splitlines()[: block.line]
    headings = [line for line in lines if line.startswith("#")]
    return headings[-1].lstrip("# ")


def write(command: CommandLab, block: Block) -> str:
    """The documents show the import line once; a class of an example stands for itself."""
    imports = "" if "from squall import" in block.text else PRINTED_ONCE
    (command.folder / "printed.py").write_text(imports + block.text, encoding="utf-8")
    return "printed.py"


@pytest.mark.parametrize("block", as_parameters(ALL))
def test_python_in_the_documents_is_python(block: Block) -> None:
    compile(textwrap.dedent(block.text), block.id, "exec")


@pytest.mark.parametrize("block", as_parameters(LOADED))
def test_a_workflow_in_the_documents_loads(examples: CommandLab, block: Block) -> None:
    ended = examples.squall("explain", write(examples, block), "--host", ADDRESS)
    assert ended.code == 0, ended.err
    assert "no request was sent" in ended.out


@pytest.mark.parametrize("block", as_parameters(WHOLE))
@pytest.mark.usefixtures("no_start_is_dropped")
def test_a_whole_file_in_the_documents_runs(examples: CommandLab, block: Block) -> None:
    """With the thresholds of the page: only limits on times are widened, because the machine of
    the tests may stand still for a moment."""
    patient = re.sub(r"< \d+m?s\b", "< 60s", block.text)
    name = write(examples, block._replace(text=patient))
    load = SHORTER.get(heading_above(block), LITTLE)
    examples.passes(name, "--host", examples.target.url, *load)


def test_the_recipes_are_twenty() -> None:
    assert len([block for block in WHOLE if block.page.name == "recipes.md"]) == 20
