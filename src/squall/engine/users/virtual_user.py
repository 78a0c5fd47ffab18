"""Makes, opens and closes virtual users.

States of a user: opening (resources, start actions) -> ready -> looping -> closing ->
gone. A user whose start action fails never loops; the share counts it.
"""

from __future__ import annotations

import asyncio
import heapq
import inspect
import os
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from types import CoroutineType
from typing import Any

from squall.api.arguments import argument_kinds
from squall.api.errors import CallError, ConfigError
from squall.api.feeds import FeedExhausted
from squall.api.protocols.clients import Clients
from squall.api.resources import Resource
from squall.api.workflow import VU, Workflow
from squall.clients.http import HTTPClient, HTTPShared
from squall.clients.http.origin import Origin
from squall.clients.http.url import PreparedURL
from squall.clients.registry import CLIENTS, client_class, http_client_class, make_client
from squall.engine.core_protocol import ShareSpec
from squall.engine.measure.recorder import Recorder
from squall.engine.plan.annotations import is_optional
from squall.engine.plan.author_file import author_place
from squall.engine.plan.workflow_plan import HookPlan, WorkflowPlan, mentions
from squall.engine.users.context import Context, fresh_maker

PROTOBUF_KIND = next(kind for kind in argument_kinds() if kind.__name__ == "Protobuf")

# Limit for end actions, and for any other code of the author that runs after the load.
END_ACTIONS_S = 10.0

# With more users in a share, they connect before the load begins: their connects, of which
# only so many are made at a time, would take much of its first seconds.
EARLY_MIN = 256
# How long such a user waits for its connection. A target that does not answer is left to the
# requests, which report it.
_CONNECT_S = 5.0

# (hook, parameter) -> the value that the hook's calls receive.
Prepared = dict[tuple[str, str], Any]


async def prepare_arguments(plan: WorkflowPlan, http: HTTPShared, shown: str) -> Prepared:
    """Encodes the arguments of all hooks (URLs, headers, files ...) before the run.

    `shown` is the file, or the URL of a run without one. A mistake raises a `ConfigError`
    of one line that names the file, the line and the argument.
    """
    prepared: Prepared = {}
    await http.prepare_proxy()
    http.protos = tuple(plan.protos.values())
    _check_installed(plan)
    for hook in plan.hooks():
        for parameter in hook.parameters:
            if parameter.kind is None:
                continue
            try:
                value = None
                if parameter.default is not None or not is_optional(parameter.annotation):
                    value = await http.prepare(parameter.kind, parameter.default)
            except ConfigError as error:
                where = f"{plan.file}:{hook.line}  {plan.name}.{hook.name} {parameter.name}"
                if "://" in shown:
                    where = shown
                raise ConfigError(f"{where}: {error}") from None
            prepared[(hook.name, parameter.name)] = value
    _check_messages(plan, prepared, http)
    return prepared


def _check_messages(plan: WorkflowPlan, prepared: Prepared, http: HTTPShared) -> None:
    """Encodes the gRPC messages of hooks that name one method, so that a field which does not exist
    is found before the run."""
    for hook in plan.hooks():
        names = [each.name for each in hook.parameters if each.kind is PROTOBUF_KIND]
        given = [prepared.get((hook.name, each.name)) for each in hook.parameters]
        urls = [each for each in given if isinstance(each, PreparedURL)]
        if not names or len(urls) != 1:
            continue
        from squall.clients.grpc.methods import encoded, find_method

        method = find_method(http.protos, urls[0].target.decode())
        for name in names:
            message = prepared[(hook.name, name)]
            try:
                if method is not None and message is not None:
                    encoded(message.value, method, "")
            except CallError as error:
                where = f"{plan.file}:{hook.line}  {plan.name}.{hook.name} {name}"
                raise ConfigError(f"{where}: {error.reason}") from None


def _check_installed(plan: WorkflowPlan) -> None:
    """Loads the clients that the file uses; one that needs a package which is missing raises a
    `ConfigError` before the run."""
    for protocol in _used(plan):
        with _named(plan, protocol):
            client_class(protocol)


