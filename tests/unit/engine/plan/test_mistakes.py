"""Every decorator, class attribute and declaration, with every kind of wrong value.

The table is made from the public names: what is added to them is tried here without being named.
A value that a place does not take is refused before the run, in one line that names the file, the
line, the class, the place and the value.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import squall
from squall.api.errors import ConfigError
from squall.api.workflow import Workflow
from squall.engine.plan.declared_values import ATTRIBUTES
from squall.engine.run_options import RunOptions
from squall.engine.users.http_settings import http_shared
from squall.engine.users.virtual_user import prepare_arguments
from squall.stats.thresholds.binding import bind_all
from tests.unit.engine.lab.program_files import load

VALUES = {
    "number": "5",
    "zero": "0",
    "negative": "-1",
    "huge": "10**30",
    "fraction": "0.5",
    "nan": "float('nan')",
    "true": "True",
    "text": "'x'",
    "empty text": "''",
    "bytes": "b'x'",
    "class": "Other",
    "function": "helper",
    "instance": "Other()",
    "list": "[5]",
    "texts": "['x']",
    "empty list": "[]",
    "dict": "{'a': 5}",
    "none": "None",
    "step": "home",
    "feed": "Feed([{'a': 1}])",
}
NUMBERS = {"number", "fraction"}
FILE = """
def helper(): ...

class Other(Workflow):
    @step()
    async def first(self) -> None: ...

{above_class}
class Shop(Workflow):
    @step()
    async def home(self, url: URL = "http://127.0.0.1:1/") -> HTTPResponse: ...

{body}

@depends("Shop")
class Later(Workflow):
    @step()
    async def last(self) -> None: ...
