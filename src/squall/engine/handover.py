"""What a share leaves behind when its users are gone: exported context, provided values.

Runs once, after the load. A hook that fails or takes too long costs its own value only.
"""

from __future__ import annotations

import asyncio

from squall.engine.context import Context
from squall.engine.faults import reason_of
from squall.engine.plan import WorkflowPlan
from squall.engine.protocol import encode_value
from squall.engine.users import UserFactory

END_ACTIONS_S = 10.0
"""End actions, and whatever else of the author's runs after the load, get this long."""


async def provided_values(
    plan: WorkflowPlan, factory: UserFactory, context: Context, warnings: list[str]
) -> dict[str, bytes]:
    """The values of the hooks that provide; who gives none is named in `warnings`."""
    provided: dict[str, bytes] = {}
    user = factory.make()
    user.instance.context = dict(context)
    for hook, _ in plan.providers:
        try:
            async with asyncio.timeout(END_ACTIONS_S):
                provided[hook.name] = encode_value(await factory.call(hook, user))
        except (Exception, SystemExit, KeyboardInterrupt) as failure:
            warnings.append(f"{plan.name}.{hook.name} gave no value: {reason_of(failure)}")
    return provided


def unopened_note(workflow: str, users: int, error: str) -> tuple[str, str]:
    """What the verdict is told of users that could not start."""
    text = f"{users} user{'' if users == 1 else 's'} of {workflow} did not start: {error}"
    return "DEGRADED", text
