"""Splits a workflow over processes, and limits it to what the machine allows.

Pure: users, iterations and planned starts are split exactly; their sums are the plan's.
"""

from __future__ import annotations

import msgspec

from squall.api.errors import ConfigError
from squall.engine.core_protocol import ShareSpec
from squall.engine.load.stripes import stripe_position
from squall.engine.load.user_split import split_iterations, split_users
from squall.stats.manifest import FileManifest, Profile, WorkflowManifest, WorkflowPart


def share_specs(
    workflow: WorkflowManifest,
    shares: int,
    *,
    seed: int,
    values: dict[str, bytes],
    received: dict[str, bytes],
    exports: list[str],
    place: tuple[int, int] = (0, 1),
    part: WorkflowPart | None = None,
) -> list[ShareSpec]:
    """Makes one spec per process; share k takes starts and users k, k + n, k + 2n ...

    `place` is the index of the workflow and the number of workflows: their user ids
    interleave. So do those of the datacenters, if this is the `part` of one of them.
    """
    number, count = place
    if part is not None:
        # An id says its datacenter by its remainder, so each datacenter chooses its own number of
        # shares, also a new one after a loss.
        number, count = number + count * part.index, count * len(part.weights)
    profile = workflow.profile
    users = _users_at_start(profile, shares)
    iterations = iterations_of_shares(profile, users)
    return [
        ShareSpec(
            workflow=workflow.name,
            share=share,
            shares=shares,
            profile=profile,
            users=users[share],
            users_max=max(len(range(share, profile.max_vus, shares)), users[share], 1),
            first_id=1 + number + count * share,
            id_step=count * shares,
            iterations=iterations[share],
            seed=seed,
            values=values,
            received=received,
            exports=exports,
            part=part,
        )
        for share in range(shares)
    ]


def iterations_of_shares(profile: Profile, users: list[int]) -> list[int]:
    """The iterations of each share, which has so many users."""
    if profile.iterations_per_vu:
        return [profile.iterations_per_vu * part for part in users]
    return split_iterations(profile.iterations, len(users))


def share_of_users(spec: ShareSpec, vus: int) -> int:
    """A share's part of another number of users, split like the planned ones."""
    model = spec.profile.model
    if spec.profile.is_open or model == "ramp":
        return len(range(spec.share, vus, spec.shares))
    parts = split_users(vus, spec.shares) if vus else []
    part = parts[spec.share] if spec.share < len(parts) else 0
    # No other share takes its tickets, so one user must stay, unless each user has its own.
    shared = model == "iterations" and not spec.profile.iterations_per_vu
    return max(part, 1) if shared else part


def user_number(spec: ShareSpec, place: int) -> int:
    """The number of a user over all shares, from 0; it decides which rows the user gets.

    `place` counts the users of the share. The numbers of planned users have no gaps, however uneven
    the shares are. Users beyond the plan, which an operator added, are numbered after them. The
    numbers are those of the whole workflow, also if several datacenters run it.
    """
    profile, part = spec.profile, spec.part
    if profile.is_open or profile.model == "ramp":
        number = spec.share + place * spec.shares
        if part is None:
            return number
        if not part.users_in_all:
            return stripe_position(part.weights, part.index, number)
        # The plan has no users here, so an operator added them.
        return part.users_in_all + part.index + number * len(part.weights)
    parts = split_users(profile.vus, spec.shares)
    own = parts[spec.share] if spec.share < len(parts) else 0
    if place < own:
        before = 0 if part is None else part.users_before
        return before + sum(parts[: spec.share]) + place
    beyond = spec.share + (place - own) * spec.shares
    if part is None:
        return profile.vus + beyond
    return part.users_in_all + part.index + beyond * len(part.weights)


def fit_descriptors(manifest: FileManifest, processes: int, descriptors: int) -> FileManifest:
    """Clips what may grow (open models) and refuses what cannot fit (closed ones)."""
    fitted: list[WorkflowManifest] = []
    for workflow in manifest.workflows:
        profile = workflow.profile
        most = descriptors * processes // max(workflow.connections_per_vu, 1)
        if profile.is_open and profile.max_vus > most:
            if profile.vus > most:
                raise ConfigError(_does_not_fit(workflow.name, profile.vus, most))
            workflow = msgspec.structs.replace(
                workflow,
                profile=msgspec.structs.replace(profile, max_vus=most),
                warnings=[
                    *workflow.warnings,
                    f"{workflow.name}: max_vus {profile.max_vus} clipped to {most}, "
                    "the number of descriptors this machine allows (ulimit -n)",
                ],
            )
        elif not profile.is_open and profile.max_vus > most:
            raise ConfigError(_does_not_fit(workflow.name, profile.max_vus, most))
        fitted.append(workflow)
    return msgspec.structs.replace(manifest, workflows=fitted)


def _does_not_fit(name: str, users: int, most: int) -> str:
    return (
        f"{name}: {users} users need more connections than this machine allows "
        f"({most} users fit); raise the limit (ulimit -n) or use fewer users"
    )


def _users_at_start(profile: Profile, shares: int) -> list[int]:
    if profile.is_open or profile.model == "ramp":
        return [len(range(share, profile.vus, shares)) for share in range(shares)]
    return split_users(profile.vus, shares)
