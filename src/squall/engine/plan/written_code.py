"""What the author's code says, read from its bytecode and source; nothing here runs it."""

from __future__ import annotations

import ast
import dis
import inspect
import linecache
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, cast

from squall.api.hooks import Hook, Step


def code_of(member: Any) -> CodeType | None:
    """The code of a function, found through hooks and the author's own decorators."""
    function = member.function if isinstance(member, (Hook, Step)) else member
    if isinstance(function, (FunctionType, staticmethod, classmethod)):
        return getattr(inspect.unwrap(cast(Any, function)), "__code__", None)
    return None


def def_line(function: Callable[..., Any]) -> int:
    """The line of `def`, below the decorators."""
    code = code_of(function)
    if code is None:
        return 0
    for line in range(code.co_firstlineno, code.co_firstlineno + 50):
        text = linecache.getline(code.co_filename, line).lstrip()
        if text.startswith(("def ", "async def ")):
            return line
    return code.co_firstlineno


def forgets_return(function: Callable[..., Any]) -> bool:
    """Whether a function does something and can neither return a value nor raise one of its own
    errors: its author forgot `return`. A body of `...` does nothing."""
    code = code_of(function)
    if code is None or _returns_value(code) or can_raise(function):
        return False
    names = {each.opname for each in dis.get_instructions(code)} - {"LOAD_CONST"}
    return any(name.startswith("LOAD_") for name in names)


def asserts_only(function: Callable[..., Any]) -> bool:
    """Whether a function never returns a value and judges by `assert` or `raise`."""
    code = code_of(function)
    return code is not None and not _returns_value(code) and can_raise(function)


def can_raise(function: Callable[..., Any]) -> bool:
    """Whether a function has an `assert` or `raise`."""
    code = code_of(function)
    return code is not None and any(
        each.opname == "RAISE_VARARGS" for each in dis.get_instructions(code)
    )


def _returns_value(code: CodeType) -> bool:
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR):
        return True
    before = None
    for each in dis.get_instructions(code):
        if each.opname == "RETURN_CONST" and each.argval is not None:
            return True
        if each.opname == "RETURN_VALUE":
            is_none = before is not None and before.opname == "LOAD_CONST" and before.argval is None
            # `return 1 if ok else None` jumps to the return behind None.
            if not is_none or each.is_jump_target:
                return True
        before = each
    return False


def names_in(code: CodeType) -> set[str]:
    """Attributes and globals that the code and the functions in it use."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= names_in(constant)
    return names


def strings_in(code: CodeType) -> set[str]:
    found: set[str] = set()
    for constant in code.co_consts:
        if isinstance(constant, str):
            found.add(constant)
        elif isinstance(constant, tuple):
            items = cast(tuple[object, ...], constant)
            found |= {item for item in items if isinstance(item, str)}
        elif isinstance(constant, CodeType):
            found |= strings_in(constant)
    return found


def value_of(expression: ast.expr, names: Any) -> Any:
    """What `Workflow` or `squall.Workflow` stands for among global names; None for other
    expressions."""
    if isinstance(expression, ast.Name):
        return names.get(expression.id)
    if isinstance(expression, ast.Attribute):
        return getattr(value_of(expression.value, names), expression.attr, None)
    return None
