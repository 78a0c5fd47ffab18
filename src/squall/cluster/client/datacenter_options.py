"""Reads which datacenters a run goes to, and in which parts.

    --dc eu=60%,us=40%    these datacenters, in these parts; a gate takes the job
    --dc eu,us            the same in equal parts
    --dc any:2            two of the gate's choice
    --dc-fallback         a part may move to another datacenter; --dc-fallback ap: only to ap
    --on-dc-loss drop     a part that has started is given up if its datacenter cannot be reached
    --to eu=HOST:PORT,us=HOST:PORT --split eu=60%,us=40%    without a gate: the client splits

Pure. Every mistake is one line that names the flag.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Literal

from squall.api.errors import UsageError
from squall.cluster.protocol.submission import Targets
from squall.engine.load.datacenter_split import DATACENTERS_MAX

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
NAME_RULE = (
    "a name has 1 to 63 letters, digits, dots, dashes or underscores "
    "and begins with a letter or digit"
)
_ANY = re.compile(r"any:(.*)")
# Parts such as 33.33 % add up to 99.99 %.
_SLACK_PERCENT = Decimal("0.05")

Weights = tuple[tuple[str, float], ...]
"""The datacenters with their parts, which add up to 1."""


def targets_of(
    dc: str | None,
    fallback: str | None,
    on_loss: Literal["wait", "drop"] | None = None,
    *,
    flags: tuple[str, str] = ("--dc", "--dc-fallback"),
) -> Targets | None:
    """None if nothing is given. `fallback` "any" stands for the flag without names. `flags` name
    the first two in messages."""
    if not dc and fallback is None and on_loss is None:
        return None
    may_move = False if fallback is None else _fallback(fallback, flags[1])
    lost = on_loss or "wait"
    if not dc:
        return Targets(fallback=may_move, on_loss=lost)
    chosen = _ANY.fullmatch(dc.strip())
    if chosen is None:
        return Targets(weights=weights_of(dc, flags[0]), fallback=may_move, on_loss=lost)
    text = chosen.group(1)
    if not text.isdecimal() or not 1 <= int(text) <= DATACENTERS_MAX:
        raise UsageError(f"{flags[0]} {dc}: write how many datacenters, such as any:2")
    return Targets(count=int(text), fallback=may_move, on_loss=lost)


def weights_of(text: str, flag: str) -> Weights:
    """`eu=60%,us=40%`, or `eu,us` for equal parts."""
    words = [word.strip() for word in text.split(",")]
    names: list[str] = []
    parts: list[Decimal] = []
    for word in words:
        name, equals, part = word.partition("=")
        names.append(_name(name.strip(), flag, text))
        if equals:
            parts.append(_percent(part.strip(), name, flag))
    _refuse_twice(names, flag, text)
    if len(names) > DATACENTERS_MAX:
        raise UsageError(f"{flag}: {len(names)} datacenters; at most {DATACENTERS_MAX} are allowed")
    if not parts:
        return tuple((name, 1.0 / len(names)) for name in names)
    if len(parts) < len(names):
        raise UsageError(f"{flag} {text}: give every datacenter a part, or none for equal parts")
    whole = sum(parts)
    if abs(whole - 100) > _SLACK_PERCENT:
        raise UsageError(f"{flag} {text}: the parts add up to {whole} %, not to 100 %")
    return tuple((name, float(part / whole)) for name, part in zip(names, parts, strict=True))


def addresses_of(to: str) -> dict[str, str] | None:
    """The managers of each datacenter of `--to eu=HOST:PORT,us=HOST:PORT`, joined by commas; None
    if `to` names those of one cluster. Several managers of a datacenter are joined by ";"."""
    words = [word.strip() for word in to.split(",") if word.strip()]
    named = [word for word in words if "=" in word]
    if not named:
        return None
    if len(named) < len(words):
        other = next(word for word in words if "=" not in word)
        raise UsageError(
            f"--to {to}: {other} has no datacenter; write eu=HOST:PORT,us=HOST:PORT "
            'and join the managers of one datacenter with ";"'
        )
    found: dict[str, str] = {}
    for word in named:
        name, _, managers = word.partition("=")
        name = _name(name.strip(), "--to", to)
        if name in found:
            raise UsageError(f"--to {to}: {name} is named twice; join its managers with ;")
        found[name] = ",".join(each.strip() for each in managers.split(";") if each.strip())
        if not found[name]:
            raise UsageError(f"--to {to}: {name} has no address; write {name}=HOST:PORT")
    return found


def split_of(split: str | None, names: Sequence[str]) -> Weights:
    """The parts of the datacenters that `--to` names, in its order; equal without `--split`."""
    if split is None:
        return tuple((name, 1.0 / len(names)) for name in names)
    weights = dict(weights_of(split, "--split"))
    for name in weights:
        if name not in names:
            raise UsageError(
                f"--split {split}: no datacenter {name}; --to names {', '.join(names)}"
            )
    for name in names:
        if name not in weights:
            raise UsageError(f"--split {split}: {name} of --to has no part; give it one")
    return tuple((name, weights[name]) for name in names)


def _fallback(text: str, flag: str) -> tuple[str, ...] | bool:
    if text == "any":
        return True
    names = [_name(word.strip(), flag, text) for word in text.split(",")]
    _refuse_twice(names, flag, text)
    return tuple(names)


def _name(name: str, flag: str, text: str) -> str:
    if not NAME.fullmatch(name):
        raise UsageError(f"{flag} {text}: {name!r} is no name of a datacenter: {NAME_RULE}")
    return name


def _refuse_twice(names: Sequence[str], flag: str, text: str) -> None:
    for place, name in enumerate(names):
        if name in names[:place]:
            raise UsageError(f"{flag} {text}: {name} is named twice")


def _percent(text: str, name: str, flag: str) -> Decimal:
    try:
        value = Decimal(text.removesuffix("%").strip())
    except InvalidOperation:
        value = Decimal(0)
    if not text.endswith("%") or not value.is_finite() or not 0 < value <= 100:
        raise UsageError(f"{flag} {name}={text}: write its part in percent, such as {name}=60%")
    return value
