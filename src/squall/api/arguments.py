"""Argument types that are prepared once, before the clock starts.

Authors and type checkers see a `URL` as a string; the planner finds the class in the
annotation. A client turns the default value into its own `Prepared` subclass (resolved address,
encoded bytes). Hooks receive that object and pass it to the client unchanged. `str(prepared)`
returns the author's text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias


class Prepared:
    """A value encoded before the run; opaque to the author."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __str__(self) -> str:
        return str(self.value)


if TYPE_CHECKING:
    URL: TypeAlias = str | Prepared
    Headers: TypeAlias = Mapping[str, str] | Prepared
    Params: TypeAlias = Mapping[str, str | float | bool] | Prepared
    Cookies: TypeAlias = Mapping[str, str] | Prepared
    Data: TypeAlias = Mapping[str, Any] | Sequence[Any] | str | bytes | Prepared
    Form: TypeAlias = Mapping[str, str | float] | Prepared
    Auth: TypeAlias = tuple[str, str] | str | Prepared
    File: TypeAlias = (
        str | PathLike[str] | tuple[str, str | bytes] | tuple[str, str | bytes, str] | Prepared
    )
else:

    class URL(Prepared): ...

    class Headers(Prepared): ...

    class Params(Prepared): ...

    class Cookies(Prepared): ...

    class Data(Prepared): ...

    class Form(Prepared): ...

    class Auth(Prepared): ...

    class File(Prepared): ...


def argument_kinds() -> tuple[type[Prepared], ...]:
    """The run-time classes behind the aliases, for the planner and the clients."""
    names = ("URL", "Headers", "Params", "Cookies", "Data", "Form", "Auth", "File")
    module: dict[str, Any] = globals()
    return tuple(module[name] for name in names)
