"""Collects the values that a share provides to other workflows, after its users have left.

Runs once, after the load. A hook that fails or takes too long loses only its own value.
"""

from __future__ import annotations

import asyncio

from squall.engine.core_protocol import encode_value
from squall.engine.plan.workflow_plan import WorkflowPlan
from squall.engine.users.context import Context, HandOverRoom, HandOverTooLarge
from squall.engine.users.step_failures import StepFailures, reason_of
from squall.engine.users.virtual_user import END_ACTIONS_S, UserFactory


async def provided_values(
    plan: WorkflowPlan,
    factory: UserFactory,
    context: Context,
    failures: StepFailures,
    warnings: list[str],
) -> dict[str, bytes]:
    """Calls the hooks that provide values. One that gives none is counted as a hook that raised,
    and `warnings` names it."""
    provided: dict[str, bytes] = {}
    room = HandOverRoom()
    user = factory.make()
    user.instance.context = dict(context)
    for hook, _ in plan.providers:
        try:
            async with asyncio.timeout(END_ACTIONS_S):
                value = encode_value(await factory.call(hook, user))
                provided[hook.name] = room.take(value)
                failures.recorder.hook_ended(hook.name)
        except HandOverTooLarge as refusal:
            failures.hook_failed(hook.name, refusal)
            warnings.append(f"{plan.name}.{hook.name} gave no value: it {refusal}")
        except (Exception, SystemExit, KeyboardInterrupt) as failure:
            failures.hook_failed(hook.name, failure)
            warnings.append(f"{plan.name}.{hook.name} gave no value: {reason_of(failure)}")
    return provided
