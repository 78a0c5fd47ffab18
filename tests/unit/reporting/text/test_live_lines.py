"""Progress lines: when they come and what they say."""

from __future__ import annotations

import io
from typing import Any

from squall.reporting.text.live_lines import LiveLines
from squall.stats.manifest import FileManifest, Profile, WorkflowManifest
from squall.stats.snapshot import (
    DatacenterSnapshot,
    NewError,
    Snapshot,
    ThresholdState,
    WorkflowSnapshot,
)


def shop(model: str = "open", **more: Any) -> WorkflowManifest:
    profile = Profile(model=model, rate_per_s=500.0, duration_s=300.0, iterations=900)  # type: ignore[arg-type]
    return WorkflowManifest(
        name="Shop",
        profile=profile,
        shape="login -> (cart | offers) -> pay",
        host="http://127.0.0.1:8080",
        **more,
    )


def moment(name: str = "Shop", elapsed_s: float = 12.0, **more: Any) -> WorkflowSnapshot:
    fields: dict[str, Any] = dict.fromkeys(WorkflowSnapshot.__struct_fields__[2:-2], 0)
    fields |= {
        "rate_now_per_s": 498.0,
        "target_per_s": 500.0,
        "executions_now_per_s": 1992.0,
        "users": 41,
        "failed_share": 0.0002,
        "p50_now_s": 0.0121,
        "p95_now_s": 0.044,
        "p99_now_s": 0.0982,
        "samples_now": 1992,
    }
    return WorkflowSnapshot(name=name, elapsed_s=elapsed_s, **(fields | more))


def snapshot(elapsed_s: float = 12.0, **more: Any) -> Snapshot:
    fields: dict[str, Any] = {
        "workflows": (moment(elapsed_s=elapsed_s),),
        "cpu": 0.61,
        "processes": 2,
        "lag_p99_s": 0.0019,
        "gc_max_s": 0.0,
    }
    return Snapshot(elapsed_s=elapsed_s, **(fields | more))


def lines_of(
    *snapshots: Snapshot,
    every: float | None = None,
    color: bool = False,
    manifest: FileManifest | None = None,
) -> list[str]:
    stream = io.StringIO()
    live = LiveLines(
        manifest or FileManifest(path="shop.py", workflows=[shop()]), stream, every, color
    )
    for each in snapshots:
        live.feed(each)
    return stream.getvalue().splitlines()


def test_the_header_shows_model_shape_processes_and_host() -> None:
    stream = io.StringIO()
    manifest = FileManifest(
        path="shop.py", workflows=[shop(warnings=["Shop: two roots; @then() orders them"])]
    )
    LiveLines(manifest, stream, processes=2).start()
    assert stream.getvalue() == (
        "shop.py  Shop  open 500/s for 5m  login -> (cart | offers) -> pay  "
        "2 processes, host http://127.0.0.1:8080\n"
        "warning: Shop: two roots; @then() orders them\n"
    )


def test_a_line_of_an_open_run() -> None:
    assert lines_of(snapshot()) == [
        "00:12/05:00  498/s of 500  users 41  failed 0.02%  "
        "p50 12.1ms p95 44.0ms p99 98.2ms  cpu 61%  VALID"
    ]


def test_a_line_of_an_iterations_run_counts_instead_of_a_clock_bound() -> None:
    manifest = FileManifest(path="shop.py", workflows=[shop("iterations")])
    now = moment(target_per_s=None, iterations=420)
    (line,) = lines_of(snapshot(workflows=(now,)), manifest=manifest)
    assert line.startswith("00:12  498/s, 420 of 900  users 41  ")


def test_a_second_without_samples_says_so() -> None:
    (line,) = lines_of(snapshot(workflows=(moment(samples_now=0),)))
    assert "  no samples  " in line


def test_a_verdict_that_changes_is_reported_once_with_its_first_reason() -> None:
    bad = {"verdict": "DEGRADED", "reasons": ("loop lag p99 31 ms", "late starts")}
    shown = lines_of(snapshot(7.0), snapshot(8.0, **bad), snapshot(9.0, **bad), snapshot(10.0))
    states = [line.split()[-1] for line in shown if "!" not in line]
    assert states == ["VALID", "DEGRADED", "DEGRADED", "VALID"]
    told = [line for line in shown if "!" in line]
    assert told == [
        "00:08/05:00  ! DEGRADED: loop lag p99 31 ms",
        "00:10/05:00  ! VALID again",
    ]


def test_a_worker_that_falls_silent_is_reported_once_whatever_the_verdict_says() -> None:
    late = {"verdict": "DEGRADED", "reasons": ("loop lag p99 27 ms",)}
    told = lines_of(
        snapshot(13.0, **late),
        snapshot(14.0, **late, losses=("w2 silent for 4 s, 1 share",)),
        snapshot(15.0, **late, losses=("w2 silent for 5 s, 1 share",)),
        snapshot(16.0, **late),
        snapshot(17.0, **late, losses=("w2 silent for 4 s, 1 share",)),
    )
    assert sum("! w2 silent for 4 s, 1 share" in line for line in told) == 2
    assert not any("silent for 5 s" in line for line in told)


