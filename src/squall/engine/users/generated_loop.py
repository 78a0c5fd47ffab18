"""Generates the loop of a virtual user as Python source, once per workflow and share.

A loop over the plan would repeat the same lookups for every request. The generated source has them
written out: steps in order, arguments by name, the rows to record in. A linear step DAG runs inside
the user's one task; k siblings use k - 1 more. The source is registered in `linecache`, so
tracebacks and debuggers show it.

The loop of one user, with its invariants:

    wait for the start     open models: a planned start; otherwise at once
    fresh context          nothing of the last iteration remains
    layers, in order       an exception ends the iteration, a failed status does not
    record the iteration   exactly once: ok, failed, or interrupted
    think, pace, rest      never part of a latency

Every step execution that begins is recorded once: as an outcome, a failure, or interrupted.
"""

from __future__ import annotations

import asyncio
import linecache
from collections.abc import Callable, Coroutine
from typing import Any

from squall.api.http import RESPONSES
from squall.api.protocols.grpc import GRPCResponse
from squall.api.protocols.response import ProtocolResponse
from squall.engine.plan.workflow_plan import (
    HookPlan,
    Parameter,
    StepPlan,
    WorkflowPlan,
    mentions,
    slots_of,
    weight_groups,
)

# What a step that runs beside others returns, as a sum.
FAILED, STOPPED, ANSWERED = 1, 2, 4

UserLoop = Callable[..., Coroutine[Any, Any, None]]


