"""Reading one workflow class: hooks, order, sources of arguments, and every mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from squall.engine.plan.workflow_plan import slots_of
from tests.unit.engine.lab.program_files import load, mistakes

MISTAKES = {
    "no return type": (
        """
        class Shop(Workflow):
            @step()
            async def home(self, url: URL = "http://h/"):
                return await self.client.http.get(url)
        """,
        'flow.py:4  Shop.home needs a return type: "-> HTTPResponse" measures the request, '
        '"-> None" measures nothing',
    ),
    "misspelt step in an argument": (
        """
        class Shop(Workflow):
            @step()
            async def cart(self) -> dict: ...
            @then()
            async def pay(self, crat: dict) -> None: ...
        """,
        'flow.py:6  Shop.pay: no step "crat"; did you mean "cart"?',
    ),
    "misspelt step in a decorator": (
        """
        class Shop(Workflow):
            @step()
            async def cart(self) -> None: ...
            @step("crat")
            async def pay(self) -> None: ...
        """,
        'flow.py:6  Shop.pay: no step "crat"; did you mean "cart"?',
    ),
    "a step that is not waited for": (
        """
        class Shop(Workflow):
            @step()
            async def cart(self) -> dict: ...
            @step()
            async def pay(self, cart: dict) -> None: ...
        """,
        'flow.py:6  Shop.pay: no value for argument cart: "cart" is not among the steps it '
        'waits for; write @step("cart")',
    ),
    "an argument of another type": (
        """
        class Shop(Workflow):
            @step()
            async def cart(self) -> dict: ...
            @then()
            async def pay(self, cart: HTTPResponse) -> None: ...
        """,
        "flow.py:6  Shop.pay: argument cart is declared as HTTPResponse, but cart returns dict",
    ),
    "a prepared argument without a value": (
        """
        class Shop(Workflow):
            @step()
            async def cart(self, url: URL) -> None: ...
        """,
        "flow.py:4  Shop.cart: argument url needs a default value to prepare",
    ),
    "a reserved name": (
        """
        class Shop(Workflow):
            @step()
            async def check(self) -> None: ...
        """,
        'flow.py:4  Shop.check: "check" is reserved; choose another name',
    ),
    "then without a step above": (
        """
        class Shop(Workflow):
            @then()
            async def pay(self) -> None: ...
        """,
        "flow.py:4  Shop.pay: @then() needs a step above it",
    ),
    "a step that is not async": (
        """
        class Shop(Workflow):
            @step()
            def pay(self) -> None: ...
        """,
        "flow.py:4  Shop.pay: a step must be an async def",
    ),
    "a static step": (
        """
        class Shop(Workflow):
            @step()
            @staticmethod
            async def pay() -> None: ...
        """,
        "Shop.pay: @step above @staticmethod; a hook is a plain method",
    ),
    "a weight of nothing": (
        """
        class Shop(Workflow):
            @step(weight=0)
            async def pay(self) -> None: ...
        """,
        "flow.py:4  Shop.pay: weight 0 must be at least 1",
    ),
    "an expectation that is none": (
        """
        class Shop(Workflow):
            @step(expect="2yy")
            async def pay(self) -> None: ...
        """,
        "flow.py:4  Shop.pay: ",
    ),
    "a timeout that is none": (
        """
        class Shop(Workflow):
            @step(timeout="soon")
            async def pay(self) -> None: ...
        """,
        "flow.py:4  Shop.pay: timeout",
    ),
    "an annotation of something unknown": (
        """
        class Shop(Workflow):
            @step()
            async def pay(self, cart: "Nowhere" = None) -> None: ...
        """,
        "flow.py:4  Shop.pay: annotation cannot be resolved: name 'Nowhere' is not defined",
    ),
    "steps in a circle": (
        """
        class Shop(Workflow):
            @step("b")
            async def a(self) -> None: ...
            @step("a")
            async def b(self) -> None: ...
        """,
        "flow.py:2  Shop: steps wait for each other: a -> b -> a; remove one of these",
    ),
    "a step after itself": (
        """
        class Shop(Workflow):
            @step("a")
            async def a(self) -> None: ...
        """,
        'flow.py:2  Shop: step "a" depends on itself',
    ),
    "no steps": (
        """
        class Shop(Workflow):
            vus = 3
        """,
        "flow.py:2  Shop: has no steps; decorate an async method with @step()",
    ),
    "an action at an odd time": (
        """
        class Shop(Workflow):
            @action(at="noon")
            async def eat(self) -> None: ...
        """,
        'flow.py:4  Shop.eat: at "noon" is not known; write "start" or "end"',
    ),
    "a state hook that says nothing": (
        """
        class Shop(Workflow):
            @step()
            async def a(self) -> None: ...
            @state("Shop")
            def b(self) -> str: ...
        """,
        "flow.py:6  Shop.b: a state hook returns Provide[...] or Use[...]",
    ),
    "a check of an unknown step": (
        """
        class Shop(Workflow):
            @step()
            async def a(self) -> None: ...
            @check("aa")
            def b(self) -> bool: ...
        """,
        'flow.py:6  Shop.b: no step "aa"',
    ),
    "a dependency at an odd time": (
        """
        class Setup(Workflow):
            @step()
            async def a(self) -> None: ...
        @depends("Setup", when="never")
        class Shop(Workflow):
            @step()
            async def b(self) -> None: ...
        """,
        'flow.py:6  Shop: when "never" is not known; write "success" or "always"',
    ),
    "a positional argument": (
        """
        class Shop(Workflow):
            @step()
            async def a(self, url: URL = "http://h/", /) -> None: ...
        """,
        "flow.py:4  Shop.a: argument url is positional-only",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_with_its_place(tmp_path: Path, mistake: str) -> None:
    text, expected = MISTAKES[mistake]
    found = mistakes(tmp_path, text)
    assert any(expected in line for line in found), found


def test_all_mistakes_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    found = mistakes(
        tmp_path,
        """
        class Shop(Workflow):
            priority = "urgent"
            connections = "some"
            rate = "5/s"
            iterations = 3
            rows = Feed("nowhere.csv")

            @step()
            async def zero(self, url: URL = "http://h/") -> HTTPResponse: ...

            @step()
            async def one(self, url: URL = "/relative"): ...

            @step("two")
            async def three(self, four: str) -> None: ...

        class Other(Workflow):
            @step()
            def five(self) -> None: ...
        """,
    )
    for part in (
        'priority "urgent"',
        'connections "some" is not known',
        "rate and iterations contradict",
        "Shop.rows: feed rows: no file nowhere.csv",
        "Shop.one needs a return type",
        "url '/relative' is relative and Shop has no host",
        'Shop.three: no step "two"',
        'Shop.three: no step "four"',
        "Other.five: a step must be an async def",
    ):
        assert any(part in line for line in found), (part, found)
    assert len(found) == len(set(found))


def test_postponed_annotations_are_read(tmp_path: Path) -> None:
    header = "from __future__ import annotations; from squall import *\n"
    program = load(
        tmp_path,
        """
        class Shop(Workflow):
            @step()
            async def home(self, url: URL = "http://127.0.0.1:1/") -> HTTPResponse | None:
                return await self.client.http.get(url)

            @then()
            async def next(self, home: HTTPResponse | None = None) -> dict[str, int]: ...
        """,
        header=header,
    )
    plan = program.plans["Shop"]
    assert plan.is_test
    home, following = plan.steps
    assert home.protocol == "http"
    assert home.parameters[0].source == "prepared"
    assert following.protocol == ""
    assert following.parameters[0].source == "step"


@pytest.mark.parametrize(
    "annotation",
    ["", ": Any", ": object", ": HTTPResponse | None", ": Shape", ": Row", ": 'HTTPResponse'"],
)
def test_annotations_that_do_not_contradict_are_accepted(tmp_path: Path, annotation: str) -> None:
    program = load(
        tmp_path,
        f"""
        from typing import Any, Protocol, TypedDict
        class Shape(Protocol):
            status_code: int
        class Row(TypedDict):
            id: int
        class Shop(Workflow):
            @step()
            async def home(self, url: URL = "http://127.0.0.1:1/") -> HTTPResponse:
                return await self.client.http.get(url)
            @then()
            async def use(self, home{annotation}) -> None: ...
        """,
    )
    assert program.plans["Shop"].step("use").parameters[0].source == "step"


def test_arguments_come_from_the_nearest_source(tmp_path: Path) -> None:
    program = load(
        tmp_path,
        """
        class Setup(Workflow):
            @step()
            async def tenant(self) -> str: ...

        @depends("Setup")
        class Shop(Workflow):
            @action()
            async def token(self) -> str:
                self.context["written"] = 1
            @step()
            async def login(self) -> dict: ...
            @then()
            async def cart(self) -> dict: ...
            @then()
            async def pay(
                self, login: dict, cart: dict, token: str, tenant: str, written: int,
                url: URL = "http://127.0.0.1:1/", extra: int = 5, *, more: int = 6,
            ) -> None: ...
        """,
    )
    sources = {p.name: p.source for p in program.plans["Shop"].step("pay").parameters}
    assert sources == {
        "login": "step",
        "cart": "step",
        "token": "context",
        "tenant": "context",
        "written": "context",
        "url": "prepared",
        "extra": "context",
        "more": "context",
    }


def test_layers_ancestors_and_shape_follow_the_longest_path(tmp_path: Path) -> None:
    program = load(
        tmp_path,
        """
        class Shop(Workflow):
            @step()
            async def login(self) -> None: ...
            @step("login")
            async def cart(self) -> None: ...
            @step("login", weight=7)
            async def browse(self) -> None: ...
            @step("login", weight=3)
            async def buy(self) -> None: ...
            @step("cart", "login")
            async def pay(self) -> None: ...
        """,
    )
    plan = program.plans["Shop"]
    assert [[step.name for step in layer] for layer in plan.layers] == [
        ["login"],
        ["cart", "browse", "buy"],
        ["pay"],
    ]
    assert plan.step("pay").ancestors == {"cart", "login"}
    manifest = program.manifest.workflow("Shop")
    assert manifest.shape == "login -> (cart | browse 7 | buy 3) -> pay"
    slots = slots_of(plan.layers[1])
    assert [[step.name for step in slot] for slot in slots] == [["cart"], ["browse", "buy"]]
    assert manifest.connections_per_vu == 2


def test_then_follows_the_step_above_it_through_inheritance(tmp_path: Path) -> None:
    program = load(
        tmp_path,
        """
        class _Base(Workflow):
            @step()
            async def one(self) -> None: ...
            @then()
            async def two(self) -> None: ...
        class Shop(_Base):
            @then()
            async def three(self) -> None: ...
            @step()
            async def one(self) -> None: ...
        """,
    )
    plan = program.plans["Shop"]
    assert [(step.name, step.after) for step in plan.steps] == [
        ("one", []),
        ("two", ["one"]),
        ("three", ["two"]),
    ]
    assert plan.step("one").function.__qualname__ == "Shop.one"


def test_shapes_that_surprise_are_warned_about(tmp_path: Path) -> None:
    program = load(
        tmp_path,
        """
        class Shop(Workflow):
            @step()
            async def one(self) -> None: ...
            @step()
            async def two(self) -> None: ...
            @step("one", weight=1)
            async def left(self) -> None: ...
            @step("one", weight=1)
            async def right(self) -> None: ...
            @step("left", "right")
            async def both(self) -> None: ...
            @state()
            def nobody(self) -> Provide[int]: ...
        """,
    )
    warnings = program.manifest.workflow("Shop").warnings
    assert any("one, two start at the same time; write @then()" in text for text in warnings)
    assert any("Shop.both never runs" in text for text in warnings)
    assert any("names no workflow" in text for text in warnings)


ATTRIBUTES = """
class _Base(Workflow):
    priority = "urgent"

