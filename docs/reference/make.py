"""Writes the reference pages from the code: `make reference`.

The API page shows what authors import from `squall`, with signatures and docstrings. The page of
the commands shows the parsers of `squall`, that of the outputs their options, that of the rows the
tables in which they store a run. `tests/unit/test_reference.py` compares all pages with the code,
so they cannot become old.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import runpy
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from functools import cache, cached_property
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# A table of its own file: title, introduction, and the names as "module:name".
API: list[tuple[str, str, list[str]]] = runpy.run_path(str(HERE / "api_sections.py"))["API"]
GENERATED = "<!-- Written by docs/reference/make.py from the code. Run `make reference`. -->"

# Groups of the commands, by their folder under `squall.cli`.
COMMAND_GROUPS = {
    "run": "Run and judge",
    "dev": "On this machine",
    "cluster": "Clusters",
    "store": "Store mode",
    "coord": "Coordination library",
}
LINE = 90
# Members that only the engine uses.
HIDDEN = {"VU.paused_before", "Feed.load", "Feed.path", "Resource.open", "Resource.close"}


def api_page() -> str:
    parts = [
        "# API reference",
        GENERATED,
        "Everything is imported from `squall`, except classes that you only get from a call. The "
        "guide is [Writing workflows](../workflows.md).",
    ]
    for title, introduction, names in API:
        parts += [f"## {title}", introduction]
        for name in names:
            parts += _entry(name)
    return "\n\n".join(parts) + "\n"


def _entry(name: str) -> Iterator[str]:
    module, _, attribute = name.partition(":")
    thing = getattr(import_module(module), attribute)
    yield f"### `{attribute}`"
    if inspect.isfunction(thing):
        yield _code(f"{attribute}{_signature(thing)}")
        yield _text(inspect.getdoc(thing))
    elif inspect.isclass(thing):
        yield from _class(thing)
    else:
        yield _text(_after_names(module).get(attribute, ""))


def _class(cls: type[Any]) -> Iterator[str]:
    own_start = next((c for c in cls.__mro__ if "__init__" in vars(c) and _is_ours(c)), None)
    # The attributes of a dataclass, which are listed below, are its arguments.
    if own_start is not None and not _is_made_by_squall(cls) and not is_dataclass(cls):
        yield _code(f"{cls.__name__}{_signature(own_start.__init__)}")
    yield _text(inspect.getdoc(cls) if vars(cls).get("__doc__") else "")
    start = vars(cls).get("__init__")
    if start is not None and inspect.isfunction(start) and start.__doc__:
        yield _text(inspect.getdoc(start))
    fields = list(_fields(cls))
    if fields:
        rows = [f"| `{name}` | {shown} | {text} |" for name, shown, text in fields]
        yield "\n".join(["| attribute | type and default | meaning |", "|---|---|---|", *rows])
    members = list(_members(cls))
    if members:
        yield "\n".join(members)


def _members(cls: type[Any]) -> Iterator[str]:
    """A line for each public property and method."""
    for name, member in vars(cls).items():
        if name.startswith("_") or f"{cls.__name__}.{name}" in HIDDEN:
            continue
        if isinstance(member, property | cached_property):
            function = member.fget if isinstance(member, property) else member.func
            yield f"- `.{name}`: {_line(inspect.getdoc(function))}"
        elif inspect.isfunction(member):
            prefix = "await " if inspect.iscoroutinefunction(member) else ""
            prefix = "async for ... in " if inspect.isasyncgenfunction(member) else prefix
            shown = _signature(member)
            if len(shown) > LINE:
                shown = f"({', '.join(inspect.signature(member).parameters)})".replace("self, ", "")
            yield f"- `{prefix}.{name}{shown}`: {_line(inspect.getdoc(member))}"


def _is_ours(cls: type[Any]) -> bool:
    return cls.__module__.startswith("squall")


def _is_made_by_squall(cls: type[Any]) -> bool:
    return cls.__name__ in {
        *("VU", "BoundStep", "HTTPVerbs", "HTTPResponse", "HTTPHeaders", "HTTPTimings", "Timed"),
        *("Result", "WorkflowResult", "StepResult", "Job", "Reporter", "Workflow"),
        *("SquallError", "ConfigError", "TransportError", "StatusError"),
        *("URL", "Headers", "Params", "Cookies", "Data", "Form", "Auth", "File"),
        *("Query", "Mutation", "Protobuf"),
    }


def _fields(cls: type[Any]) -> Iterator[tuple[str, str, str]]:
    """Annotated attributes of a class that have a string below them."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(tree, ast.ClassDef)
    texts = _strings_below(tree.body)
    for node in tree.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        name = node.target.id
        if name in texts and not name.startswith("_"):
            kind = ast.unparse(node.annotation).replace("'", '"')
            kind = re.sub(r"^ClassVar\[(.*)\]$", r"\1", kind)
            value = f" = {_quoted(node.value)}" if node.value is not None else ""
            yield name, f"`{_cell(kind + value)}`", _cell(_line(texts[name]))


