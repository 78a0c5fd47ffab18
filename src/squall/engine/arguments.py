"""Arguments of hooks that are made ready before the run: URLs, headers, files ...

A mistake is one line that names the file, the line and the argument.
"""

from __future__ import annotations

from squall.api.errors import ConfigError
from squall.clients.http import HTTPShared
from squall.engine.plan import WorkflowPlan
from squall.engine.users import Prepared


async def prepare_arguments(plan: WorkflowPlan, http: HTTPShared, shown: str) -> Prepared:
    """(hook, parameter) -> what its calls are given. `shown` is the file, or a URL."""
    prepared: Prepared = {}
    for hook in plan.hooks():
        for parameter in hook.parameters:
            if parameter.kind is None:
                continue
            try:
                value = await http.prepare(parameter.kind, parameter.default)
            except ConfigError as error:
                where = f"{plan.file}:{hook.line}  {plan.name}.{hook.name}"
                where = f"{where} {parameter.name}"
                if "://" in shown:
                    where = shown
                raise ConfigError(f"{where}: {error}") from None
            prepared[(hook.name, parameter.name)] = value
    return prepared
