"""Decides the load profile of one workflow from its attributes and the command line.

The rules:

- `rate`, `stages` and `iterations` each choose a model; two of them are a contradiction.
- Flags replace the model; what they leave open comes from the file. `-r`, `-s`, `-i`
  choose as the attributes do. `-u` chooses users (closed), except that over `iterations`
  it only says how many users share them. `-d` by itself chooses nothing: it is the length
  of whatever runs.
- A workflow without a measured step runs once and takes no flags.

Pure: it reads nothing from the machine. `share_specs.fit_descriptors` clips `max_vus` to the
descriptor limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

from msgspec.structs import replace

from squall.api.errors import ConfigError
from squall.api.quantities import (
    format_duration,
    format_rate,
    parse_count,
    parse_duration,
    parse_iterations,
    parse_rate,
    parse_span,
    parse_stage,
    wrong,
)
from squall.engine.run_options import ProfileFlags
from squall.stats.manifest import Profile, Stage

DEFAULT_VUS = 1
DEFAULT_DURATION_S = 60.0
DEFAULT_GRACE_S = 10.0
# A number of iterations without a duration runs to its end. The limit only keeps a run that makes
# no progress from staying for ever; it is longer than anyone waits for a number of iterations.
ITERATIONS_LIMIT_S = 24 * 3600.0
# Users an open model may grow to when the author does not say: enough for iterations of
# up to ten seconds, and never so few that a slow first connect looks like saturation.
_OPEN_ITERATION_S = 10
_OPEN_LEAST_VUS = 100

_FLAG = {"vus": "-u", "duration": "-d", "iterations": "-i", "rate": "-r", "stages": "-s"}
_CHOOSERS = ("rate", "stages", "iterations")


class _Given(NamedTuple):
    value: Any
    name: str
    """As the user wrote it: `rate` in the file, `-r` on the command line."""


_Choice = Literal["closed", "rate", "stages", "iterations"]


def resolve_profile(
    attributes: Mapping[str, Any], flags: ProfileFlags, *, is_test: bool
) -> Profile:
    """Returns the profile to run. In `attributes`, None counts as not set."""
    in_file = {k: _Given(v, k) for k, v in attributes.items() if v is not None}
    if not is_test:
        return _once(in_file)
    on_line = {
        name: _Given(value, flag)
        for name, flag in _FLAG.items()
        if (value := getattr(flags, name)) is not None and value != ()
    }
    choice, from_flags = _choose(in_file, on_line)
    given = _combine(choice, in_file, on_line, from_flags)
    make = {"rate": _open, "stages": _ramp, "iterations": _iterations, "closed": _closed}[choice]
    return _delayed(make(given), given)


def describe(profile: Profile) -> str:
    """One phrase for the run header: `50 users for 10s`, `after 30s: open 500/s for 5m`."""
    if profile.start_after_s:
        delay = format_duration(profile.start_after_s, compact=True)
        return f"after {delay}: {describe(_undelayed(profile))}"
    length = format_duration(profile.duration_s, compact=True)
    users = _users(profile.vus)
    if profile.model == "once":
        return "once" if profile.vus == 1 else f"once by each of {users}"
    if profile.model == "iterations":
        count = profile.iterations_per_vu or profile.iterations
        users = f"each of {users}" if profile.iterations_per_vu else users
        return f"{count} iteration{'' if count == 1 else 's'} by {users}, at most {length}"
    if profile.model == "open":
        return f"open {format_rate(profile.rate_per_s)} for {length}"
    if profile.model == "ramp":
        return f"ramp {_path(profile.vus, profile, '{:.0f}'.format)} over {length}"
    if profile.model == "open-ramp":
        return f"open ramp {_path(0.0, profile, format_rate)} over {length}"
    return f"{users} for {length}"


def _choose(in_file: Mapping[str, _Given], on_line: Mapping[str, _Given]) -> tuple[_Choice, bool]:
    """Which model, and whether the flags chose it."""
    if (chosen := _only_chooser(on_line)) is not None:
        return chosen, True
    if "vus" in on_line and ("duration" in on_line or "iterations" not in in_file):
        return "closed", True
    return _only_chooser(in_file) or "closed", False


def _only_chooser(given: Mapping[str, _Given]) -> _Choice | None:
    found = [name for name in _CHOOSERS if name in given]
    if len(found) > 1:
        first, second = given[found[0]], given[found[1]]
        raise _contradiction(first, second, "each is a load model of its own; keep one of them")
    if not found:
        return None
    return "rate" if found[0] == "rate" else "stages" if found[0] == "stages" else "iterations"


def _combine(
    choice: _Choice,
    in_file: Mapping[str, _Given],
    on_line: Mapping[str, _Given],
    from_flags: bool,
) -> dict[str, _Given]:
    """One set of values: flags first, then the file, without the models not chosen."""
    given = {**in_file, **on_line}
    if choice == "stages":
        _check_stages_length(given, in_file, on_line, from_flags)
        given.pop("duration", None)
    elif "duration" not in given and "stages" in in_file:
        # The file says how long through its stages; the flags left that open.
        given["duration"] = _Given(_length_s(_parse_stages(in_file["stages"])[0]), "stages")
    for name in _CHOOSERS:
        if name != choice:
            given.pop(name, None)
    is_open = choice == "rate" or (choice == "stages" and _parse_stages(given["stages"])[1])
    for name, belongs, why in (
        ("pacing", not is_open, "the rate already says when iterations start"),
        ("max_vus", is_open, "max_vus is for open models, where the rate decides how many run"),
    ):
        if name in given and not belongs:
            if not from_flags:
                other = given.get(choice) or given.get("vus") or _Given(None, "a closed model")
                raise _contradiction(given[name], other, why)
            del given[name]
    return given


def _check_stages_length(
    given: Mapping[str, _Given],
    in_file: Mapping[str, _Given],
    on_line: Mapping[str, _Given],
    from_flags: bool,
) -> None:
    duration = on_line.get("duration") if from_flags else given.get("duration")
    if duration is None:
        return
    stages, _ = _parse_stages(given["stages"])
    total_s = _length_s(stages)
    if parse_duration(duration.value, duration.name) == total_s:
        return
    hint = f"the stages have their own durations, {format_duration(total_s, compact=True)} in all"
    if "duration" in on_line and "stages" in in_file:
        hint += "; give -u as well for a fixed number of users, or new stages with -s"
    raise _contradiction(duration, given["stages"], hint)


def _once(in_file: Mapping[str, _Given]) -> Profile:
    for name in _CHOOSERS:
        if name in in_file:
            raise ConfigError(
                f"{name} on a workflow that measures nothing: it runs once; "
                f"remove {name}, or give a step a response as its return type"
            )
    vus = _vus(in_file)
    return Profile(
        model="once",
        vus=vus,
        max_vus=vus,
        duration_s=_duration_s(in_file),
        grace_s=_grace_s(in_file),
    )


def _closed(given: Mapping[str, _Given]) -> Profile:
    vus = _vus(given)
    return Profile(
        model="closed",
        vus=vus,
        max_vus=vus,
        duration_s=_duration_s(given),
        think_s=_think_s(given),
        pacing_s=_pacing_s(given),
        grace_s=_grace_s(given),
    )


def _iterations(given: Mapping[str, _Given]) -> Profile:
    vus = _vus(given)
    count, per_user = parse_iterations(given["iterations"].value, given["iterations"].name)
    return Profile(
        model="iterations",
        vus=vus,
        max_vus=vus,
        duration_s=_duration_s(given, default_s=ITERATIONS_LIMIT_S),
        iterations=count * vus if per_user else count,
        iterations_per_vu=count if per_user else 0,
        think_s=_think_s(given),
        pacing_s=_pacing_s(given),
        grace_s=_grace_s(given),
    )


def _open(given: Mapping[str, _Given]) -> Profile:
    rate_per_s = parse_rate(given["rate"].value, given["rate"].name)
    vus = _vus(given)
    return Profile(
        model="open",
        vus=vus,
        max_vus=_max_vus(given, vus, rate_per_s),
        duration_s=_duration_s(given),
        rate_per_s=rate_per_s,
        think_s=_think_s(given),
        grace_s=_grace_s(given),
    )


def _ramp(given: Mapping[str, _Given]) -> Profile:
    stages, is_rate = _parse_stages(given["stages"])
    peak = max(stage.target for stage in stages)
    vus = _vus(given, default=DEFAULT_VUS if is_rate else 0, least=1 if is_rate else 0)
    if peak == 0 and (is_rate or vus == 0):
        raise ConfigError(f"{given['stages'].name} never rise above 0; give one a target")
    return Profile(
        model="open-ramp" if is_rate else "ramp",
        vus=vus,
        max_vus=_max_vus(given, vus, peak) if is_rate else max(vus, int(peak)),
        duration_s=_length_s(stages),
        stages=stages,
        think_s=_think_s(given),
        pacing_s=None if is_rate else _pacing_s(given),
        grace_s=_grace_s(given),
    )


def parse_stages(value: Any, what: str) -> tuple[tuple[Stage, ...], bool]:
    """The stages, and whether their targets are rates. One text is one stage."""
    texts: list[str] = [value] if isinstance(value, str) else []
    if isinstance(value, list | tuple):
        texts = list(cast("Sequence[str]", value))
    if not texts:
        raise wrong(
            what, cast(object, value), "is no list of stages", 'write one, such as ["30s:100"]'
        )
    stages: list[Stage] = []
    users = rates = ""
    for text in texts:
        duration_s, target, is_rate = parse_stage(text, what)
        stages.append(Stage(duration_s=duration_s, target=target))
        if is_rate:
            rates = rates or text
        else:
            users = users or text
    if users and rates:
        raise ConfigError(
            f'{what} mix units: "{users}" counts users and "{rates}" starts per time; '
            "use one unit in all stages"
        )
    if not any(stage.duration_s for stage in stages):
        raise ConfigError(f"{what} take no time; give one a duration, such as 30s")
    return tuple(stages), bool(rates)


def _delayed(profile: Profile, given: Mapping[str, _Given]) -> Profile:
    """The same load later: stages that begin with a time of nothing."""
    delay = given.get("start_after")
    delay_s = 0.0 if delay is None else parse_duration(delay.value, delay.name, zero_ok=True)
    if delay is None or not delay_s:
        return profile
    if profile.model == "iterations":
        raise _contradiction(delay, given["iterations"], "only a load over time can start later")
    stages, vus = profile.stages, profile.vus
    if profile.model == "open":
        stages = (Stage(0.0, profile.rate_per_s), Stage(profile.duration_s, profile.rate_per_s))
    elif profile.model in ("closed", "ramp"):
        rest = stages or (Stage(profile.duration_s, vus),)
        # A jump to the users that the ramp begins with.
        stages, vus = (Stage(0.0, vus), *rest) if vus else rest, 0
    return replace(
        profile,
        model="open-ramp" if profile.is_open else "ramp",
        vus=vus,
        rate_per_s=0.0,
        stages=(Stage(delay_s, 0.0), *stages),
        duration_s=profile.duration_s + delay_s,
        start_after_s=delay_s,
    )


def _undelayed(profile: Profile) -> Profile:
    """The load that `_delayed` made later."""
    first, *rest = profile.stages[1:]
    length_s = profile.duration_s - profile.start_after_s
    later = replace(profile, start_after_s=0.0, duration_s=length_s, stages=(first, *rest))
    if first.duration_s == 0 and [stage.target for stage in rest] == [first.target]:
        if profile.is_open:
            return replace(later, model="open", rate_per_s=first.target, stages=())
        return replace(later, model="closed", vus=int(first.target), stages=())
    if first.duration_s == 0 and not profile.is_open:
        return replace(later, vus=int(first.target), stages=tuple(rest))
    return later


def _parse_stages(given: _Given) -> tuple[tuple[Stage, ...], bool]:
    return parse_stages(given.value, given.name)


def _length_s(stages: Sequence[Stage]) -> float:
    return math.fsum(stage.duration_s for stage in stages)


def _vus(given: Mapping[str, _Given], default: int = DEFAULT_VUS, least: int = 1) -> int:
    if "vus" not in given:
        return default
    return parse_count(given["vus"].value, given["vus"].name, least=least)


def _max_vus(given: Mapping[str, _Given], vus: int, peak_per_s: float) -> int:
    if "max_vus" not in given:
        # A rate such as 0.7/s times 10 is 7.000000000000001 in floats, hence the rounding.
        enough = math.ceil(round(_OPEN_ITERATION_S * peak_per_s, 6))
        return max(_OPEN_LEAST_VUS, enough, vus)
    max_vus = parse_count(given["max_vus"].value, given["max_vus"].name)
    if max_vus < vus and "vus" in given:
        why = f"{vus} users cannot be ready when at most {max_vus} may exist"
        raise _contradiction(given["vus"], given["max_vus"], why)
    return max_vus


def _duration_s(given: Mapping[str, _Given], default_s: float = DEFAULT_DURATION_S) -> float:
    if "duration" not in given:
        return default_s
    return parse_duration(given["duration"].value, given["duration"].name)


def _think_s(given: Mapping[str, _Given]) -> tuple[float, float] | None:
    return parse_span(given["think"].value, "think") if "think" in given else None


def _pacing_s(given: Mapping[str, _Given]) -> float | None:
    return parse_duration(given["pacing"].value, "pacing") if "pacing" in given else None


def _grace_s(given: Mapping[str, _Given]) -> float:
    if "grace" not in given:
        return DEFAULT_GRACE_S
    return parse_duration(given["grace"].value, "grace", zero_ok=True)


def _contradiction(first: _Given, second: _Given, why: str) -> ConfigError:
    return ConfigError(f"{first.name} and {second.name} contradict each other: {why}")


def _users(count: int) -> str:
    return f"{count} user" if count == 1 else f"{count} users"


def _path(start: float, profile: Profile, text: Callable[[float], str]) -> str:
    points = [start, *(stage.target for stage in profile.stages)]
    turns = [point for i, point in enumerate(points) if i == 0 or point != points[i - 1]]
    return " -> ".join(map(text, turns))
