"""Faults that aim at the moment in which the primary declares an attempt lost.

Between that decision and its commit no session may grant the attempt a lease (R5). On a good disk
this takes milliseconds, and random faults do not let a worker return within them. Here the
commits of the managers are slow, and a worker is halted until the primary gives up one of its
attempts. Then it goes on, has one session and is paused again, so that it does not hear that the
attempt is lost. If that session granted the attempt, its core process makes load while the next
attempt does the same.

Only a core process that made no load when its lease ended can go on with a new one: it had not
begun yet, or its machine slept. Workers that prepare an attempt come first, and preparations are
slow.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence

from lab.sim.world import World
from squall.cluster.manager.director.policy import Director
from squall.cluster.manager.node import ManagerNode

LOOK_S = 0.02
SYNC_S = (0.3, 0.9)
"""The sync of a manager's disk: several times the session interval of 0.2 s, and far below the 2 s
after which a primary steps down."""
SESSION_WITHIN_S = 1.0
"""A worker that goes on has a session in this time, also if it has to connect again."""
ANSWER_S = 0.1
"""The answer to that session arrives within this time, and mostly also the next one, which starts
an attempt that became ready while its worker was paused."""
PREPARE_S = (0.4, 2.0)
"""The preparation of an attempt: several sessions, so that the faults see it."""
NEXT_S = (0.5, 3.0)
"""From one strike to the next: the commit of the loss, that of the next attempt, a part of its
preparation."""


def slow_commits(world: World, managers: Sequence[str], draw: random.Random) -> None:
    """Makes every sync of the managers slow, until the faults end."""
    for name in managers:
        world.nodes[name].disk.profile.sync_s = draw.uniform(*SYNC_S)


async def aim_at_losses(
    world: World, managers: Mapping[str, ManagerNode], lease_s: float, draw: random.Random
) -> None:
    """Strikes one worker after the other until it is cancelled; the end of all faults undoes the
    last strike."""
    while True:
        await asyncio.sleep(LOOK_S)
        director = _primary(world, managers)
        if director is None:
            continue
        preparing, loaded = _workers(world, director)
        if preparing:
            # Its core processes become ready while their worker is paused.
            victim, halt = draw.choice(preparing), world.pause
        elif loaded:
            victim, halt = draw.choice(loaded), draw.choice((world.pause, world.suspend))
        else:
            continue
        halt(victim)
        await _return_for_a_session(world, managers, victim, lease_s, draw)
        await asyncio.sleep(draw.uniform(*NEXT_S))


async def _return_for_a_session(
    world: World,
    managers: Mapping[str, ManagerNode],
    victim: str,
    lease_s: float,
    draw: random.Random,
) -> None:
    """Waits until the primary gives up an attempt of the victim, and lets the victim go on for one
    session."""

    def is_given_up() -> bool:
        director = _primary(world, managers)
        return director is not None and _gives_up(director, victim)

    def heard() -> float:
        director = _primary(world, managers)
        known = director.state.workers.get(victim) if director is not None else None
        return known.heard if known is not None else 0.0

    # The primary waits for 1.1 leases and a margin, and may pardon a silence because it was late
    # itself.
    given_up = await _within(2.0 * lease_s, is_given_up)
    last = heard()
    world.resume(victim)
    if not given_up:
        return
    world.count("workers that returned while they were given up")
    await _within(SESSION_WITHIN_S, lambda: heard() != last)
    await asyncio.sleep(draw.uniform(0.0, ANSWER_S))
    world.pause(victim)
    asyncio.get_running_loop().call_later(lease_s, world.resume, victim)


async def _within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Waits until the condition holds; False if the time is over first."""
    for _ in range(round(seconds / LOOK_S)):
        if condition():
            return True
        await asyncio.sleep(LOOK_S)
    return False


def _primary(world: World, managers: Mapping[str, ManagerNode]) -> Director | None:
    running = (node for name, node in managers.items() if world.nodes[name].runs)
    return next((node.director for node in running if node.director is not None), None)


def _workers(world: World, director: Director) -> tuple[list[str], list[str]]:
    """The workers that prepare an attempt of a workflow that runs, and those that make load. An
    attempt that is ready does not count: its start is on the way already."""
    preparing: list[str] = []
    loaded: list[str] = []
    state = director.state
    for node, known in state.workers.items():
        if not world.nodes[node].runs:
            continue
        for key, status in known.statuses.items():
            job = state.tables.jobs.get(key.job)
            workflow = job.workflow(key.workflow) if job is not None else None
            if status.phase == "preparing" and workflow is not None and workflow.running:
                preparing.append(node)
            elif status.phase == "running":
                loaded.append(node)
    return preparing, loaded


def _gives_up(director: Director, worker: str) -> bool:
    """The primary is declaring an attempt of the worker lost, and has not committed it."""
    state = director.state
    known = (state.known_attempt(key) for key in state.tables.live.get(worker, ()))
    return any(attempt is not None and attempt.losing for attempt in known)