"""


def judged(folder: Path, body: str = "", above_class: str = "") -> list[str]:
    """The lines of the refusal, or none if the file is accepted. Goes as far as a run does before
    its first request. Anything but a refusal ends the test."""
    indented = "\n".join(f"    {line}" for line in body.splitlines())
    try:
        program = load(folder, FILE.format(body=indented, above_class=above_class))
        bind_all(program.manifest, ())
        for plan in program.plans.values():
            shared = http_shared(plan, RunOptions(), folder)
            asyncio.run(prepare_arguments(plan, shared, "flow.py"))
    except ConfigError as error:
        return str(error).split("\n")
    return []


def check_line(lines: list[str], subject: str, *words: str) -> None:
    """One line names the place, and each of the words."""
    named = [line for line in lines if re.match(rf"flow\d*\.py:\d+  {subject}\b", line)]
    assert named, lines
    for word in words:
        assert word in named[0], f"{word!r} is not in: {named[0]}"


def shown(value: str) -> str:
    """The part of a value that its refusal has to show: of a list, its first element."""
    known = {
        "Other()": "Other",
        "10**30": "1" + 30 * "0",
        "float('nan')": "nan",
        "''": '""',
        "b'x'": "b'x'",
    }
    if value in known:
        return known[value]
    return "Feed" if value.startswith("Feed") else re.sub(r"[\[\]{}']", "", value).split(":")[0]


# Decorators.

DECORATORS = [
    name
    for name in squall.__all__
    if getattr(squall, name).__module__ == "squall.api.hooks"
    and inspect.isfunction(getattr(squall, name))
]
NEEDS = {"metric": "'home'", "check": "'home'", "state": "'Later'", "depends": "'Other'"}
METHODS = {
    "step": "async def act(self) -> None: ...",
    "then": "async def act(self) -> None: ...",
    "action": "async def act(self) -> None: ...",
    "check": "def act(self) -> bool: ...",
    "metric": "def act(self) -> float: ...",
    "state": "def act(self) -> Provide[int]: ...",
}
NAMES_TAKEN = {
    "step": {"step"},
    "then": set[str](),
    "action": set[str](),
    "check": {"step"},
    "metric": {"step"},
    "state": {"later"},
    "depends": {"class"},
}
OPTIONS_TAKEN = {
    "step.weight": {"number", "none"},
    "step.expect": {"none"},
    "step.timeout": NUMBERS | {"none"},
    "step.on_failure": {"none"},
    "action.at": set[str](),
    "metric.unit": {"text", "empty text"},
    "depends.when": set[str](),
}


def decorated(name: str, call: str) -> dict[str, str]:
    if name == "depends":
        return {"above_class": f"@{name}{call}"}
    return {"body": f"@{name}{call}\n{METHODS[name]}"}


def subject(name: str) -> str:
    return "Shop" if name == "depends" else r"Shop\.act"


def test_the_decorators_are_those_of_the_package() -> None:
    assert set(DECORATORS) == set(NAMES_TAKEN)


@pytest.mark.parametrize("name", DECORATORS)
def test_the_plain_form_is_accepted(name: str, tmp_path: Path) -> None:
    assert judged(tmp_path, **decorated(name, f"({NEEDS.get(name, '')})")) == []


@pytest.mark.parametrize("name", DECORATORS)
def test_a_decorator_needs_its_parentheses(name: str, tmp_path: Path) -> None:
    lines = judged(tmp_path, **decorated(name, ""))
    check_line(lines, subject(name), f"@{name}(", "parentheses")


@pytest.mark.parametrize("name", DECORATORS)
@pytest.mark.parametrize("kind", VALUES)
def test_a_name_in_a_decorator(name: str, kind: str, tmp_path: Path) -> None:
    if name == "depends" and kind in ("step", "function"):
        pytest.skip("not visible above the class, or the bare form")
    lines = judged(tmp_path, **decorated(name, f"({VALUES[kind]})"))
    if kind in NAMES_TAKEN[name]:
        assert lines == []
    elif kind == "function":
        # It looks like the bare form, which receives the method.
        check_line(lines, "Shop", "helper", f"@{name}(", "parentheses")
    else:
        check_line(lines, subject(name), shown(VALUES[kind]))


def options() -> Iterator[tuple[str, str]]:
    for name in DECORATORS:
        parameters = inspect.signature(getattr(squall, name)).parameters.values()
        yield from ((name, each.name) for each in parameters if each.kind is each.KEYWORD_ONLY)


@pytest.mark.parametrize(("name", "option"), list(options()))
@pytest.mark.parametrize("kind", VALUES)
def test_an_option_of_a_decorator(name: str, option: str, kind: str, tmp_path: Path) -> None:
    if name == "depends" and kind == "step":
        pytest.skip("not visible above the class")
    needs = NEEDS.get(name, "")
    call = f"({needs}{', ' if needs else ''}{option}={VALUES[kind]})"
    lines = judged(tmp_path, **decorated(name, call))
    taken = OPTIONS_TAKEN[f"{name}.{option}".replace("then.", "step.")]
    if kind in taken:
        assert lines == []
    else:
        check_line(lines, subject(name), option, shown(VALUES[kind]))


@pytest.mark.parametrize("name", DECORATORS)
def test_an_option_that_does_not_exist(name: str, tmp_path: Path) -> None:
    lines = judged(tmp_path, **decorated(name, "(wait=5)"))
    check_line(lines, "(Shop|)", f"{name}()", "wait")


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    "thing",
    ["@property", "@staticmethod", "@classmethod", "@step()", "@check('home')", "@squall_metric"],
)
def test_a_decorator_of_something_other_than_a_method(
    name: str, thing: str, tmp_path: Path
) -> None:
    if thing == "@squall_metric":
        lines = judged(tmp_path, f"@{name}({NEEDS.get(name, '')})\nclass act: ...")
    else:
        lines = judged(tmp_path, f"@{name}({NEEDS.get(name, '')})\n{thing}\n{METHODS[name]}")
    check_line(lines, r"Shop(\.act)?", f"@{name}")


def test_dependencies_that_stand_in_two_decorators_add_up(tmp_path: Path) -> None:
    program = load(tmp_path, FILE.format(above_class="@depends('Other')\n@depends()", body=""))
    assert program.plans["Shop"].depends == ["Other"]


# Class attributes.

PUBLIC = [name for name in Workflow.__annotations__ if not name.startswith("_")]
ATTRIBUTES_TAKEN = {
    "abstract": set[str](),
    "host": {"text", "empty text"},
    "vus": {"number"},
    "duration": NUMBERS,
    "iterations": {"number"},
    "stages": set[str](),
    "rate": NUMBERS,
    "max_vus": set[str](),
    "start_after": NUMBERS | {"zero"},
    "think": NUMBERS | {"zero"},
    "pacing": NUMBERS | {"zero"},
    "grace": NUMBERS | {"zero"},
    "timeout": NUMBERS,
    "priority": set[str](),
    "thresholds": {"empty list"},
    "connections": set[str](),
    "streams": {"number"},
    "pool_size": {"number"},
    "http": set[str](),
    "session": set[str](),
    "on_failure": set[str](),
    "on_control_loss": set[str](),
    "weight": {"number"},
    "reporting": {"empty list"},
}
NOT_SETTINGS = {"client", "context", "vu"}


def test_every_setting_has_its_line_in_the_table() -> None:
    assert set(ATTRIBUTES) == set(PUBLIC) - NOT_SETTINGS == set(ATTRIBUTES_TAKEN)


@pytest.mark.parametrize("name", PUBLIC)
@pytest.mark.parametrize("kind", VALUES)
def test_a_class_attribute(name: str, kind: str, tmp_path: Path) -> None:
    if (name, kind) == ("abstract", "true"):
        pytest.skip("then the class does not run")
    lines = judged(tmp_path, f"{name} = {VALUES[kind]}")
    # None means: as if it were not written, which undoes the attribute of a base class.
    if kind in ATTRIBUTES_TAKEN.get(name, ()) or (kind == "none" and name not in NOT_SETTINGS):
        assert lines == []
    elif kind == "step" or (name, kind) == ("max_vus", "number"):
        # A step under a second name; a contradiction to the closed model.
        check_line(lines, rf"Shop(\.{name})?", name)
    elif name == "thresholds" and "text" in kind:
        check_line(lines, "Shop", shown(VALUES[kind]), "threshold")
    else:
        check_line(lines, "Shop", name, shown(VALUES[kind]))


@pytest.mark.parametrize("name", [*PUBLIC, "check", "pause", "timed"])
@pytest.mark.parametrize("decorator", METHODS)
def test_a_hook_with_the_name_of_something_else(name: str, decorator: str, tmp_path: Path) -> None:
    method = METHODS[decorator].replace("act", name)
    lines = judged(tmp_path, f"@{decorator}({NEEDS.get(decorator, '')})\n{method}")
    check_line(lines, rf"Shop\.{name}", f'"{name}" is reserved')


@pytest.mark.parametrize("name", ["check", "pause", "timed"])
@pytest.mark.parametrize("kind", [kind for kind in VALUES if kind not in ("function", "class")])
def test_a_method_of_a_workflow_is_not_replaced_by_a_value(
    name: str, kind: str, tmp_path: Path
) -> None:
    check_line(judged(tmp_path, f"{name} = {VALUES[kind]}"), "Shop", name)


# Declarations: feeds, resources, metrics, values.

DECLARATIONS = ["Feed", "Resource", "Counter", "Gauge", "Rate", "Sample", "env", "bearer"]
DECLARED = {
    "Feed": "[{'a': 1}]",
    "Resource": "helper",
    "env": "'HOME'",
    "bearer": "'token'",
}
FOUND_IN_ROWS = {("source", "text"), ("source", "empty list"), ("row", "class")}
DECLARATIONS_TAKEN = {
    "Feed.source": {"list", "texts"},
    "Feed.row": {"none"},
    "Feed.per": set[str](),
    "Feed.take": set[str](),
    "Feed.delimiter": {"text"},
    "Resource.connect": {"function", "class"},
    "Resource.per": set[str](),
    "Resource.close": {"function", "class", "none"},
    "Counter.unit": {"text", "empty text"},
    "Gauge.unit": {"text", "empty text"},
    "Rate.unit": {"text", "empty text"},
    "Sample.unit": {"text", "empty text"},
    "env.name": set[str](),
    "env.default": {"text", "empty text"},
    "bearer.token": {"text"},
}


def declarations() -> Iterator[tuple[str, str]]:
    for name in DECLARATIONS:
        parameters = inspect.signature(getattr(squall, name)).parameters
        yield from ((name, each) for each in parameters)


def test_the_declarations_are_those_of_the_package() -> None:
    assert {f"{name}.{argument}" for name, argument in declarations()} == set(DECLARATIONS_TAKEN)


@pytest.mark.parametrize(("name", "argument"), list(declarations()))
@pytest.mark.parametrize("kind", VALUES)
def test_an_argument_of_a_declaration(name: str, argument: str, kind: str, tmp_path: Path) -> None:
    first = DECLARED.get(name, "")
    parameters = list(inspect.signature(getattr(squall, name)).parameters)
    if parameters[0] == argument:
        call = f"{name}({VALUES[kind]})"
    elif name == "env":
        call = f"env('SQUALL_NO_SUCH_VARIABLE', {argument}={VALUES[kind]})"
    else:
        call = f"{name}({first}{', ' if first else ''}{argument}={VALUES[kind]})"
    lines = judged(tmp_path, f"act = {call}")
    if kind in DECLARATIONS_TAKEN[f"{name}.{argument}"]:
        assert lines == []
    elif f"{name}.{argument}" == "bearer.token" or kind == "none":
        # A token may be a secret: it is not shown.
        check_line(lines, "Shop", name)
    elif name == "Feed" and (argument, kind) in FOUND_IN_ROWS:
        # Found when the rows are read.
        check_line(lines, r"Shop\.act", "feed act")
    else:
        check_line(lines, "Shop", name, shown(VALUES[kind]))


@pytest.mark.parametrize("name", DECLARATIONS)
@pytest.mark.parametrize("call", ["(wait=5)", "(1, 2, 3, 4, 5)"])
def test_arguments_that_a_declaration_does_not_have(name: str, call: str, tmp_path: Path) -> None:
    check_line(judged(tmp_path, f"act = {name}{call}"), "Shop", name)


# Prepared arguments.

KINDS_TAKEN = {
    "URL": set[str](),
    "Headers": {"dict"},
    "Params": {"dict"},
    "Cookies": {"dict"},
    "Data": set(VALUES) - {"class", "function", "instance", "step", "feed", "none"},
    "Form": {"dict"},
    "Auth": set[str](),
    "File": set[str](),
    "Protobuf": {"bytes", "dict"},
    "Query": set[str](),
    "Mutation": set[str](),
    "SQL": {"text"},
    "Document": {"dict", "empty list"},
    "Directory": set[str](),
    "FileGlob": set[str](),
    "Email": set[str](),
}


@pytest.mark.parametrize("name", KINDS_TAKEN)
@pytest.mark.parametrize("kind", VALUES)
def test_the_default_of_a_prepared_argument(name: str, kind: str, tmp_path: Path) -> None:
    body = f"@step()\nasync def act(self, thing: {name} = {VALUES[kind]}) -> None: ..."
    lines = judged(tmp_path, body)
    if kind in KINDS_TAKEN[name]:
        assert lines == []
    else:
        check_line(lines, r"Shop\.act", "thing")


@pytest.mark.parametrize("name", KINDS_TAKEN)
def test_a_prepared_argument_that_may_be_missing(name: str, tmp_path: Path) -> None:
    body = f"@step()\nasync def act(self, thing: {name} | None = None) -> None: ..."
    assert judged(tmp_path, body) == []


def test_the_prepared_arguments_are_those_of_the_package() -> None:
    from squall.api.arguments import argument_kinds

    assert [kind.__name__ for kind in argument_kinds()] == list(KINDS_TAKEN)


# Hooks that Python or the results would take for something else.


def written(decorator: str) -> str:
    return f"@{decorator}({NEEDS.get(decorator, '')})\n{METHODS[decorator]}"


@pytest.mark.parametrize("second", [*map(written, METHODS), "def act(self): ...", "act = 5"])
@pytest.mark.parametrize(
    ("first", "kind", "line"),
    [
        *(
            (written(name), {"then": "step", "state": "state hook"}.get(name, name), 14)
            for name in METHODS
        ),
        ("act = Counter()", "metric", 13),
        ("act: Feed[int] = Feed([1])", "feed", 13),
        ("act = Resource(helper)", "resource", 13),
    ],
)
def test_a_member_that_a_second_of_its_name_replaces(
    first: str, kind: str, line: int, second: str, tmp_path: Path
) -> None:
    lines = judged(tmp_path, f"{first}\n{second}")
    check_line(lines, r"Shop\.act", f"a second act replaces the {kind} of line {line};")


def test_members_that_may_have_one_name(tmp_path: Path) -> None:
    body = """
    act: Feed[int]
    act = Feed([1])
    if True:
        @step()
        async def late_one(self) -> None: ...
    else:
        @step()
        async def late_one(self) -> None: ...
    @property
    def size(self): return 1
    @size.setter
    def size(self, value): ...
    """
    assert judged(tmp_path, inspect.cleandoc(body)) == []
    inherits = "class Big(Shop):\n    @step()\n    async def home(self) -> None: ..."
    assert load(tmp_path, FILE.format(above_class="", body="") + inherits).plans["Big"].steps


ROW_NAMES = ("iteration", "start")
THRESHOLD_NAMES = ("errors", "checks", "dropped", "late", "rps")


@pytest.mark.parametrize(
    ("name", "decorator"),
    [
        *((name, kind) for name in (*ROW_NAMES, *THRESHOLD_NAMES) for kind in ("step", "then")),
        *((name, "check") for name in ROW_NAMES),
        *((name, "metric") for name in (*ROW_NAMES, *THRESHOLD_NAMES, "connect", "http_reqs")),
    ],
)
def test_a_hook_with_a_name_of_the_results(name: str, decorator: str, tmp_path: Path) -> None:
    method = METHODS[decorator].replace("act", name)
    lines = judged(tmp_path, f"@{decorator}({NEEDS.get(decorator, '')})\n{method}")
    check_line(lines, rf"Shop\.{name}", f'"{name}" is reserved')


@pytest.mark.parametrize("name", [*THRESHOLD_NAMES, "iteration", "service", "http_req_duration"])
def test_a_metric_that_no_threshold_could_name(name: str, tmp_path: Path) -> None:
    check_line(judged(tmp_path, f"{name} = Counter()"), rf"Shop\.{name}", "is reserved")


@pytest.mark.parametrize("decorator", METHODS)
@pytest.mark.parametrize("arguments", ["", "home: HTTPResponse", "home", "url=5", "*, self"])
def test_a_hook_without_self(decorator: str, arguments: str, tmp_path: Path) -> None:
    method = METHODS[decorator].replace("(self)", f"({arguments})")
    lines = judged(tmp_path, f"@{decorator}({NEEDS.get(decorator, '')})\n{method}")
    check_line(lines, r"Shop\.act", "needs self as its first argument")


FORGOTTEN = {
    "check": "def act(self, home) -> bool: 'paid' in home.text",
    "metric": "def act(self, home) -> float: home.json()['n']",
    "state": "def act(self) -> Provide[int]: self.home.response.json()['n']",
}


@pytest.mark.parametrize("decorator", FORGOTTEN)
def test_a_hook_that_forgets_return(decorator: str, tmp_path: Path) -> None:
    lines = judged(tmp_path, f"@{decorator}({NEEDS.get(decorator, '')})\n{FORGOTTEN[decorator]}")
    check_line(lines, r"Shop\.act", "never returns a value; write return")


@pytest.mark.parametrize(
    "body",
    [
        "return home.ok",
        "assert home.ok",
        "if not home.ok: raise ValueError",
        "for _ in [1]: return home.ok",
        "with home: return home.ok",
        "return 1 if home.ok else None",
        "try: return home.ok\n    finally: home.close()",
        "return home.json().get('id')",
        "...",
        "'''Looks at the page.'''",
    ],
)
@pytest.mark.parametrize("keyword", ["def", "async def"])
def test_a_check_that_says_what_it_found(keyword: str, body: str, tmp_path: Path) -> None:
    method = f"@check('home')\n{keyword} act(self, home):\n    {body}"
    assert judged(tmp_path, method) == []


@pytest.mark.parametrize("passed", [True, False, None, 1])
def test_a_check_that_is_called_like_a_function_explains_itself(passed: Any) -> None:
    with pytest.raises(ConfigError, match=r"in a step write self\.check\(name, passed\)"):
        squall.check("20 items", passed)


def test_a_check_that_is_called_in_a_step_explains_itself() -> None:
    async def items() -> None:
        squall.check("named", "by text")

    with pytest.raises(ConfigError, match=r'check\("named", "by text"\) decorates a method'):
        items().send(None)
