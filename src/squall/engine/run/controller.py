"""Controls one run on this machine: layers, phases, values, thresholds, the end.

Layers run one after the other, the workflows of a layer together (an EXCLUSIVE one alone).
A workflow whose dependency failed is skipped, and so are its dependents; one with
`when="always"` runs anyway. The first interrupt ends running workflows gracefully and skips
the rest except `always`; the second cancels everything. Every workflow gets exactly one
outcome, whichever process dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter, process_time
from typing import TYPE_CHECKING

from squall.api.errors import UsageError
from squall.engine.core_protocol import (
    AdjustShare,
    CoreRefused,
    Ended,
    Go,
    OutputLine,
    Prepare,
    Ready,
    ShareSpec,
    Stop,
    ToParent,
)
from squall.engine.load.core_partition import Phase, place
from squall.engine.load.share_specs import fit_descriptors, share_specs
from squall.engine.load_change import (
    LoadChange,
    LoadChanges,
    change_line,
    iterations_taken_away,
)
from squall.engine.outcome import (
    Loss,
    ProcessInfo,
    RunOutcome,
    RunStatus,
    WorkflowOutcome,
    WorkflowStatus,
    timeout_text,
)
from squall.engine.plan.layers import topological_layers
from squall.engine.plan.received_values import collected, exports_of, received_by
from squall.engine.process.core_pool import CoreHandle, CorePool
from squall.engine.run.local_run import OnExchange, OnInterrupt, OnLog, OnSnapshot, error_of
from squall.engine.run.metadata import run_info
from squall.engine.run_options import RunOptions
from squall.stats.manifest import FileManifest, WorkflowManifest
from squall.stats.reports import ErrorSample, ExchangeReport, HealthReport, WindowReport
from squall.stats.snapshot import VerdictState
from squall.stats.thresholds.binding import bind_all, needs_load

if TYPE_CHECKING:
    from squall.engine.run.live_stats import LiveStats

# Between Go and the start: long enough for every process to have read the message.
GO_DELAY_S = 0.02


@dataclass
class _Running:
    """The state of a phase from its Prepare to the end of its last share."""

    awaited: set[CoreHandle]
    """Cores that have not answered Prepare."""
    shares: dict[tuple[str, int], CoreHandle]
    specs: dict[tuple[str, int], ShareSpec]
    planned: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])
    """Starts that each share has reported as planned."""
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    refused: dict[str, CoreRefused] = field(default_factory=dict[str, CoreRefused])
    ended: dict[tuple[str, int], Ended] = field(default_factory=dict[tuple[str, int], Ended])
    lost: dict[str, str] = field(default_factory=dict[str, str])

    def check(self) -> None:
        if not self.awaited:
            self.ready.set()
        if not set(self.shares) - set(self.ended):
            self.done.set()

    def drop(self, core: CoreHandle) -> list[ShareSpec]:
        """Removes a dead core and returns the shares that are lost with it."""
        self.awaited.discard(core)
        gone = [key for key, owner in self.shares.items() if owner is core]
        gone = [key for key in gone if key not in self.ended]
        for key in gone:
            self.lost[key[0]] = core.died
            del self.shares[key]
        self.check()
        return [self.specs[key] for key in gone]


class Controller:
    """Runs all workflows of a file on a pool of core processes that have loaded it."""

    def __init__(
        self,
        pool: CorePool,
        manifest: FileManifest,
        options: RunOptions,
        *,
        descriptors: int,
        on_snapshot: OnSnapshot | None,
        on_log: OnLog | None,
        on_exchange: OnExchange | None,
        on_interrupt: OnInterrupt | None = None,
    ) -> None:
        self._pool = pool
        self._options = options
        self.notes: list[tuple[VerdictState, str]] = []
        self.manifest = fit_descriptors(manifest, len(pool.cores), descriptors)
        self._thresholds = bind_all(self.manifest, options.thresholds)
        unjudged = [str(each) for each in self._thresholds if options.once and needs_load(each)]
        if unjudged:
            self._thresholds = [each for each in self._thresholds if str(each) not in unjudged]
        longest_s = max((w.profile.duration_s for w in manifest.workflows if w.is_test), default=0)
        if 0 < longest_s <= options.warmup_s:
            raise UsageError(
                f"--warmup {options.warmup_s:g}s leaves nothing of a run of {longest_s:g}s; "
                "give a shorter warm-up or a longer duration"
            )
        self._on_snapshot = on_snapshot
        self._on_log = on_log
        self._on_exchange = on_exchange
        self._on_interrupt = on_interrupt
        self._outcomes: dict[str, WorkflowOutcome] = {}
        self._values: dict[str, dict[str, bytes]] = {}
        self._provided: dict[str, dict[str, list[bytes]]] = {}
        self._running: _Running | None = None
        self._began = 0.0
        # The parent's CPU counts from the first second on, when its imports are done.
        self._cpu_from = (process_time(), perf_counter())
        self._interruptions = 0
        self._aborted_by = ""
        self._timed_out = False
        self._warnings = [f"--once does not judge {', '.join(unjudged)}"] if unjudged else []
        self._losses: list[Loss] = []
        self._shows_histograms = False
        self.info = run_info(options)
        self._changes = LoadChanges(self.manifest)

    @cached_property
    def _live_stats(self) -> LiveStats:
        """Imported at the first report or start; `live_stats` says why not before."""
        from squall.engine.run.live_stats import LiveStats

        live_stats = LiveStats(self.manifest, self._thresholds, self._options.warmup_s)
        live_stats.stats.shows_histograms = self._shows_histograms
        return live_stats

    async def run(self, *, histograms: bool = False) -> RunOutcome:
        for core in self._pool.cores:
            core.on_message, core.on_death = self._on_message, self._on_death
        self._shows_histograms = histograms
        ticker = asyncio.create_task(self._tick())
        timer = self._start_timer()
        with self._signals():
            try:
                await self._run_layers()
            finally:
                ticker.cancel()
                if timer is not None:
                    timer.cancel()
        elapsed_s = max(0.0, perf_counter() - self._began) if self._began else 0.0
        cpu_s, wall_s = process_time() - self._cpu_from[0], perf_counter() - self._cpu_from[1]
        for core in self._pool.cores:
            self._note_death(core)
        over = self._outcomes.values()
        completed = {
            each.name: iterations_taken_away(
                self.manifest.workflow(each.name), self._changes.applied
            )
            for each in over
            if each.status == "completed"
        }
        thresholds, verdict = self._live_stats.close(
            self.notes, completed={} if self._stopping else completed
        )
        return RunOutcome(
            manifest=self.manifest,
            stats=self._live_stats.stats,
            thresholds=thresholds,
            verdict=verdict,
            status=self._status(),
            workflows=[self._outcomes[w.name] for w in self.manifest.workflows],
            processes=[
                ProcessInfo(index=core.index, pid=core.pid, died=core.died)
                for core in self._pool.cores
            ],
            info=self.info,
            elapsed_s=elapsed_s,
            parent_cpu=cpu_s / wall_s if wall_s > 0.0 else 0.0,
            interrupted=self._interruptions > 0,
            aborted_by=self._aborted_by,
            losses=self._losses,
            notes=self._live_stats.notes(
                self._warnings, [change_line(each) for each in self._changes.applied]
            ),
        )

    def stop(self, *, now: bool = False) -> None:
        for core in self._pool.alive:
            core.send(Stop(now))

    async def change(self, change: LoadChange) -> None:
        """Changes the load from now on. A workflow that starts later starts with it."""
        if self._stopping:
            raise UsageError("the run is being stopped")
        at_s = max(0.0, perf_counter() - self._began) if self._began else 0.0
        for name in self._changes.apply(change, at_s, over=self._outcomes):
            self._send_change(name)

    def _send_change(self, name: str) -> None:
        """Sends the load that a workflow should have to the cores that run it."""
        wanted, running = self._changes.wanted(name), self._running
        if wanted is None or running is None:
            return
        for key, core in running.shares.items():
            if key[0] == name and not core.died:
                core.send(AdjustShare(key, wanted))
        stats = self._live_stats.stats.workflows[name]
        stats.adjusted_per_s = self._changes.target_per_s(name)
        stats.paused = wanted.paused

    # Layers and phases.

    async def _run_layers(self) -> None:
        names = {w.name: w.depends for w in self.manifest.workflows}
        for layer in topological_layers(names, "workflow"):
            chosen = [w for w in map(self.manifest.workflow, layer) if self._may_run(w)]
            for phase in place(chosen, len(self._pool.cores)):
                still = {name: cores for name, cores in phase.items() if self._still(name)}
                if still:
                    await self._run_phase(still)

    def _still(self, name: str) -> bool:
        """Whether a workflow still runs: the run may have stopped between two phases."""
        workflow = self.manifest.workflow(name)
        if self._stopping and not (workflow.always and self._interruptions < 2):
            self._skip(workflow, "the run was stopped")
            return False
        return True

    def _may_run(self, workflow: WorkflowManifest) -> bool:
        if self._stopping and not workflow.always:
            self._skip(workflow, "the run was stopped")
            return False
        if workflow.always:
            if self._interruptions > 1:
                self._skip(workflow, "the run was stopped")
            return self._interruptions <= 1
        for name in workflow.depends:
            if self._outcomes[name].status != "completed":
                self._skip(workflow, f"{name} {_did(self._outcomes[name].status)}")
                return False
        return True

    def _skip(self, workflow: WorkflowManifest, reason: str) -> None:
        self._outcomes[workflow.name] = WorkflowOutcome(
            name=workflow.name, status="skipped", error=reason
        )

    async def _run_phase(self, phase: Phase) -> None:
        specs: dict[CoreHandle, list[ShareSpec]] = {}
        shares: dict[tuple[str, int], CoreHandle] = {}
        for name, cores in phase.items():
            alive = [self._pool.cores[i] for i in cores if not self._pool.cores[i].died]
            if not alive:
                self._fail(name, "no core process is left to run it")
                continue
            for core, spec in zip(alive, self._specs(name, len(alive)), strict=True):
                specs.setdefault(core, []).append(spec)
                shares[(name, spec.share)] = core
        running = self._running = _Running(
            awaited=set(specs),
            shares=shares,
            specs={(s.workflow, s.share): s for entries in specs.values() for s in entries},
        )
        if not shares:
            return
        for core, entries in specs.items():
            core.send(Prepare(entries))
        await running.ready.wait()
        self._drop_refused(running)
        # A share keeps the latest change and applies it when it begins.
        for name in phase:
            self._send_change(name)
        at = perf_counter() + GO_DELAY_S
        self._began = self._began or at
        for core in specs:
            core.send(Go(at, self._began))
        for name in {name for name, _ in running.shares}:
            self._live_stats.stats.workflows[name].started_at_s = at - self._began
        running.check()
        await running.done.wait()
        self._running = None
        for name in phase:
            if name not in self._outcomes:
                self._conclude(name, running, at, phase[name])

    def _specs(self, name: str, shares: int) -> list[ShareSpec]:
        workflow = self.manifest.workflow(name)
        values, received = received_by(self.manifest, workflow, self._values, self._provided)
        return share_specs(
            workflow,
            shares,
            seed=self._options.seed,
            values=values,
            received=received,
            exports=exports_of(self.manifest, name),
            place=(self.manifest.workflows.index(workflow), len(self.manifest.workflows)),
        )

    def _drop_refused(self, running: _Running) -> None:
        """Fails a workflow that one process refused, so that it starts in none. Before anything
        ran, the refusal ends the run instead."""
        for name, refusal in running.refused.items():
            if not self._began:
                raise error_of(refusal.text, refusal.exit_code)
            self._fail(name, refusal.text)
            for key in [key for key in running.shares if key[0] == name]:
                del running.shares[key]

    def _fail(self, name: str, error: str) -> None:
        self._outcomes[name] = WorkflowOutcome(name=name, status="failed", error=error)

    def _conclude(self, name: str, running: _Running, at: float, cores: tuple[int, ...]) -> None:
        parts = [ended for key, ended in sorted(running.ended.items()) if key[0] == name]
        error = next((part.error for part in parts if part.error), "")
        error = error or running.lost.get(name, "") if not parts else error
        for part in parts:
            for state, text in part.notes:
                self.notes.append((_state(state), text))
            self._warnings += part.warnings
            self._values.setdefault(name, {}).update(
                {k: v for k, v in part.values.items() if k not in self._values.get(name, {})}
            )
        self._provided[name] = collected(part.provided for part in parts)
        elapsed_s = max((part.elapsed_s for part in parts), default=0.0)
        self._live_stats.stats.workflows[name].elapsed_s = elapsed_s
        status: WorkflowStatus = "completed"
        if error:
            status = "failed"
        elif self._timed_out:
            status = "timeout"
        elif self._interruptions and not self.manifest.workflow(name).always:
            status = "interrupted"
        self._outcomes[name] = WorkflowOutcome(
            name=name,
            status=status,
            error=error,
            started_at_s=at - self._began,
            elapsed_s=elapsed_s,
            cores=cores,
        )

    # Messages.

    def _on_message(self, core: CoreHandle, message: ToParent) -> None:
        running = self._running
        match message:
            case WindowReport() | HealthReport() | ErrorSample():
                self._live_stats.add(message)
                if isinstance(message, WindowReport) and running is not None:
                    key = (message.workflow, message.share)
                    running.planned[key] += message.starts.planned
            case OutputLine():
                if self._on_log is not None:
                    self._on_log(message.prefix, message.text)
            case ExchangeReport():
                if self._on_exchange is not None:
                    self._on_exchange(message)
            case CoreRefused() if running is not None:
                running.refused.setdefault(message.workflow, message)
            case Ready() if running is not None:
                running.awaited.discard(core)
                running.check()
            case Ended() if running is not None:
                running.ended[(message.workflow, message.share)] = message
                self._show_end(message.workflow, running)
                running.check()
            case _:
                pass

    def _show_end(self, name: str, running: _Running) -> None:
        """Ends a workflow in the live view once all its shares have, while others still run."""
        parts = [running.ended.get(key) for key in running.shares if key[0] == name]
        elapsed = [part.elapsed_s for part in parts if part is not None]
        if len(elapsed) == len(parts):
            self._live_stats.stats.workflows[name].elapsed_s = max(elapsed)

    def _on_death(self, core: CoreHandle) -> None:
        self._note_death(core)
        if core.crash and self._on_log is not None:
            self._on_log("", core.crash)
        if self._running is not None:
            for spec in self._running.drop(core):
                self._losses.append(self._loss(core, spec, self._running))

    def _loss(self, core: CoreHandle, spec: ShareSpec, running: _Running) -> Loss:
        loss = Loss(
            process=core.index,
            workflow=spec.workflow,
            at_s=max(0.0, perf_counter() - self._began) if self._began else 0.0,
            reason=core.died,
            users=spec.users,
        )
        if spec.profile.is_open:
            loss.starts = self._lost_starts(spec, running)
            self._live_stats.stats.workflows[spec.workflow].starts.planned += loss.starts
        return loss

    def _lost_starts(self, spec: ShareSpec, running: _Running) -> int:
        if self._changes.wanted(spec.workflow) is not None:
            # What was planned followed the changes, so the end of the plan alone is known.
            began_s = self._live_stats.stats.workflows[spec.workflow].started_at_s
            elapsed_s = perf_counter() - self._began - began_s if self._began else 0.0
            return self._changes.starts_after(spec, max(elapsed_s, 0.0))
        from squall.engine.load.schedule import StartSchedule

        total = StartSchedule(spec.profile, spec.share, spec.shares).total
        return total - running.planned[(spec.workflow, spec.share)]

    def _note_death(self, core: CoreHandle) -> None:
        """Notes a dead core for the verdict, once; at once, so that the live verdict has it."""
        if core.died and ("INVALID", core.died) not in self.notes:
            self.notes.append(("INVALID", core.died))

    # Time, thresholds, signals.

    async def _tick(self) -> None:
        """Takes a snapshot each second of the run, 50 ms after it ended, when the cores' reports
        have arrived. A parent that was held up skips the seconds that it missed."""
        second = 0
        while True:
            if not self._began:
                await asyncio.sleep(0.02)
                continue
            second += 1
            delay_s = self._began + second + 0.05 - perf_counter()
            if delay_s < -1.0:
                second -= int(delay_s)
                continue
            await asyncio.sleep(max(delay_s, 0.0))
            self._second(float(second))

    def _second(self, now_s: float) -> None:
        if now_s == 1.0:
            self._cpu_from = (process_time(), perf_counter())
        snapshot, abort = self._live_stats.second(now_s, self.notes)
        if abort and not self._aborted_by:
            self._aborted_by = abort
            self.stop()
        if self._on_snapshot is not None:
            self._on_snapshot(snapshot)

    def _start_timer(self) -> asyncio.TimerHandle | None:
        if self._options.timeout_s is None:
            return None
        return asyncio.get_running_loop().call_later(self._options.timeout_s, self._time_out)

    def _time_out(self) -> None:
        self._timed_out = True
        self.notes.append(("INVALID", timeout_text(self._options.timeout_s or 0.0)))
        self.stop()

    @property
    def _stopping(self) -> bool:
        return bool(self._interruptions or self._aborted_by or self._timed_out)

    def _signals(self) -> contextlib.AbstractContextManager[None]:
        return _interrupts(self.interrupt, lambda: self._interruptions > 0)

    def interrupt(self, now: bool = False) -> None:
        """Ends the run on request: gracefully, the second time (or with `now`) at once. The third
        time kills the core processes."""
        self._interruptions = max(self._interruptions + 1, 2 if now else 1)
        if self._on_interrupt is not None:
            self._on_interrupt(self._interruptions)
        if self._interruptions > 2:
            self._pool.kill()
        self.stop(now=self._interruptions > 1)

    def _status(self) -> RunStatus:
        statuses = {outcome.status for outcome in self._outcomes.values()}
        if self._interruptions:
            return "interrupted"
        if self._timed_out:
            return "timeout"
        if statuses <= {"completed"} or self._aborted_by:
            return "completed"
        return "partial" if "completed" in statuses else "failed"


def stop_signals() -> tuple[signal.Signals, ...]:
    """The signals that end a run in order, with its results: Ctrl-C, SIGTERM, and SIGHUP of a
    terminal that was closed, unless `nohup` has it ignored."""
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        return (signal.SIGINT, signal.SIGTERM)
    return (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def _interrupts(
    handler: Callable[[], None], was_interrupted: Callable[[], bool]
) -> Generator[None]:
    """Makes Ctrl-C and its like call the handler. Only the main thread can have signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    numbers = stop_signals()
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in numbers:
            # After an interrupt the results must still be written, so another Ctrl-C must not
            # cost them. A caller that continues restores its handlers (`squall.run`).
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN if was_interrupted() else before[number])


def _did(status: WorkflowStatus) -> str:
    return {"failed": "failed", "skipped": "was skipped"}.get(status, "did not complete")


def _state(text: str) -> VerdictState:
    return "INVALID" if text == "INVALID" else "DEGRADED"