async def start_clients(plan: WorkflowPlan, http: HTTPShared, spec: ShareSpec) -> None:
    """Starts what clients need before the run, such as a browser. Raises a `ConfigError` if it is
    missing, or too large for this machine."""
    users = spec.users if spec.profile.is_open else spec.users_max
    for protocol in _used(plan):
        client = client_class(protocol)
        with _named(plan, protocol):
            if hasattr(client, "check"):
                # The shares of this machine, as far as a process of it knows.
                client.check(users, min(spec.shares, os.cpu_count() or 1))
            if hasattr(client, "start"):
                await client.start(http)


def _used(plan: WorkflowPlan) -> list[str]:
    """The clients that a workflow uses, beside that of HTTP/1."""
    measured = {step.protocol for step in plan.steps}
    return [name for name in CLIENTS if name in measured or mentions(plan, name)]


@contextmanager
def _named(plan: WorkflowPlan, protocol: str) -> Generator[None]:
    """Adds to an error where the file uses the client."""
    try:
        yield
    except ConfigError as error:
        steps = [step for step in plan.steps if step.protocol == protocol]
        line = f":{steps[0].line}" if steps else ""
        raise ConfigError(f"{plan.file}{line}  {plan.name}: {error}") from None


def first_origin(plan: WorkflowPlan, prepared: Prepared) -> Origin | None:
    """The server of the first HTTP/1 request of every iteration; None if the plan does not say."""
    first = plan.layers[0] if plan.layers else []
    if any(step.protocol != "http" for step in first):
        return None
    values = [prepared.get((step.name, each.name)) for step in first for each in step.parameters]
    origins = {value.origin for value in values if isinstance(value, PreparedURL)}
    return origins.pop() if len(origins) == 1 else None


class User:
    """An instance of the author's class, and what the engine keeps about it."""

    __slots__ = ("fresh", "http", "instance", "is_leaving", "opened", "place", "task", "vu")

    def __init__(self, instance: Workflow, vu: VU, http: HTTPClient, place: int) -> None:
        self.instance = instance
        # Its place among the users of the share; None once another user may have it.
        self.place: int | None = place
        self.vu = vu
        self.http = http
        self.fresh: Callable[[], Context] = dict
        self.opened: tuple[tuple[Resource[Any], Any], ...] = ()
        self.task: asyncio.Task[None] | None = None
        # Its loop is over; it may still run end actions.
        self.is_leaving = False


async def end_users(users: Iterable[User], grace_s: float) -> str:
    """Gives running iterations their grace time, then cancels them. Returns "", or what to say of
    users that ignored it: their iterations have no end, and the run waited for them in vain."""
    tasks = {user.task: user for user in users if user.task is not None}
    if not tasks:
        return ""
    await asyncio.wait(tasks, timeout=grace_s)
    cancelled = [task for task, user in tasks.items() if not user.is_leaving and task.cancel()]
    # A user that is leaving runs end actions, which have a limit of their own.
    _, running = await asyncio.wait(tasks, timeout=END_ACTIONS_S + 1.0)
    deaf = [task for task in cancelled if task in running]
    if not deaf:
        return ""
    # Without their number: the processes of a run say the same, and it is printed once.
    place = next((line for task in deaf if (line := _awaiting_line(task))), "")
    at = f" at {place}" if place else ""
    advice = "catch Exception there, or raise CancelledError again"
    return f"users ignored their cancellation{at}; {advice}"


def _awaiting_line(task: asyncio.Task[None]) -> str:
    """`shop.py:31`: the author's deepest line that the task waits in, or ""."""
    place, awaited = "", task.get_coro()
    while isinstance(awaited, CoroutineType):
        if (frame := awaited.cr_frame) is not None:
            place = author_place(frame.f_code.co_filename, frame.f_lineno) or place
        awaited = awaited.cr_await
    return place