class LoopSource:
    """The lines of generated code, and the objects that they refer to by name."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {}
        self.depth = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def block(self, header: str) -> _Block:
        self.line(header)
        return _Block(self)

    def name(self, name: str, value: Any) -> str:
        self.names[name] = value
        return name


class _Block:
    def __init__(self, source: LoopSource) -> None:
        self.source = source

    def __enter__(self) -> None:
        self.source.depth += 1

    def __exit__(self, *exc: object) -> None:
        self.source.depth -= 1


def generate_loop(
    plan: WorkflowPlan, prepared: dict[tuple[str, str], Any], names: dict[str, Any], model: str
) -> UserLoop:
    """Compiles the loop. `names` are the functions and rows of the engine that the code uses:
    see `Share._runner_names`."""
    source = LoopSource()
    source.names.update(names)
    writer = _Writer(plan, prepared, source, model)
    writer.write()
    text = "\n".join(source.lines) + "\n"
    filename = f"<squall runner of {plan.name}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    exec(compile(text, filename, "exec"), source.names)
    loop: UserLoop = source.names["loop"]
    return loop


async def run_together(
    todo: list[Any],
    user: Any,
    context: dict[str, Any],
    http: Any,
    planned: float,
    ran: set[str] | None,
) -> int:
    """Runs sibling steps at the same time: the first inline, the others in tasks.

    Returns what any of them returned (`_Writer._sibling`). All of them are finished when it
    returns or raises, so that no step of one iteration runs into the next.
    """
    tasks = [asyncio.create_task(step(user, context, http, planned, ran)) for step in todo[1:]]
    try:
        outcome: int = await todo[0](user, context, http, planned, ran)
        for task in tasks:
            outcome |= await task
        return outcome
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _protocol_response(step: StepPlan) -> type | None:
    """The result of a step if it is the response of a protocol that is not HTTP."""
    kind = step.result
    return kind if kind is not None and issubclass(kind, ProtocolResponse) else None


class _Writer:
    """Writes the source of one workflow's loop, method by method in the order of the loop."""

    def __init__(
        self,
        plan: WorkflowPlan,
        prepared: dict[tuple[str, str], Any],
        source: LoopSource,
        model: str,
    ) -> None:
        self.plan = plan
        self.prepared = prepared
        self.source = source
        self.is_open = model.startswith("open")
        self.counted = model == "iterations"
        self.once = model == "once"
        self.has_timeouts = any(step.timeout_s is not None for step in plan.steps)
        self.groups = weight_groups(plan.steps)
        alternatives = {step.name for group in self.groups for step in group}
        # Steps that an iteration may leave out: alternatives by weight, and all that depends on
        # one. Only these pay for the set `ran`.
        self.conditional = {
            step.name
            for step in plan.steps
            if step.name in alternatives or step.ancestors & alternatives
        }
        # Steps that run in coroutines of their own. Later steps find their results in the
        # context; those of all other steps are local variables.
        self.beside = {
            step.name for layer in plan.layers if len(slots_of(layer)) > 1 for step in layer
        }
        self.pauses = mentions(plan, "pause")
        self.places = {hook.name: place for place, hook in enumerate(plan.hooks())}
        # The class of the last step's response, if it comes from a client that has then waited.
        last = plan.layers[-1][-1] if plan.layers else None
        awaited = None
        if last is not None:
            usual = {**RESPONSES, "grpc": GRPCResponse}
            awaited = usual.get(last.protocol) or _protocol_response(last)
        self.awaited = "" if awaited is None else source.name(awaited.__name__, awaited)

    def write(self) -> None:
        for step in self.plan.steps:
            if step.name in self.beside:
                self._sibling(step)
        line, block = self.source.line, self.source.block
        with block("async def loop(self, vu, http, fresh):"):
            line("failures = 0")
            with block("while not vu.stop:"):
                self._wait()
                self._feeds()
                line("self.context = ctx = fresh()")
                line("vu.iteration += 1")
                with block("if http.dirty:"):
                    line("http.begin_iteration()")
                line("BEGIN()")
                line("bad = answered = False")
                if self.pauses:
                    # A start action may have paused too.
                    line("vu.paused_s = 0.0")
                if self.conditional:
                    line("ran = set()")
                line("began = clock()")
                # `while True` runs once: it lets a failed step leave all layers with `break`.
                with block("try:"), block("while True:"):
                    for index, layer in enumerate(self.plan.layers):
                        self._layer(index, layer)
                    line("failures = 0")
                    line("break")
                # Only a cancellation arrives here; failures of steps are handled at the step.
                with block("except BaseException:"):
                    line("ITERATION.interrupted += 1")
                    line("raise")
                self._finish()

    def _wait(self) -> None:
        line, block = self.source.line, self.source.block
        if self.is_open:
            line("planned = await WAIT(vu)")
            with block("if planned is None:"):
                line("break")
        elif self.counted:
            is_done = "vu.iteration >= EACH or " if "EACH" in self.source.names else ""
            with block(f"if {is_done}TICKET() is None:"):
                line("break")

    def _feeds(self) -> None:
        line, block = self.source.line, self.source.block
        for name, feed in self.plan.feeds.items():
            if feed.per == "iteration":
                with block("try:"):
                    line(f"self.__dict__[{name!r}] = NEXT_{name}()")
                with block("except FeedExhausted:"):
                    line(f"EXHAUSTED({name!r}{', planned' if self.is_open else ''})")
                    line("break")

    def _finish(self) -> None:
        line, block = self.source.line, self.source.block
        line("ended = clock()")
        # Sibling steps may pause at the same time, in sum for longer than the iteration took.
        took = "max({} - vu.paused_s, 0.0)" if self.pauses else "{}"
        line(f"(FAILED if bad else PASSED)({took.format('ended - began')})")
        if self.is_open:
            line(f"RESPONSE({took.format('ended - planned')})")
        if "KEEP" in self.source.names:
            with block("if not bad:"):
                line("KEEP(ctx)")
        if self.once:
            line("break")
            return
        if not self.is_open:
            with block("if failures:"):
                line("await REST(vu, failures, ended - began)")
                if "THINK" not in self.source.names:
                    line("continue")
        if "THINK" in self.source.names:
            line("await THINK(vu, began)")
        elif self.awaited:
            # An iteration without an exchange may never have yielded to the event loop, which
            # would then serve no other user.
            with block(f"if type(http.last) is not {self.awaited}:"):
                line("await YIELD()")
        else:
            line("await YIELD()")

    def _layer(self, index: int, layer: list[StepPlan]) -> None:
        line, block = self.source.line, self.source.block
        slots = slots_of(layer)
        if len(slots) == 1:
            self._single(slots[0])
        else:
            line("todo = []")
            for slot in slots:
                with block(f"if {self._condition(slot[0])}:"):
                    if len(slot) > 1:
                        picks = ", ".join(f"sibling_{step.name}" for step in slot)
                        line(f"todo.append(PICK(({picks}), {self._cumulative(slot)}))")
                    else:
                        line(f"todo.append(sibling_{slot[0].name})")
            with block("if todo:"):
                planned = "planned" if self.is_open else "0.0"
                ran = "ran" if self.conditional else "None"
                line(f"outcome = await TOGETHER(todo, self, ctx, http, {planned}, {ran})")
                with block(f"if outcome & {ANSWERED}:"):
                    line("answered = True")
                with block(f"if outcome & {FAILED}:"):
                    line("bad = True")
                    with block(f"if outcome & {STOPPED}:"):
                        line("failures = 0 if answered else failures + 1")
                        line("break")
        self._hooks_after(index)

    def _single(self, slot: list[StepPlan]) -> None:
        line, block = self.source.line, self.source.block
        if len(slot) == 1:
            condition = self._condition(slot[0])
            if condition == "True":
                self._inline(slot[0])
            else:
                with block(f"if {condition}:"):
                    self._inline(slot[0])
            return
        with block(f"if {self._condition(slot[0])}:"):
            weights = self._cumulative(slot)
            line(f"pick = RANDOM() * {weights[-1]}")
            for number, step in enumerate(slot):
                keyword = "if" if number == 0 else "elif"
                last = number == len(slot) - 1
                with block("else:" if last else f"{keyword} pick < {weights[number]}:"):
                    self._inline(step)

    def _cumulative(self, slot: list[StepPlan]) -> list[int]:
        total = 0
        weights: list[int] = []
        for step in slot:
            total += step.weight or 0
            weights.append(total)
        return weights

    def _condition(self, step: StepPlan) -> str:
        needed = [name for name in step.after if name in self.conditional]
        return " and ".join(f"{name!r} in ran" for name in needed) or "True"

    def _inline(self, step: StepPlan) -> None:
        line, block = self.source.line, self.source.block
        planned = "planned" if self.is_open else "0.0"
        self._prologue(step)
        with block("try:"):
            line(f"r_{step.name} = await {self._call(step)}")
        with block("except BaseException as error:"):
            self._interruption(step)
            line(f"STEP_FAILED(ROW_{step.name}, error, http, {planned})")
            self._stop_iteration()
        self._record(step, f"r_{step.name}", bad="bad = True", stop=self._stop_iteration)
        if step.layer < len(self.plan.layers) - 1:
            # After the last layer nothing can fail any more.
            self._answered(step, "answered = True")
        line(f"ctx[{step.name!r}] = r_{step.name}")
        if step.name in self.conditional:
            line(f"ran.add({step.name!r})")

    def _sibling(self, step: StepPlan) -> None:
        """Writes a step that runs beside others as a coroutine of its own. It returns the sum of
        what applies: `FAILED`, `STOPPED` (the iteration ends), `ANSWERED`."""
        line, block = self.source.line, self.source.block
        with block(f"async def sibling_{step.name}(self, ctx, http, planned, ran):"):
            self._prologue(step)
            with block("try:"):
                line(f"r = await {self._call(step, from_context=True)}")
            with block("except BaseException as error:"):
                self._interruption(step)
                line(f"STEP_FAILED(ROW_{step.name}, error, http, planned)")
                self._stop_sibling()
            line("bad = 0")
            self._record(step, "r", bad=f"bad = {FAILED}", stop=self._stop_sibling)
            self._answered(step, f"bad |= {ANSWERED}")
            line(f"ctx[{step.name!r}] = r")
            if step.name in self.conditional:
                line(f"ran.add({step.name!r})")
            line("return bad")

    def _stop_iteration(self) -> None:
        """After an iteration without any answer the user rests: it would spin otherwise. After an
        answer the target sets the pace."""
        line = self.source.line
        line("bad = True")
        line("failures = 0 if answered or HAS_ANSWER(http.last_exchange()) else failures + 1")
        line("break")

    def _stop_sibling(self) -> None:
        stopped = FAILED | STOPPED
        answered = "HAS_ANSWER(http.last_exchange())"
        self.source.line(f"return {stopped | ANSWERED} if {answered} else {stopped}")

    def _answered(self, step: StepPlan, note: str) -> None:
        """Notes that the target answered a step. The result of a measured step is an answer; any
        other step got one if its last call did."""
        if step.protocol:
            self.source.line(note)
        else:
            with self.source.block("if HAS_ANSWER(http.last_exchange()):"):
                self.source.line(note)

    def _prologue(self, step: StepPlan) -> None:
        line = self.source.line
        if step.protocol:
            line(f"BEGIN_{step.name}()")
        line("http.clear_last()" if step.name in self.beside else "http.last = None")
        if self.has_timeouts:
            line(f"http.timeout_s = {step.timeout_s!r}")

    def _interruption(self, step: StepPlan) -> None:
        line, block = self.source.line, self.source.block
        with block("if STOPS(error):"):
            if step.protocol:
                line(f"ROW_{step.name}.interrupted += 1")
            line("raise")

    def _record(self, step: StepPlan, result: str, *, bad: str, stop: Callable[[], None]) -> None:
        """Writes what follows a step that returned. `stop` writes the end of the iteration: after
        an odd result, and after a failed one if the step has `on_failure="stop"`."""
        line, block = self.source.line, self.source.block
        planned = "planned" if self.is_open else "0.0"
        root = self.is_open and not step.after
        if not step.protocol:
            with block(f"if type({result}) is COROUTINE:"):
                line(f"STEP_ODD(ROW_{step.name}, {result}, http)")
                stop()
            return
        if step.protocol == "grpc" and "WATCHED" not in self.source.names:
            # What `CUSTOM` would record, for the usual answer.
            usual = f"type({result}) is GRPCResponse and not {result}.fault and "
            with block(f"if {usual}{result}.code in {result}.source.accepted:"):
                line(f"PASS_{step.name}({result}.ended - {result}.started)")
                if root:
                    self._response_time(step, result)
            condition = "elif"
        elif (kind := _protocol_response(step)) and "WATCHED" not in self.source.names:
            # The same for clients of protocols that are not HTTP.
            name = self.source.name(kind.__name__, kind)
            usual = f"type({result}) is {name} and not {result}.error"
            with block(f"if {usual} and {result}.exchanges == 1:"):
                line(f"PASS_{step.name}({result}.ended - {result}.started)")
                if root:
                    self._response_time(step, result)
            condition = "elif"
        else:
            condition = "if"
        if step.protocol not in RESPONSES:
            with block(f"{condition} not CUSTOM(ROW_{step.name}, {result}, http, {planned}):"):
                line(bad)
                if step.stops:
                    stop()
            return
        wanted = f"type({result}) is not {RESPONSES[step.protocol].__name__}"
        if step.protocol == "http":
            # A server may have chosen HTTP/2 (`http = "auto"`).
            wanted += f" and type({result}) is not HTTP2Response"
        with block(f"if {wanted}:"):
            line(f"STEP_ODD(ROW_{step.name}, {result}, http)")
            stop()
        line(f"status = {result}.status_code")
        line(f"ended = {result}.ended")
        with block(f"if {result}.first_byte == ended:"):
            line(f"STATUS_{step.name}[status](ended - {result}.started)")
        with block("else:"):
            line(
                f"SPREAD_{step.name}(status, {result}.first_byte - {result}.started, "
                f"ended - {result}.started)"
            )
        if root:
            self._response_time(step, result)
        with block(f"if {self._is_bad(step)}:"):
            line(bad)
            with block(f"if status not in SAMPLED_{step.name}:"):
                line(f"SAMPLED_{step.name}.add(status)")
                line(f"UNEXPECTED(ROW_{step.name}, {result})")
            if step.stops:
                stop()

    def _response_time(self, step: StepPlan, result: str) -> None:
        # `self.pause()` before the request is not latency; one after it is not in `ended`.
        paused = f" - self.vu.paused_before({result}.started)" if self.pauses else ""
        self.source.line(f"RESPONSE_{step.name}({result}.ended - planned{paused})")

    def _is_bad(self, step: StepPlan) -> str:
        if step.expect == [(200, 399)]:
            return "status > 399"
        ok = {code for low, high in step.expect for code in range(low, high + 1)}
        self.source.name(f"OK_{step.name}", frozenset(ok))
        return f"status not in OK_{step.name}"

    def _call(self, hook: HookPlan, *, from_context: bool = False) -> str:
        self.source.name(f"F_{hook.name}", hook.function)
        arguments = [
            text
            for parameter in hook.parameters
            if (text := self._argument(hook, parameter, from_context))
        ]
        return f"F_{hook.name}({', '.join(['self', *arguments])})"

    def _argument(self, hook: HookPlan, parameter: Parameter, from_context: bool) -> str:
        name = parameter.name
        if parameter.source == "prepared":
            prepared = self.prepared[(hook.name, name)]
            return f"{name}={self._constant('A', hook, name, prepared)}"
        if parameter.source == "step":
            local = not from_context and name not in self.beside
            return f"{name}=r_{name}" if local else f"{name}=ctx[{name!r}]"
        if not parameter.has_default:
            return f"{name}=ctx[{name!r}]"
        default = self._constant("D", hook, name, parameter.default)
        return f"{name}=ctx.get({name!r}, {default})"

    def _constant(self, kind: str, hook: HookPlan, parameter: str, value: Any) -> str:
        # The number keeps step `get` with `user_url` apart from step `get_user` with `url`.
        return self.source.name(f"{kind}{self.places[hook.name]}_{hook.name}_{parameter}", value)

    def _hooks_after(self, index: int) -> None:
        """Writes the checks and metrics whose last step is in this layer."""
        line, block = self.source.line, self.source.block
        last = len(self.plan.layers) - 1
        for hook, recorder in [
            *((hook, "CHECK") for hook in self.plan.checks),
            *((hook, "METRIC") for hook in self.plan.metric_hooks),
        ]:
            layer = max((self.plan.step(name).layer for name in hook.after), default=last)
            if layer != index:
                continue
            needed = [name for name in hook.after if name in self.conditional]
            condition = " and ".join(f"{name!r} in ran" for name in needed) or "True"
            with block(f"if {condition}:"):
                call = self._call(hook, from_context=True)
                with block("try:"):
                    line(f"value = {'await ' if hook.is_async else ''}{call}")
                with block("except BaseException as error:"):
                    with block("if STOPS(error):"):
                        line("raise")
                    line(f"{recorder}_FAILED({hook.name!r}, error)")
                with block("else:"):
                    line(f"{recorder}({hook.name!r}, value)")
