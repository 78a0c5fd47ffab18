"""Errors that fail a simulated run. Each message holds what is needed to find the cause."""

from __future__ import annotations

from squall.api.errors import SquallError


class SimulationError(SquallError):
    """Root of the verdicts on a simulated run."""


class OutsideWorldError(SimulationError):
    """Simulated code reached for a real socket, thread, process or file."""


class Deadlock(SimulationError):
    """Nothing can happen any more and the scenario has not ended."""


class Livelock(SimulationError):
    """Callbacks run without end and time stands still."""


class TimeLimit(SimulationError):
    """The scenario did not end within its simulated time."""


class NodeFailed(SimulationError):
    """A node's code raised what its scenario did not allow for."""


class CheckFailed(SimulationError):
    """A check of the scenario saw something that must never happen."""


class NotLive(SimulationError):
    """After the faults ended, what had to become true did not."""