class UserFactory:
    """Makes, opens and closes the users of one share."""

    def __init__(
        self,
        plan: WorkflowPlan,
        prepared: Prepared,
        shared: HTTPShared,
        recorder: Recorder,
        *,
        share: int,
        shares: int,
        seed: int,
        first_id: int,
        id_step: int,
        context: Context,
        rows: dict[str, Callable[[int], Any]],
        first_user: int = 0,
        connects: bool = False,
    ) -> None:
        """`connects`: users open the connection of their first request before they are ready."""
        self._plan = plan
        self._prepared = prepared
        self._shared = shared
        self._recorder = recorder
        self._share = share
        self._shares = shares
        self._seed = seed
        self._first_id = first_id
        self._id_step = id_step
        self._fresh = fresh_maker(context)
        self._rows = rows
        self._made = first_user
        # Places are taken from the lowest, so that a user that replaces another gets its row.
        self._places = 0
        self._free_places: list[int] = []
        self._process_resources: dict[str, Any] = {}
        self._client_class = http_client_class(shared)
        # Only these connections outlive an iteration and belong to one user.
        self._connects = connects and shared.connections == "vu" and not shared.negotiates

    async def open_process(self) -> None:
        """Opens the resources that all users of the process share."""
        for name, resource in self._plan.resources.items():
            if resource.per == "process":
                self._process_resources[name] = await resource.open()

    async def close_process(self) -> None:
        for name, opened in self._process_resources.items():
            await _closed(self._plan.resources[name], opened)
        self._process_resources.clear()

    def make(self) -> User:
        """A new user; its id is unique over the whole test."""
        index = self._made
        self._made += 1
        instance = self._plan.workflow()
        vu = VU(self._first_id + index * self._id_step, self._seed)
        http = self._client_class(self._shared, self._share + index * self._shares)
        instance.vu = vu
        instance.client = Clients(http, make_client)
        instance.context = self._fresh()
        instance._sink = self._recorder  # pyright: ignore[reportPrivateUsage]
        instance.__dict__.update(self._process_resources)
        if self._free_places:
            place = heapq.heappop(self._free_places)
        else:
            place, self._places = self._places, self._places + 1
        return User(instance, vu, http, place)

    def free_place(self, user: User) -> None:
        """Lets the next user have the place of one that leaves. May be called more than once."""
        if user.place is not None:
            heapq.heappush(self._free_places, user.place)
            user.place = None

    async def open(self, user: User) -> None:
        """Rows and resources of its own, then the start actions, in the file's order; then its
        connection."""
        instance = user.instance
        for name, row_at in self._rows.items():
            if user.place is not None:
                try:
                    instance.__dict__[name] = row_at(user.place)
                except FeedExhausted:
                    raise FeedExhausted(name) from None
        for name, resource in self._plan.resources.items():
            if resource.per == "vu":
                opened = await resource.open()
                instance.__dict__[name] = opened
                user.opened += ((resource, opened),)
        for action in self._plan.start_actions:
            result = await self.call(action, user)
            if result is not None:
                instance.context[action.name] = result
        user.http.remember()
        if instance.context:
            user.fresh = fresh_maker(instance.context.copy())
        origin = first_origin(self._plan, self._prepared) if self._connects else None
        if origin is not None and not await user.http.connect(origin, _CONNECT_S):
            self._connects = False

    async def close(self, user: User, *, actions: bool) -> list[tuple[str, BaseException]]:
        """Runs end actions and closes resources. Returns failures instead of raising them."""
        failed: list[tuple[str, BaseException]] = []
        try:
            if actions and self._plan.end_actions:
                user.instance.context = user.fresh()
                for action in self._plan.end_actions:
                    try:
                        await self.call(action, user)
                    except (Exception, SystemExit, KeyboardInterrupt) as error:
                        failed.append((action.name, error))
                    else:
                        self._recorder.hook_ended(action.name)
        finally:
            opened, user.opened = user.opened, ()
            for resource, thing in opened:
                await _closed(resource, thing)
            user.http.close()
        return failed

    async def call(self, hook: HookPlan, user: User) -> Any:
        """Calls a hook outside the hot path, its arguments filled by name."""
        context = user.instance.context
        arguments: dict[str, Any] = {}
        for parameter in hook.parameters:
            if parameter.source == "prepared":
                arguments[parameter.name] = self._prepared[(hook.name, parameter.name)]
            elif parameter.name in context:
                arguments[parameter.name] = context[parameter.name]
        result = hook.function(user.instance, **arguments)
        return await result if inspect.isawaitable(result) else result


async def _closed(resource: Resource[Any], opened: Any) -> None:
    # A resource that cannot be closed, for example because the target is gone, must not fail
    # the run.
    try:
        await resource.close(opened)
    except (Exception, SystemExit, KeyboardInterrupt):
        return
