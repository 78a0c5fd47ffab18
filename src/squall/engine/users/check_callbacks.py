"""The functions that the generated loop calls with the results of checks and metrics.

A hook that raises is counted and reported once; it never ends an iteration.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Sequence
from typing import Any

from squall.api.metrics import Sample
from squall.engine.measure.recorder import Recorder
from squall.engine.plan.workflow_plan import WorkflowPlan
from squall.engine.users.step_failures import StepFailures, close_coroutine


class CheckCallbacks:
    """Records the checks and metrics of one share."""

    def __init__(
        self, recorder: Recorder, failures: StepFailures, randomness: random.Random
    ) -> None:
        self._recorder = recorder
        self._failures = failures
        self._random = randomness
        # Checks without `return`, which fail only by an exception.
        self._by_assert = set[str]()

    def names(self) -> dict[str, Any]:
        """The names that the generated loop uses."""
        return {
            "CHECK": self.checked,
            "CHECK_FAILED": self.check_failed,
            "METRIC": self.measured,
            "METRIC_FAILED": self.measure_failed,
            "RANDOM": self._random.random,
            "PICK": self.pick,
        }

    def adopt(self, plan: WorkflowPlan) -> None:
        """Gives the workflow metrics of its own, also if a base class declares them."""
        self._by_assert = {hook.name for hook in plan.checks if hook.asserts_only}
        metrics = self._recorder.metrics
        for name, metric in plan.metrics.items():
            own = metric.fresh()
            setattr(plan.workflow, name, own)
            metrics[name] = own
        for hook in plan.metric_hooks:
            sample = Sample(hook.unit)
            sample.name = hook.name
            metrics[hook.name] = sample

    def checked(self, name: str, value: Any) -> None:
        if value is None and name not in self._by_assert:
            self.check_failed(name, TypeError("the check returned nothing: write return"))
        elif inspect.iscoroutine(value):
            close_coroutine(value)
            self.check_failed(name, TypeError("the check returned a coroutine: write await"))
        else:
            try:
                passed = value is None or bool(value)
            except Exception as error:
                self.check_failed(name, error)
            else:
                self._recorder.check(name, passed)
                self._recorder.hook_ended(name)

    def check_failed(self, name: str, error: BaseException) -> None:
        self._recorder.check(name, False)
        if isinstance(error, AssertionError):
            self._recorder.hook_ended(name)
        else:
            self._failures.hook_failed(name, error)

    def measured(self, name: str, value: Any) -> None:
        metric = self._recorder.metrics[name]
        if isinstance(metric, Sample) and value is not None:
            try:
                metric.add(value)
            except Exception as error:
                self.measure_failed(name, error)
                return
        self._recorder.hook_ended(name)

    def measure_failed(self, name: str, error: BaseException) -> None:
        self._failures.hook_failed(name, error)

    def pick(self, steps: Sequence[Any], weights: Sequence[int]) -> Any:
        draw = self._random.random() * weights[-1]
        return next(step for step, limit in zip(steps, weights, strict=True) if draw < limit)
