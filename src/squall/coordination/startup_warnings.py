"""Logs warnings about options that are allowed but rarely intended, once after the start."""

from __future__ import annotations

from squall.coordination.events import CoordinatorDead
from squall.coordination.member_parts import MemberParts
from squall.coordination.options import Options


async def log_startup_warnings(parts: MemberParts, options: Options) -> None:
    """Runs as a task of the member; logs one line per warning."""
    if not options.epoch_fencing_enabled:
        parts.log.warning(
            "fencing_is_off",
            message="members obey orders of a deposed leader; use epoch_fencing_enabled=True",
        )
    if options.environment != "production":
        return
    if not options.auto_cleanup:
        parts.log.warning(
            "cleanup_is_off",
            message="records of dead members stay until cleanup_dead_coordinator() or"
            " `squall coord cleanup` removes them",
        )
    # The application can add handlers only after the start: give it time.
    await parts.clock.sleep(parts.timing.monitor_interval)
    if not parts.bus.has_listener(CoordinatorDead):
        parts.log.warning(
            "nobody_hears_of_deaths",
            message='add a handler: coordinator.on("coordinator:dead", ...)',
        )
