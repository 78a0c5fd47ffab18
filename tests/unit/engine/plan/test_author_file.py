"""Importing an author's file, naming the author's line, choosing the workflows that run."""

from __future__ import annotations

import dataclasses
import os
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from squall.api.errors import AuthorError, ConfigError, ExitCode, UsageError
from squall.engine.plan.author_file import (
    author_frames,
    author_location,
    author_traceback,
    load_file,
    refuse_no_python_file,
    workflow_classes,
)


class Base:
    abstract = False


@pytest.fixture(autouse=True)
def _restored_import_state() -> Iterator[None]:
    path, modules = list(sys.path), dict(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - set(modules):
        del sys.modules[name]


def load(folder: Path, source: str, name: str = "shop.py") -> ModuleType:
    file = folder / name
    file.write_text(source)
    return load_file(file, name)


def message_of(folder: Path, source: str, name: str = "shop.py") -> str:
    with pytest.raises(AuthorError) as caught:
        load(folder, source, name)
    assert caught.value.exit_code == ExitCode.AUTHOR
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_loaded_file_is_registered_under_its_stem(tmp_path: Path) -> None:
    module = load(tmp_path, "x = 1\n", "my_shop.py")
    assert sys.modules["my_shop"] is module
    assert module.__name__ == "my_shop"
    assert module.__file__ == str(tmp_path / "my_shop.py")


def test_type_hints_and_dataclasses_of_the_file_resolve(tmp_path: Path) -> None:
    module = load(
        tmp_path,
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "@dataclass\n"
        "class User:\n"
        "    name: str\n"
        "    friend: User | None = None\n",
        "hinted.py",
    )
    assert typing.get_type_hints(module.User)["friend"] == module.User | None
    assert [field.name for field in dataclasses.fields(module.User)] == ["name", "friend"]


@pytest.mark.parametrize("stem", ["http", "squall", "shop.v2"])
def test_a_name_that_is_taken_or_dotted_gets_a_prefix(tmp_path: Path, stem: str) -> None:
    taken = sys.modules.get(stem)
    module = load(tmp_path, "x = 1\n", f"{stem}.py")
    assert module.__name__ == "squall_file_" + stem.replace(".", "_")
    assert sys.modules.get(stem) is taken or stem == "http"


def test_a_file_named_like_a_standard_module_does_not_hide_it(tmp_path: Path) -> None:
    load(tmp_path, "x = 1\n", "colorsys.py")
    import colorsys

    assert colorsys.rgb_to_hsv(0, 0, 0) == (0.0, 0.0, 0)


def test_modules_beside_the_file_are_importable(tmp_path: Path) -> None:
    (tmp_path / "beside_shop.py").write_text("price = 7\n")
    assert load(tmp_path, "from beside_shop import price\n").price == 7
    assert sys.path[0] == str(tmp_path)


def test_no_bytecode_of_the_file_is_left_behind(tmp_path: Path) -> None:
    load(tmp_path, "x = 1\n")
    assert not (tmp_path / "__pycache__").exists()


def test_an_exception_at_import_names_the_line(tmp_path: Path) -> None:
    text = message_of(tmp_path, "a = 1\n\n\nb = x\n")
    assert text == "shop.py:4  NameError: name 'x' is not defined"


def test_a_missing_module_names_the_import(tmp_path: Path) -> None:
    text = message_of(tmp_path, "import sys\nimport foo_is_not_there\n")
    assert text == "shop.py:2  ModuleNotFoundError: No module named 'foo_is_not_there'"


def test_the_line_is_the_authors_and_not_a_librarys(tmp_path: Path) -> None:
    text = message_of(tmp_path, "import json\n\njson.loads('{')\n")
    assert text.startswith("shop.py:3  JSONDecodeError: ")


def test_the_deepest_of_the_authors_files_is_named(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "__init__.py").write_text("")
    (tmp_path / "lib" / "prices.py").write_text("\n1 / 0\n")
    text = message_of(tmp_path, "import lib.prices\n")
    assert text == "lib/prices.py:2  ZeroDivisionError: division by zero"


def test_the_file_is_named_as_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "prices.py").write_text("1 / 0\n")
    (tmp_path / "shop.py").write_text("import prices\n")
    with pytest.raises(AuthorError, match=r"^load/prices\.py:1  ZeroDivisionError"):
        load_file(tmp_path / "shop.py", "load/shop.py")


def test_installed_packages_inside_the_folder_are_not_the_authors(tmp_path: Path) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "installed_thing.py").write_text("\n\n1 / 0\n")
    source = f"import sys\nsys.path.append({str(packages)!r})\nimport installed_thing\n"
    assert message_of(tmp_path, source) == "shop.py:3  ZeroDivisionError: division by zero"


def test_a_syntax_error_names_line_and_message(tmp_path: Path) -> None:
    text = message_of(tmp_path, "a = 1\nclass Shop\n    pass\n")
    assert text == "shop.py:2  SyntaxError: expected ':'"


