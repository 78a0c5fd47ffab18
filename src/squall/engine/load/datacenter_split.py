"""Splits the load of a file over datacenters by weight.

Users and iterations are split by largest remainder: the sums are the plan's. Rates are scaled, so
the planned starts of all datacenters are those of the plan, or up to one more for each
datacenter. Every datacenter has all workflows, in the same layers:

- A workflow that is no test (set-up, clean-up), and one that provides values for others, has at
  least one user in every datacenter, because values are handed over within a datacenter.
- A test that has too few users or iterations for a datacenter does nothing there, for as long as
  its plan takes elsewhere if that is known.

Pure: the client, the gates and the datacenters compute the same from a plan and the weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from msgspec.structs import replace

from squall.engine.load.stripes import stripe_count
from squall.engine.load.user_split import split_by_weight
from squall.stats.manifest import FileManifest, Profile, Stage, WorkflowManifest, WorkflowPart

WEIGHTS_SUM_MAX = 10_000
"""Parts are exact to a hundredth of a percent; a round of `stripes` has so many places."""
DATACENTERS_MAX = 100
# A number of iterations has no planned length, so one that does nothing ends at once.
_NOTHING_S = 0.001


def whole_weights(weights: Sequence[float]) -> tuple[int, ...]:
    """The weights in whole numbers: (0.6, 0.4) becomes (3, 2)."""
    whole = sum(weights)
    if not weights or whole <= 0 or min(weights) <= 0 or not math.isfinite(whole):
        raise ValueError(f"cannot split by the weights {list(weights)}")
    exact = [Fraction(weight / whole).limit_denominator(WEIGHTS_SUM_MAX) for weight in weights]
    scale = math.lcm(*(each.denominator for each in exact))
    if sum(exact) == 1 and scale <= WEIGHTS_SUM_MAX:
        found = [int(each * scale) for each in exact]
    else:
        # Weights that share no small denominator, such as 1/7 and 1/1000.
        found = [max(round(weight / whole * (WEIGHTS_SUM_MAX // 2)), 1) for weight in weights]
    divisor = math.gcd(*found)
    return tuple(each // divisor for each in found)


def split_manifest(
    manifest: FileManifest, weights: tuple[int, ...]
) -> list[tuple[FileManifest, dict[str, WorkflowPart]]]:
    """The manifest of each datacenter, with the place of each of its workflows in the whole. Their
    thresholds are left out: they are judged once, over all datacenters."""
    workflows: list[list[WorkflowManifest]] = [[] for _ in weights]
    places: list[dict[str, WorkflowPart]] = [{} for _ in weights]
    for workflow in manifest.workflows:
        for index, (part, place) in enumerate(_split_workflow(workflow, weights)):
            workflows[index].append(part)
            places[index][workflow.name] = place
    return [
        (replace(manifest, workflows=own), place)
        for own, place in zip(workflows, places, strict=True)
    ]


def split_users_by_weight(vus: int, weights: Sequence[int]) -> list[int]:
    """The users of each datacenter if an operator sets the number of all of them."""
    return split_by_weight(vus, weights)


def split_rate(rate_per_s: float, weights: Sequence[int]) -> list[float]:
    whole = sum(weights)
    return [rate_per_s * weight / whole for weight in weights]


def _split_workflow(
    workflow: WorkflowManifest, weights: tuple[int, ...]
) -> list[tuple[WorkflowManifest, WorkflowPart]]:
    needed = not workflow.is_test or bool(workflow.provides)
    profiles = _split_profile(workflow.profile, weights, needed=needed)
    planned = [_planned_users(each) for each in profiles]
    made = [each.iterations for each in profiles]
    found: list[tuple[WorkflowManifest, WorkflowPart]] = []
    for index, profile in enumerate(profiles):
        place = WorkflowPart(
            index=index,
            weights=weights,
            users_before=sum(planned[:index]),
            users_in_all=sum(planned),
            iterations_before=sum(made[:index]),
        )
        rows = _once_rows(workflow, profile, place)
        found.append((replace(workflow, profile=profile, once_rows=rows, thresholds=[]), place))
    return found


def _split_profile(profile: Profile, weights: Sequence[int], *, needed: bool) -> list[Profile]:
    """`needed`: at least one user in every datacenter."""
    if profile.model in ("open", "open-ramp"):
        return _split_open(profile, weights)
    if profile.model == "ramp":
        return _split_ramp(profile, weights)
    users = split_by_weight(profile.vus, weights)
    if needed:
        users = [max(each, 1) for each in users]
    if profile.model == "iterations":
        return _split_iterations(profile, weights, users)
    return [
        replace(profile, vus=count, max_vus=count) if count else _idle(profile, profile.duration_s)
        for count in users
    ]


def _split_iterations(
    profile: Profile, weights: Sequence[int], users: Sequence[int]
) -> list[Profile]:
    each_vu = profile.iterations_per_vu
    if each_vu:
        made = [each_vu * count for count in users]
    else:
        # Only a datacenter with users can make some.
        able = [weight if count else 0 for weight, count in zip(weights, users, strict=True)]
        made = split_by_weight(profile.iterations, able)
    return [
        replace(profile, vus=count, max_vus=count, iterations=part)
        if part
        else _idle(profile, _NOTHING_S)
        for count, part in zip(users, made, strict=True)
    ]


def _split_ramp(profile: Profile, weights: Sequence[int]) -> list[Profile]:
    first = split_by_weight(profile.vus, weights)
    levels = [split_by_weight(int(stage.target), weights) for stage in profile.stages]
    parts: list[Profile] = []
    for index, vus in enumerate(first):
        stages = tuple(
            Stage(stage.duration_s, float(level[index]))
            for stage, level in zip(profile.stages, levels, strict=True)
        )
        peak = max([vus, *(int(stage.target) for stage in stages)])
        parts.append(replace(profile, vus=vus, max_vus=peak, stages=stages))
    return parts


def _split_open(profile: Profile, weights: Sequence[int]) -> list[Profile]:
    rates = split_rate(profile.rate_per_s, weights)
    targets = [split_rate(stage.target, weights) for stage in profile.stages]
    ready = split_by_weight(profile.vus, weights)
    most = split_by_weight(profile.max_vus, weights)
    return [
        replace(
            profile,
            rate_per_s=rate,
            # A model with a rate starts with a user, and may need more than its share of few.
            vus=max(ready[index], 1),
            max_vus=max(most[index], ready[index], 1),
            stages=tuple(
                Stage(stage.duration_s, target[index])
                for stage, target in zip(profile.stages, targets, strict=True)
            ),
        )
        for index, rate in enumerate(rates)
    ]


def _idle(profile: Profile, length_s: float) -> Profile:
    """No user for this long."""
    return Profile(
        model="ramp",
        vus=0,
        max_vus=0,
        duration_s=length_s,
        stages=(Stage(length_s, 0.0),),
        grace_s=profile.grace_s,
    )


def _planned_users(profile: Profile) -> int:
    """Users whose numbers are planned; those of ramps and open models are dealt out by stripes."""
    return 0 if profile.is_open or profile.model == "ramp" else profile.vus


def _once_rows(workflow: WorkflowManifest, profile: Profile, place: WorkflowPart) -> int:
    """The rows of its `take="once"` feeds that this datacenter has."""
    if not workflow.once_rows:
        return 0
    if profile.model == "iterations":
        left = max(workflow.once_rows - place.iterations_before, 0)
        return min(left, profile.iterations)
    return stripe_count(place.weights, place.index, workflow.once_rows)