@depends()
class Shop(_Base):
    duration = "9s"

    rows: object = Feed("nowhere.csv")
    timeout = "soon"
    vu = 3

    @step()
    async def a(self) -> None: ...

    tresholds = [
        "a.p(99) < 1s",
    ]
"""


def test_an_attribute_is_reported_at_its_own_line(tmp_path: Path) -> None:
    found = mistakes(tmp_path, ATTRIBUTES)
    for place in (
        'flow.py:3  Shop: priority "urgent"',
        "flow.py:9  Shop.rows: feed rows",
        'flow.py:10  Shop: timeout "soon"',
        "flow.py:11  Shop: vu = 3",
    ):
        assert any(line.startswith(place) for line in found), (place, found)
    sound = ATTRIBUTES
    for wrong in ('priority = "urgent"', 'rows: object = Feed("nowhere.csv")', "vu = 3"):
        sound = sound.replace(wrong, "pass")
    program = load(tmp_path, sound.replace('"soon"', '"1s"'))
    assert program.manifest.workflow("Shop").warnings == [
        "flow.py:16  Shop: tresholds is not a setting; did you mean thresholds?"
    ]


def test_a_load_that_cannot_be_is_reported_at_its_own_line(tmp_path: Path) -> None:
    text = """class Shop(Workflow):
    duration = "9s"
    vus = 0

    @step()
    async def a(self, url: URL = "http://127.0.0.1/") -> HTTPResponse:
        return await self.client.http.get(url)
"""
    [found] = mistakes(tmp_path, text)
    assert found.startswith("flow.py:4  Shop: vus 0 must be at least 1;")


@pytest.mark.parametrize("argument", ["a: str", "zz: str"])
@pytest.mark.parametrize("decorator", ["check", "metric", "step"])
def test_a_wrong_name_in_a_decorator_is_one_line(
    tmp_path: Path, decorator: str, argument: str
) -> None:
    text = f"""
        class Shop(Workflow):
            @step()
            async def a(self) -> str: ...
            @{decorator}("zz")
            async def b(self, {argument}) -> float: ...
        """
    (line,) = mistakes(tmp_path, text)
    assert line.startswith('flow.py:6  Shop.b: no step "zz"; known: a')


def test_custom_and_timed_results_are_measured(tmp_path: Path) -> None:
    program = load(
        tmp_path,
        """
        class Reply(CustomResult): ...
        class Deep(Reply): ...
        class Shop(Workflow):
            @step()
            async def a(self) -> Timed[bytes]: ...
            @step()
            async def b(self) -> Deep | None: ...
            @step()
            async def c(self) -> dict: ...
        """,
    )
    plan = program.plans["Shop"]
    assert [step.protocol for step in plan.steps] == ["custom", "custom", ""]
