"""Checks of runs in which membership is on: it gives advice to placement, and nothing else.

Every placement that a primary submits is compared with what its membership says at that moment. An
error inside membership only ends membership on its node, so the logs are searched for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from lab.sim.checks import check
from lab.sim.world import World
from squall.cluster.datacenter.commands import PlaceWorkflows
from squall.cluster.manager.node import ManagerNode
from squall.cluster.manager.primary.effects import DirectorEffect, Submit
from squall.cluster.manager.primary.volatile_state import VolatileState
from squall.runtime.log import MemorySink

LOOK_S = 0.01


class PlacementCheck:
    def __init__(self, world: World, managers: Mapping[str, ManagerNode]) -> None:
        self._world = world
        self._managers = managers
        self._watched: set[int] = set()
        # Not raised at once: a director takes an error of a placement for a fault of the job.
        self._found: list[str] = []

    async def run(self) -> None:
        """Watches every primary until it is cancelled."""
        while True:
            for node in self._managers.values():
                director = node.director
                if director is not None and id(director.state) not in self._watched:
                    self._watched.add(id(director.state))
                    self._watch(director.state)
            await asyncio.sleep(LOOK_S)

    def _watch(self, state: VolatileState) -> None:
        ask = state.ask

        def watched(effect: DirectorEffect) -> bool:
            if isinstance(effect, Submit) and isinstance(effect.command, PlaceWorkflows):
                self._placed(state, effect.command)
            return ask(effect)

        state.ask = watched

    def _placed(self, state: VolatileState, command: PlaceWorkflows) -> None:
        nodes = {core.node for placed in command.placements for core in placed.assignments}
        self._world.count("placements")
        doubted = [node for node in nodes if state.is_doubted(state.tables.workers[node])]
        self._found += [f"{node} is suspected and got {command.job}" for node in doubted]

    def end(self, sinks: Sequence[MemorySink]) -> None:
        """Adds what the logs say of membership to the tally of the run."""
        check(not self._found, "; ".join(self._found))
        for sink in sinks:
            for record in sink.records:
                check(record.event != "membership_failed", f"membership failed: {record.fields}")
                if record.event.startswith("member"):
                    self._world.count(record.event)