def test_a_silence_that_is_the_verdicts_reason_is_reported_only_with_it() -> None:
    reason = "w2 silent for 4 s: 1 share is not heard"
    told = lines_of(
        snapshot(
            14.0, verdict="DEGRADED", reasons=(reason,), losses=("w2 silent for 4 s, 1 share",)
        )
    )
    assert sum("w2 silent" in line for line in told) == 1


def test_every_second_at_first_then_every_ten() -> None:
    times = [index * 1.003 for index in range(1, 42)]
    shown = [line[:5] for line in lines_of(*map(snapshot, times))]
    seconds = [*range(1, 11), 20, 30, 40]
    assert shown == [f"00:{second:02d}" for second in seconds]


def test_every_sets_the_distance() -> None:
    shown = lines_of(*(snapshot(float(second)) for second in range(1, 21)), every=5.0)
    assert [line[:5] for line in shown] == ["00:01", "00:06", "00:11", "00:16"]


def test_several_workflows_are_named_and_ended_ones_fall_silent() -> None:
    manifest = FileManifest(
        path="mix.py", workflows=[shop(), WorkflowManifest(name="Browse", profile=Profile())]
    )

    def both(elapsed_s: float) -> Snapshot:
        workflows = (
            moment(elapsed_s=min(elapsed_s, 2.0)),
            moment("Browse", elapsed_s, target_per_s=None),
        )
        return snapshot(elapsed_s, workflows=workflows)

    shown = lines_of(both(2.0), both(3.0), manifest=manifest)
    assert [line.split("  ")[:2] for line in shown] == [
        ["00:02/05:00", "Shop"],
        ["00:02/01:00", "Browse"],
        ["00:03/01:00", "Browse"],
    ]


def failing(condition: str = "failing") -> ThresholdState:
    return ThresholdState(
        expression="pay.p(99) < 800ms",
        condition=condition,  # type: ignore[arg-type]
        value=912.0,
        unit="ms",
        workflow="Shop",
    )


def test_a_threshold_that_begins_to_fail_is_reported_at_once_and_once() -> None:
    shown = lines_of(*(snapshot(second, thresholds=(failing(),)) for second in (41.0, 42.0, 43.0)))
    told = [line for line in shown if "!" in line]
    assert told == ["00:41/05:00  ! pay.p(99) < 800ms is failing: 912ms"]


def test_a_threshold_that_alternates_is_reported_again_only_after_a_while() -> None:
    feed = [
        snapshot(second, thresholds=(failing("failing" if index % 2 == 0 else "passing"),))
        for index, second in enumerate((11.0, 12.0, 13.0, 14.0, 25.0))
    ]
    told = [line[:5] for line in lines_of(*feed) if "!" in line]
    assert told == ["00:11", "00:25"]


def test_a_new_error_is_reported_at_once_with_its_line() -> None:
    error = NewError(
        workflow="Shop", row="pay", reason="KeyError 'id'", location="shop.py:31 in pay"
    )
    shown = lines_of(snapshot(), snapshot(44.2, new_errors=(error,)))
    assert shown[-1] == (
        "00:44/05:00  ! pay: KeyError 'id' at shop.py:31 (first of its kind; see summary)"
    )


def test_a_flood_of_new_errors_is_cut() -> None:
    errors = tuple(NewError(workflow="Shop", row="pay", reason=f"e{n}") for n in range(9))
    shown = lines_of(snapshot(new_errors=errors))
    assert len(shown) == 7
    assert shown[-1].endswith("! 4 more new kinds of errors (see summary)")


def test_colour_only_where_asked() -> None:
    assert "\x1b" not in "".join(lines_of(snapshot(), color=False))
    assert "\x1b[32mVALID\x1b[0m" in "".join(lines_of(snapshot(), color=True))


def test_a_workflow_that_ended_says_so_once() -> None:
    manifest = FileManifest(
        path="mix.py", workflows=[shop(), WorkflowManifest(name="Browse", profile=Profile())]
    )

    def both(elapsed_s: float) -> Snapshot:
        over = moment(elapsed_s=2.0, ended=True, iterations=40, failed_share=0.0)
        return snapshot(elapsed_s, workflows=(over, moment("Browse", elapsed_s)))

    shown = lines_of(both(3.0), both(4.0), manifest=manifest)
    assert [line for line in shown if "Shop" in line] == [
        "00:02/05:00  Shop  ended, 40 iterations  failed 0%"
    ]


def test_a_line_by_datacenter_follows_the_line_of_the_run() -> None:
    eu = DatacenterSnapshot(
        name="eu",
        part=0.6,
        state="running",
        iterations_now_per_s=298.0,
        target_per_s=300.0,
        p95_now_s=0.044,
        samples_now=298,
    )
    us = DatacenterSnapshot(name="us", part=0.4, state="running", silent_s=5.2, samples_now=9)
    lost = DatacenterSnapshot(name="ap", part=0.1, state="lost", note="gave up")
    waits = DatacenterSnapshot(name="sa", part=0.1, state="queued")
    lines = lines_of(snapshot(datacenters=(eu, us, lost, waits)))
    assert lines[-1] == (
        "00:12  eu 298/s of 300 failed 0% p95 44.0ms | us silent for 5 s | ap lost | sa queued"
    )
