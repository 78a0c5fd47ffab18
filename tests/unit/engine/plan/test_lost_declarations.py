"""Declarations that Python accepts and no run would see are refused, or run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.engine.lab.program_files import load, mistakes

BASE = """
class _Base(Workflow):
    host = "http://127.0.0.1:1"

    @step()
    async def home(self, url: URL = "/") -> HTTPResponse: ...

    @check("home")
    def good(self, home: HTTPResponse) -> bool: ...

    @metric("home")
    def size(self, home: HTTPResponse) -> float: ...

    @action(at="start")
    async def hello(self) -> None: ...

    @state("Later")
    def given(self) -> Provide[int]: ...

    user = Feed([1])
    link = Resource(dict)
    sold = Counter()

@depends("Shop")
class Later(Workflow):
    @step()
    async def last(self) -> None: ...
"""
KINDS = {
    "home": "step",
    "good": "check",
    "size": "metric",
    "hello": "action",
    "given": "state hook",
    "user": "feed",
    "link": "resource",
    "sold": "metric",
}
HOOKS = ["home", "good", "size", "hello", "given"]
SHOP = """
class Shop(_Base):
    @step()
    async def first(self) -> None: ...

"""
SHOP_LINE = len((BASE + SHOP).lstrip().splitlines())


def shop(body: str) -> str:
    return BASE + SHOP + "".join(f"    {line}\n" for line in body.splitlines())


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("value", ["5", "[1]", "print"])
def test_a_value_that_hides_a_declaration_of_a_base(name: str, value: str, tmp_path: Path) -> None:
    found = mistakes(tmp_path, shop(f"{name} = {value}"))
    expected = f"Shop.{name}: hides the {KINDS[name]} of _Base and is none itself; "
    assert any(re.match(rf"flow.*:\d+  {re.escape(expected)}", line) for line in found), found
    assert any(f"with {name} = None" in line for line in found)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("word", ["def", "async def"])
def test_a_method_that_hides_a_declaration_of_a_base(name: str, word: str, tmp_path: Path) -> None:
    found = mistakes(tmp_path, shop(f"{word} {name}(self): ..."))
    hint = "rename it" if KINDS[name] in ("feed", "resource") else "decorate it too"
    expected = f"Shop.{name}: hides the {KINDS[name]} of _Base and is none itself; {hint}, "
    (line,) = [line for line in found if "hides the" in line]
    assert expected in line
    assert re.match(rf"flow.*:{SHOP_LINE + 2}  ", line), line


@pytest.mark.parametrize("name", KINDS)
def test_a_declaration_that_hides_one_of_another_kind(name: str, tmp_path: Path) -> None:
    other = "feed" if KINDS[name] != "feed" else "resource"
    made = {"feed": "Feed([1])", "resource": "Resource(dict)"}[other]
    found = mistakes(tmp_path, shop(f"{name} = {made}"))
    expected = f"Shop.{name}: hides the {KINDS[name]} of _Base and is a {other}; rename it, "
    assert any(expected in line for line in found), found


@pytest.mark.parametrize("name", [name for name in KINDS if name != "home"])
def test_none_leaves_a_declaration_of_a_base_out(name: str, tmp_path: Path) -> None:
    plan = load(tmp_path, shop(f"{name} = None")).plans["Shop"]
    hooks = [*plan.hooks(), *(hook for hook, _ in plan.consumers)]
    assert name not in [hook.name for hook in hooks]
    assert name not in {**plan.feeds, **plan.resources, **plan.metrics}


def test_the_same_kind_overrides(tmp_path: Path) -> None:
    body = '@check("home")\ndef good(self, home: HTTPResponse) -> bool: ...\nsold = Counter()'
    plan = load(tmp_path, shop(body)).plans["Shop"]
    assert [hook.name for hook in plan.checks] == ["good"]
    assert not any("hides" in line for line in plan.warnings)


def test_a_base_that_hides_a_hook_of_an_unrelated_base_is_said(tmp_path: Path) -> None:
    other = """
class _Other(Workflow):
    @check("home")
    def good(self, home: HTTPResponse) -> bool: ...

class Shop(_Other, _Base): ...
"""
    warnings = load(tmp_path, BASE + other).plans["Shop"].warnings
    assert [line.partition("  ")[2] for line in warnings] == [
        "Shop: the check good of _Other hides that of _Base"
    ]


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_outside_a_class(name: str, tmp_path: Path) -> None:
    decorators = {
        "home": ("@step()", "async def extra(self) -> None: ..."),
        "good": ('@check("home")', "def extra(self): ..."),
        "size": ('@metric("home")', "def extra(self): ..."),
        "hello": ('@action(at="start")', "async def extra(self): ..."),
        "given": ('@state("Later")', "def extra(self) -> Provide[int]: ..."),
    }
    decorator, method = decorators[name]
    (line,) = mistakes(tmp_path, f"{shop('')}\n{decorator}\n{method}")
    assert re.match(rf"flow.*:\d+  extra: this {KINDS[name]} stands outside a class", line), line


@pytest.mark.parametrize("decorator", ["trace", "functools.partial(functools.partial, print)"])
def test_a_decorator_above_a_hook(decorator: str, tmp_path: Path) -> None:
    header = "import functools\ndef trace(hook):\n    return lambda *given: hook(*given)\n"
    body = f'@{decorator}\n@check("home")\ndef extra(self, home: HTTPResponse) -> bool: ...'
    (line,) = mistakes(tmp_path, header + shop(body))
    assert f"Shop.extra: @{decorator} hides the check below it" in line
    assert f"write @{decorator} below @check(...)" in line


def test_a_decorator_without_its_at(tmp_path: Path) -> None:
    (line,) = mistakes(tmp_path, shop('check("home")\ndef extra(self, home): ...'))
    assert "Shop: check(...) stands alone and makes no check" in line


def test_a_workflow_inside_a_class(tmp_path: Path) -> None:
    body = "class Inner(Workflow):\n    @step()\n    async def act(self) -> None: ..."
    (line,) = mistakes(tmp_path, shop(body))
    assert "Shop: the workflow Inner stands in another class and never runs" in line


def test_a_hook_that_is_set_after_the_class_runs(tmp_path: Path) -> None:
    text = shop("") + "async def late(self) -> None: ...\nShop.extra = step('home')(late)\n"
    assert [step.name for step in load(tmp_path, text).plans["Shop"].steps][-1] == "extra"


def test_dependencies_of_a_base_are_kept(tmp_path: Path) -> None:
    text = """
class A(Workflow):
    @step()
    async def one(self) -> None: ...
class B(A): ...
@depends("A", when="always")
class _Base(A): ...
@depends("B")
class Shop(_Base): ...
class Free(_Base): ...
"""
    plans = load(tmp_path, text).plans
    assert (plans["Shop"].depends, plans["Shop"].always) == (["B", "A"], True)
    assert plans["Free"].depends == ["A"]


def test_a_mistake_in_an_imported_base_names_its_file(tmp_path: Path) -> None:
    (tmp_path / "shared_base.py").write_text(
        "from squall import HTTPResponse, URL, Workflow, step\n"
        "class Shared(Workflow):\n"
        "    @step()\n"
        "    async def home(self, url: URL) -> HTTPResponse: ...\n",
        encoding="utf-8",
    )
    (line,) = mistakes(tmp_path, "from shared_base import Shared\nclass Shop(Shared): ...\n")
    assert line.startswith("shared_base.py:4  Shop.home: ")