def _quoted(value: ast.expr) -> str:
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return f'"{value.value}"'
    return ast.unparse(value)


@cache
def _after_names(module: str) -> dict[str, str]:
    source = inspect.getsource(import_module(module))
    return _strings_below(ast.parse(source).body)


def _strings_below(body: list[ast.stmt]) -> dict[str, str]:
    found: dict[str, str] = {}
    for node, below in pairwise(body):
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if (
            isinstance(target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            found[target.id] = inspect.cleandoc(below.value.value)
    return found


def _signature(function: Callable[..., Any]) -> str:
    """The signature as the source writes it: annotations are text, types keep their names."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef)
    tree.args.args = [each for each in tree.args.args if each.arg != "self"]
    # `a: int=1` becomes `a: int = 1`.
    shown = re.sub(r"(: [^=]+?)=", r"\1 = ", ast.unparse(tree.args).replace("'", '"'))
    # What a decorator returns is of no use to a reader.
    is_decorator = function.__module__ == "squall.api.hooks"
    if tree.returns is None or tree.name == "__init__" or is_decorator:
        return f"({shown})"
    return f"({shown}) -> {ast.unparse(tree.returns)}"


def _code(signature: str) -> str:
    if len(signature) > LINE:
        head, _, rest = signature.partition("(")
        inside, _, end = rest.rpartition(")")
        lines = [f"    {part}," for part in _split(inside)]
        signature = "\n".join([f"{head}(", *lines, f"){end}"])
    return f"```text\n{signature}\n```"


def _split(arguments: str) -> Iterator[str]:
    """Splits at the commas that are not in brackets."""
    depth, part = 0, ""
    for letter in arguments:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            yield part.strip()
            part = ""
        else:
            part += letter
    yield part.strip()


def _text(docstring: str | None) -> str:
    """Markdown of a docstring: paragraphs; indented parts are code."""
    if not docstring:
        raise SystemExit("something in the reference has no docstring")
    return docstring


def _line(docstring: str | None) -> str:
    return " ".join(_text(docstring).split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


# Commands.


def cli_page() -> str:
    from squall.cli.main import COMMANDS, build_parser
    from squall.cli.shared.parser import EXIT_CODES
    from squall.target.command import build_parser as target_parser

    parsers = _subparsers(build_parser())
    codes = [line.split(maxsplit=1) for line in EXIT_CODES.splitlines()[1:]]
    rows = [f"| {code} | {meaning} |" for code, meaning in codes]
    parts = [
        "# Command reference",
        GENERATED,
        "`squall COMMAND --help` prints the same in a terminal. "
        "[Exit codes](#exit-codes) are at the end.",
    ]
    for folder, title in COMMAND_GROUPS.items():
        parts.append(f"## {title}")
        for word, command in COMMANDS.items():
            if command.folder == folder:
                parser = target_parser() if word == "target" else parsers[word]
                parts += _command(f"squall {word}", parser, command.help, 3)
    missing = {command.folder for command in COMMANDS.values()} - set(COMMAND_GROUPS)
    if missing:
        raise SystemExit(f"folders of commands without a title: {missing}")
    parts += ["## Exit codes", "\n".join(["| code | meaning |", "|---|---|", *rows])]
    return "\n\n".join(parts) + "\n"


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _command(name: str, parser: argparse.ArgumentParser, text: str, level: int) -> Iterator[str]:
    flags = getattr(parser, "_flags", None)
    if flags is not None:
        parser._flags = None  # pyright: ignore[reportAttributeAccessIssue]
        flags(parser)
    below = _subparsers(parser)
    yield f"{'#' * level} `{name}`"
    yield _sentence(text)
    if not below:
        yield f"    {_usage(name, parser)}"
    rows = [row for group in parser._action_groups for row in _rows(group, parser)]
    if rows:
        yield "\n".join(["| argument | meaning |", "|---|---|", *rows])
    if parser.epilog and "exit codes" not in parser.epilog:
        yield f"```text\n{parser.epilog.rstrip()}\n```"
    helps = {
        each.dest: each.help or ""
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for each in action._choices_actions
    }
    for word, child in below.items():
        yield from _command(f"{name} {word}", child, helps.get(word, ""), level + 1)


def _usage(name: str, parser: argparse.ArgumentParser) -> str:
    if parser.usage:
        return parser.usage
    words = [name, "[flags]"]
    for action in parser._actions:
        if not action.option_strings and action.help != argparse.SUPPRESS:
            shown = str(action.metavar or action.dest)
            optional = action.nargs in ("?", "*")
            several = " ..." if action.nargs in ("*", "+") else ""
            words.append(f"[{shown}]" if optional else f"{shown}{several}")
    return " ".join(words)


def _rows(group: Any, parser: argparse.ArgumentParser) -> Iterator[str]:
    if group.title not in ("positional arguments", "options") and group._group_actions:
        yield f"| **{group.title}** | {_cell(group.description or '')} |"
    for action in group._group_actions:
        if action.help == argparse.SUPPRESS or isinstance(
            action, argparse._HelpAction | argparse._SubParsersAction
        ):
            continue
        shown = ", ".join(action.option_strings) or str(action.metavar or action.dest)
        if action.option_strings and action.nargs != 0:
            values = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else ""
            shown += f" {action.metavar or values or action.dest.upper()}"
        text = (action.help or "") % {**vars(action), "prog": parser.prog}
        yield f"| `{_cell(shown)}` | {_cell(text)} |"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def outputs_page() -> str:
    """The options of each kind of output."""
    from squall.reporting.outputs.registry import KINDS
    from squall.reporting.outputs.targets import wanted_config

    lines = [
        GENERATED,
        "",
        "# Options of outputs",
        "",
        "The fields of each configuration in `squall.reporters` are the options of "
        "`-o KIND=TARGET`; a target begins with the first. [All kinds](../outputs.md)",
    ]
    kinds: dict[type[Any], list[str]] = {}
    for kind in KINDS.values():
        kinds.setdefault(wanted_config(kind.factory_function), []).append(kind.name)
    for config, names in kinds.items():
        shown = ", ".join(f"`{name}`" for name in names)
        if config is str:
            lines += ["", "## Text", "", f"A path or an address, without options: {shown}."]
            continue
        lines += ["", f"## `{config.__name__}`", "", f"For {shown}.", ""]
        lines += ["| option | type | meaning |", "|---|---|---|"]
        lines += [
            f"| `{name}` | `{_cell(kind)}` | {text} |" for name, kind, text in _options(config)
        ]
    return "\n".join(lines) + "\n"


def _options(config: type[Any]) -> Iterator[tuple[str, str, str]]:
    """The fields of a configuration, those of its own class first, with types and defaults."""
    for cls in config.__mro__[:-1]:
        if not cls.__module__.startswith("squall."):
            continue
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
        assert isinstance(tree, ast.ClassDef)
        texts = _strings_below(tree.body)
        for node in tree.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                kind = re.sub(
                    r"Annotated\[(.+), Secret\(.*\)\]", r"\1", ast.unparse(node.annotation)
                )
                value = "" if node.value is None else f" = {_default(node.value)}"
                name = node.target.id
                text = _cell(_line(texts[name])) if name in texts else ""
                secret = re.search(r"Secret\('(\w+)'\)", ast.unparse(node.annotation))
                if secret is not None:
                    text = f"{text} From `{secret[1]}` if not given.".strip()
                yield name, kind + value, text


def _default(value: ast.expr) -> str:
    if isinstance(value, ast.Call):
        # `field(default=..., repr=False)`
        value = next(each.value for each in value.keywords if each.arg == "default")
    return _quoted(value)


def rows_page() -> str:
    """The tables in which outputs store a run."""
    from squall.reporting.outputs.rows.model import SCHEMA, TABLES

    lines = [
        GENERATED,
        "",
        "# The tables of a run",
        "",
        f"Schema `{SCHEMA}`. Relational databases, Cassandra and BigQuery call them "
        "`squall_` and the name; [the page about them](../outputs-databases.md) says more. "
        "A name never changes; new columns are added at the end. `null` marks what may be missing.",
    ]
    for table in TABLES:
        lines += ["", f"## `{table.name}`", "", f"{_sentence(table.meaning)}", ""]
        lines += [f"Key: {', '.join(f'`{name}`' for name in table.key)}.", ""]
        lines += ["| column | type | meaning |", "|---|---|---|"]
        lines += [
            f"| `{column.name}` | {column.kind}{', null' if column.is_optional else ''} "
            f"| {_cell(column.meaning)} |"
            for column in table.columns
        ]
    return "\n".join(lines) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "api.md": api_page,
    "cli.md": cli_page,
    "outputs.md": outputs_page,
    "rows.md": rows_page,
}


if __name__ == "__main__":
    for page, make in PAGES.items():
        (HERE / page).write_text(make(), encoding="utf-8")
        print(f"wrote {HERE / page}", file=sys.stderr)