def test_a_syntax_error_in_a_module_beside_names_that_file(tmp_path: Path) -> None:
    (tmp_path / "broken_one.py").write_text("\n\n  x = 1\n")
    text = message_of(tmp_path, "import broken_one\n")
    assert text == "broken_one.py:3  IndentationError: unexpected indent"


def test_bytes_that_are_not_text_are_a_failure_with_a_line(tmp_path: Path) -> None:
    file = tmp_path / "shop.py"
    file.write_bytes(b"a = '\xff\xfe'\n")
    with pytest.raises(AuthorError, match=r"^shop\.py:\d+  SyntaxError: "):
        load_file(file, "shop.py")


def test_leaving_at_import_is_the_authors_failure(tmp_path: Path) -> None:
    assert message_of(tmp_path, "import sys\nsys.exit(3)\n") == "shop.py:2  SystemExit: 3"


def test_an_interrupt_at_import_is_not_swallowed(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        load(tmp_path, "raise KeyboardInterrupt\n")


def test_a_long_text_of_many_lines_becomes_one_line(tmp_path: Path) -> None:
    text = message_of(tmp_path, "raise ValueError('first\\n  second' + 'x' * 5000)\n")
    assert text.startswith("shop.py:1  ValueError: first second")
    assert len(text) < 500


def test_an_exception_whose_text_raises_is_still_told(tmp_path: Path) -> None:
    source = "class E(Exception):\n    def __str__(self):\n        raise RuntimeError\nraise E\n"
    assert message_of(tmp_path, source).startswith("shop.py:4  E: ")


def test_what_is_no_file_is_told_without_a_line(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("")
    (tmp_path / "shop.txt").write_text("")
    os.mkfifo(tmp_path / "pipe.py")
    for name, expected in [
        ("shpo.py", 'shpo.py  no such file; did you mean "shop.py"?'),
        (".", ".  is a directory; name a Python file (.py) in it"),
        ("shop.txt", "shop.txt  is not a Python file (.py)"),
        ("pipe.py", "pipe.py  is not a Python file (.py)"),
    ]:
        with pytest.raises(UsageError) as caught:
            load_file(tmp_path / name, name)
        assert str(caught.value) == expected


def test_a_failed_import_leaves_no_trace(tmp_path: Path) -> None:
    before = list(sys.path)
    message_of(tmp_path, "1 / 0\n", "failing_shop.py")
    assert "failing_shop" not in sys.modules
    assert sys.path == before


CONFIG = "from squall.api.errors import ConfigError\n"


def config_message(folder: Path, source: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(folder, CONFIG + source)
    assert caught.value.exit_code == ExitCode.CONFIG
    return str(caught.value)


def test_a_configuration_error_stays_one_and_gets_the_line(tmp_path: Path) -> None:
    source = "class Shop:\n    raise ConfigError('Shop needs TOKEN')\n"
    assert config_message(tmp_path, source) == "shop.py:3  Shop needs TOKEN"


def test_a_configuration_error_of_a_descriptor_is_unwrapped(tmp_path: Path) -> None:
    source = (
        "class Env:\n"
        "    def __set_name__(self, owner, name):\n"
        "        raise ConfigError(f'{owner.__name__} needs TOKEN')\n"
        "class Shop:\n"
        "    token = Env()\n"
    )
    text = config_message(tmp_path, source)
    assert text.startswith("shop.py:") and text.endswith("  Shop needs TOKEN")


def test_a_configuration_error_that_names_its_line_is_left_alone(tmp_path: Path) -> None:
    source = "raise ConfigError('Shop.home (shop.py:14) needs a return type')\n"
    assert config_message(tmp_path, source) == "Shop.home (shop.py:14) needs a return type"


WORKFLOWS = """
from test_base_of_workflows import Base, Imported
class _Shared(Base): pass
class Second(_Shared): pass
class Template(Base):
    abstract = True
class First(Template): pass
class Other: pass
Alias = Second
"""


@pytest.fixture
def base_module(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("test_base_of_workflows")
    module.Base = Base  # type: ignore[attr-defined]
    module.Imported = type("Imported", (Base,), {"__module__": module.__name__})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.mark.usefixtures("base_module")
def test_only_public_concrete_classes_of_the_file_run_in_their_order(tmp_path: Path) -> None:
    module = load(tmp_path, WORKFLOWS)
    assert [cls.__name__ for cls in workflow_classes(module, Base)] == ["Second", "First"]


REPLACED = {
    "a workflow by a workflow": "class Shop(Base): pass\n\nclass Shop(Base): pass\n",
    "a workflow by its subclass": "class Shop(Base): pass\n\nclass Shop(Shop): pass\n",
    "a workflow by another class": "class Shop(Base): pass\n\nclass Shop: pass\n",
    "a workflow that has another name too": (
        "class Shop(Base): pass\nOld = Shop\nclass Shop(Base): pass\n"
    ),
    "a workflow with a base of a module": (
        "class Shop(test_base_of_workflows.Base): pass\n\nclass Shop(Base): pass\n"
    ),
}


@pytest.mark.usefixtures("base_module")
@pytest.mark.parametrize("case", REPLACED)
def test_a_class_that_replaces_a_workflow_is_refused_with_both_lines(
    tmp_path: Path, case: str
) -> None:
    imports = "import test_base_of_workflows; from test_base_of_workflows import Base\n"
    module = load(tmp_path, imports + REPLACED[case])
    with pytest.raises(ConfigError) as caught:
        workflow_classes(module, Base)
    assert str(caught.value) == (
        "shop.py:4  Shop: a second class of this name replaces the workflow of line 2; "
        "give one of them another name"
    )


@pytest.mark.usefixtures("base_module")
def test_two_made_workflows_of_one_name_are_refused(tmp_path: Path) -> None:
    module = load(
        tmp_path,
        "from test_base_of_workflows import Base\n"
        "def made():\n"
        "    class Shop(Base): pass\n"
        "    return Shop\n"
        "North, South = made(), made()\n",
    )
    with pytest.raises(ConfigError) as caught:
        workflow_classes(module, Base)
    assert str(caught.value) == (
        "shop.py  Shop: North and South are two workflows of this name; "
        "give one of them another name"
    )


NOT_REPLACED = """
from test_base_of_workflows import Base
if Base.__name__ == "Base":
    class Shop(Base): pass
else:
    class Shop(Base): pass
class _Shared(Base): pass
class _Shared(_Shared): pass
class Row: pass
class Row: pass
"""


@pytest.mark.usefixtures("base_module")
def test_alternatives_bases_and_other_classes_may_share_a_name(tmp_path: Path) -> None:
    module = load(tmp_path, NOT_REPLACED)
    assert [cls.__name__ for cls in workflow_classes(module, Base)] == ["Shop"]


RAISING = """
import json

def pay():
    return [json.loads(text) for text in ["{"]]

def outer():
    try:
        pay()
    except ValueError as error:
        raise RuntimeError("no order") from error
"""


def raised_by(module: ModuleType, name: str) -> Exception:
    with pytest.raises(Exception) as caught:
        getattr(module, name)()
    return caught.value


def test_the_location_is_the_authors_deepest_line_and_function(tmp_path: Path) -> None:
    assert author_location(raised_by(load(tmp_path, RAISING), "pay")) == "shop.py:5 in pay"


def test_an_exception_of_somebody_else_has_no_location(tmp_path: Path) -> None:
    load(tmp_path, RAISING)
    with pytest.raises(ValueError) as caught:
        int("x")
    assert author_location(caught.value) == ""
    assert author_traceback(caught.value).startswith("ValueError: ")


def test_a_traceback_holds_the_authors_frames_only(tmp_path: Path) -> None:
    text = author_traceback(raised_by(load(tmp_path, RAISING), "outer"))
    lines = text.splitlines()
    assert '  File "shop.py", line 5, in pay' in lines
    assert '    raise RuntimeError("no order") from error' in lines
    assert lines[-1] == "RuntimeError: no order"
    assert "json/decoder" not in text and "test_author_file" not in text


def test_generated_code_is_not_the_authors(tmp_path: Path) -> None:
    module = load(tmp_path, RAISING)
    runner: dict[str, typing.Any] = {"pay": module.pay}
    exec(compile("def run():\n    pay()\n", "<squall Shop>", "exec"), runner)
    with pytest.raises(ValueError) as caught:
        runner["run"]()
    assert "<squall" not in author_traceback(caught.value)
    names = [frame.f_code.co_name for frame, _ in author_frames(caught.value.__traceback__)]
    assert "run" not in names and "pay" in names


def test_a_recursion_is_shortened(tmp_path: Path) -> None:
    module = load(tmp_path, "def down(n=0):\n    return down(n + 1)\n")
    text = author_traceback(raised_by(module, "down"))
    assert "more" in text and len(text.splitlines()) < 80


def test_frames_of_a_running_stack_are_outermost_first(tmp_path: Path) -> None:
    module = load(
        tmp_path, "import sys\ndef a():\n    return b()\ndef b():\n    return sys._getframe()\n"
    )
    names = [frame.f_code.co_name for frame, _ in author_frames(module.a(), tmp_path)]
    assert names[-1] == "b"
    assert author_frames(None, tmp_path) == []


@pytest.mark.parametrize(
    ("shown", "hint"),
    [
        ("127.0.0.1:8080/", "; for a URL, write http://127.0.0.1:8080/"),
        ("localhost", "; for a URL, write http://localhost"),
        ("shop.test/cart?x=1", "; for a URL, write http://shop.test/cart?x=1"),
        ("shop.py", ""),
        ("../load.d/shop.py", ""),
        ("shop", ""),
    ],
)
def test_an_address_without_its_scheme_has_a_hint(shown: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        refuse_no_python_file(tmp_path / shown, shown)
    assert str(caught.value) == f"{shown}  no such file{hint}"
