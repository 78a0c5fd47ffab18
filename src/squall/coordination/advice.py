"""What a running member is warned about, once after its start: choices that are allowed and
rarely meant.

Handlers can only be added to a member that runs, so one is waited for before it is missed.
"""

from __future__ import annotations

from squall.coordination.assembly import Assembly
from squall.coordination.events import CoordinatorDead
from squall.coordination.options import Options


async def advise(parts: Assembly, options: Options) -> None:
    """Runs as a task of the member, and says all in one line each."""
    if not options.epoch_fencing_enabled:
        parts.log.warning(
            "fencing_is_off",
            message="orders of a deposed coordinator are obeyed; epoch_fencing_enabled=True"
            " is right",
        )
    if options.environment != "production":
        return
    if not options.auto_cleanup:
        parts.log.warning(
            "cleanup_is_off",
            message="what dead members leave stays until cleanup_dead_coordinator() or"
            " `squall coord cleanup`",
        )
    await parts.clock.sleep(parts.timing.monitor_interval)
    if not parts.bus.is_heard(CoordinatorDead):
        parts.log.warning(
            "nobody_hears_of_deaths",
            message='add a handler: coordinator.on("coordinator:dead", ...)',
        )
