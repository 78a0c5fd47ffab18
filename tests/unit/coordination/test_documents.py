"""The examples in the documents run as they stand, on the memory store."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from squall import coordination
from squall.coordination import (
    ConfigurationError,
    Coordinator,
    CoordinatorPlugin,
    Event,
    OptionValues,
    Timing,
)
from squall.coordination.errors import NotRunningError
from squall.coordination.metrics import metric_names
from squall.coordination.stores.kinds import KINDS
from tests.lab.programs import ROOT

DOCUMENTS = ROOT / "docs" / "coordination"
WRONG = """
from squall.coordination import Coordinator
from squall.coordination.events import CoordinatorDead, CoordinatorDemoted


def handle(event: CoordinatorDead) -> None: ...


async def main(member: Coordinator) -> None:
    member.on(CoordinatorDemoted, handle)
    async for event in member.events(CoordinatorDemoted):
        print(event.reasons)
    Coordinator("memory:", max_retry=3)
"""
REFERENCE = sorted(DOCUMENTS.glob("reference-*.md"))
PAGES = sorted(set(DOCUMENTS.glob("*.md")) - set(REFERENCE))


def examples(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)


EXAMPLES = [
    pytest.param(text, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, text in enumerate(examples(page))
]


@pytest.mark.parametrize("text", EXAMPLES)
def test_an_example_runs(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(text, "example", "exec", dont_inherit=True), {"__name__": "__main__"})
    assert capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_page_has_an_example_on_the_memory_store(page: Path) -> None:
    found = examples(page)
    assert found
    assert all("memory:" in text or "MemoryStore" in text for text in found)


def test_type_checkers_accept_the_examples(tmp_path: Path) -> None:
    """Events have the type that was asked for, options their own."""
    pyright = Path(sys.executable).with_name("pyright")
    if not pyright.exists():
        pytest.skip("pyright is not installed")
    for page in PAGES:
        for number, text in enumerate(examples(page)):
            (tmp_path / f"{page.stem}_{number}.py").write_text(text)
    (tmp_path / "wrong.py").write_text(WRONG)
    done = subprocess.run(
        [str(pyright), "--pythonpath", sys.executable, "--outputjson", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    assert {Path(each["file"]).name for each in found} == {"wrong.py"}, done.stdout
    lines = {each["range"]["start"]["line"] for each in found}
    assert {WRONG.splitlines()[line].strip() for line in lines} == {
        "member.on(CoordinatorDemoted, handle)",
        "print(event.reasons)",
        'Coordinator("memory:", max_retry=3)',
    }


def test_the_reference_pages_are_those_of_the_code() -> None:
    found = importlib.util.spec_from_file_location("reference", DOCUMENTS / "make_reference.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    made: dict[str, str] = module.pages()
    assert set(made) == {page.name for page in REFERENCE}
    for page in REFERENCE:
        assert page.read_text(encoding="utf-8") == made[page.name], "run make reference"


def test_the_reference_has_every_option_timing_event_metric_and_kind() -> None:
    shown = {page.stem: page.read_text(encoding="utf-8") for page in REFERENCE}
    for name in OptionValues.__annotations__:
        assert f"| `{name}` |" in shown["reference-options"], name
    for name in Timing.__struct_fields__:
        assert f"| `{name}` |" in shown["reference-timings"], name
    for name, kind in metric_names().items():
        assert kind == "series" or f"| `{name}` |" in shown["reference-metrics"], name
    for kind in KINDS.values():
        assert f"| `{kind.key}` |" in shown["reference-keys"], kind
    named = re.findall(r'name: ClassVar\[str\] = "([a-z:-]+)"', sources())
    assert len(named) > 30
    for name in named:
        row = next(line for line in shown["reference-events"].splitlines() if f"`{name}`" in line)
        assert row.split("|")[-2].strip(), f"{name} has no meaning"


def sources() -> str:
    folder = ROOT / "src/squall/coordination"
    return "\n".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.py"))


def test_a_plugin_emits_its_own_events_under_its_own_name() -> None:
    class Shown(Event, frozen=True, kw_only=True):
        name: ClassVar[str] = "plg:shop:shown"
        number: int

    class Foreign(Event, frozen=True, kw_only=True):
        name: ClassVar[str] = "coord:coordinator-promoted"

    class Shop(CoordinatorPlugin):
        name = "shop of books"

        async def on_become_coordinator(self) -> None:
            self.emit(Shown(number=3))

    async def main() -> None:
        shop = Shop()
        with pytest.raises(NotRunningError):
            shop.emit(Shown(number=1))
        member = Coordinator("memory:", shop, profile="fast", unsafe_timings=True)
        heard: list[Shown] = []
        await member.start()
        try:
            member.on(Shown, heard.append)
            await member.ensure_coordinator()
            while not heard:
                await asyncio.sleep(0.01)
            assert (heard[0].number, heard[0].observer_id) == (3, member.member_id)
            with pytest.raises(ConfigurationError, match="begins with 'plg:shop:'"):
                shop.emit(Foreign())
            for nameless in (Event, 5, None, ""):
                with pytest.raises(ConfigurationError, match=r"event is .*name of an event"):
                    member.on(nameless, heard.append)  # type: ignore[call-overload]
        finally:
            await member.stop()

    asyncio.run(main())


def test_every_public_class_has_a_docstring_of_its_own() -> None:
    classes = {name: getattr(coordination, name) for name in coordination.__all__}
    bare = [
        name
        for name, each in classes.items()
        if isinstance(each, type) and not vars(each).get("__doc__")
    ]
    assert bare == []


def test_the_reference_has_every_key_that_the_scripts_of_redis_make() -> None:
    scripts = (ROOT / "src/squall/coordination/stores/redis").glob("*.lua")
    text = "\n".join(path.read_text(encoding="utf-8") for path in scripts)
    made = set(re.findall(r"'(#[a-z]+):?'", text))
    shown = (DOCUMENTS / "reference-keys.md").read_text(encoding="utf-8")
    assert made and [name for name in sorted(made) if name not in shown] == []
