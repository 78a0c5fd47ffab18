"""The settings tree: ranks of sources, messages, profiles, checks, digest."""

from __future__ import annotations

from pathlib import Path

import pytest

from squall.api.errors import ConfigError
from squall.runtime.sections import ClusterSettings, TimerSettings, check_timers, require_cluster
from squall.runtime.settings import Loaded, Sources, digest
from squall.settings import Role, Settings, load_settings


def loaded(
    tmp_path: Path,
    toml: str = "",
    *,
    environment: dict[str, str] | None = None,
    flags: dict[str, str] | None = None,
    role: Role = "manager",
) -> Loaded[Settings]:
    file = tmp_path / "squall.toml"
    file.write_text(toml, encoding="utf-8")
    return load_settings(role, Sources(file, environment or {}, flags or {}))


def refused(
    tmp_path: Path,
    toml: str = "",
    *,
    environment: dict[str, str] | None = None,
    flags: dict[str, str] | None = None,
) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, toml, environment=environment, flags=flags)
    return str(caught.value)


def source_of(settings: Loaded[Settings], key: str) -> str:
    return next(value.source for value in settings.explain() if value.key == key)


def test_without_sources_everything_is_the_default(tmp_path: Path) -> None:
    settings = loaded(tmp_path, role="client")
    assert settings.tree == Settings()
    assert {value.source for value in settings.explain()} == {"default"}


def test_a_file_yields_to_the_environment_and_that_to_flags(tmp_path: Path) -> None:
    toml = '[log]\nlevel = "debug"\nburst = 7\nevents_per_s = 2\n'
    environment = {"SQUALL_LOG__LEVEL": "warning", "SQUALL_LOG__BURST": "8"}
    settings = loaded(tmp_path, toml, environment=environment, flags={"log.level": "error"})
    assert settings.tree.log.level == "error"
    assert settings.tree.log.burst == 8
    assert settings.tree.log.events_per_s == 2.0
    assert source_of(settings, "log.level") == "--set log.level"
    assert source_of(settings, "log.burst") == "SQUALL_LOG__BURST"
    assert source_of(settings, "log.events_per_s") == "squall.toml"
    assert source_of(settings, "log.json") == "default"


def test_text_is_read_as_the_type_of_its_setting(tmp_path: Path) -> None:
    flags = {
        "log.json": "true",
        "cluster.accepted_secret_files": "a, b",
        "admission.warn_at": "0.5,0.6",
        "retry.max_attempts": "null",
        "wire.ping_interval_s": "2",
    }
    tree = loaded(tmp_path, flags=flags).tree
    assert tree.log.json is True
    assert tree.cluster.accepted_secret_files == ("a", "b")
    assert tree.admission.warn_at == (0.5, 0.6)
    assert tree.retry.max_attempts is None
    assert tree.wire.ping_interval_s == 2.0


def test_variables_that_are_no_settings_are_left_alone(tmp_path: Path) -> None:
    environment = {"SQUALL_LOADING": "1", "PATH": "/bin", "OTHER__THING": "x"}
    assert loaded(tmp_path, environment=environment, role="client").tree == Settings()


@pytest.mark.parametrize(
    ("toml", "expected"),
    [
        (
            "[timers]\nheartbeat_round_s = -1",
            "setting timers.heartbeat_round_s = -1 (squall.toml): must be a number above 0, "
            "such as 0.25",
        ),
        (
            '[log]\nlevel = "loud"',
            'setting log.level = "loud" (squall.toml): must be one of "debug", "error", "info", '
            '"warning", such as "info"',
        ),
        (
            '[cluster]\nid = "Load EU"',
            'setting cluster.id = "Load EU" (squall.toml): must be text that matches '
            '^([a-z0-9][a-z0-9-]{0,62})?$, such as "load-eu"',
        ),
        (
            "[wire]\nqueue_messages = -5",
            "setting wire.queue_messages = -5 (squall.toml): must be a whole number of at least "
            "0, such as 500",
        ),
        (
            "[log]\nburst = 1.5",
            "setting log.burst = 1.5 (squall.toml): must be a whole number of at least 1, "
            "such as 50",
        ),
        (
            "[retry]\nbase_s = inf",
            "setting retry.base_s = inf (squall.toml): must be a number of at least 0, such as 0.5",
        ),
        (
            "[timers]\nfolower_timeout_s = 3",
            "setting timers.folower_timeout_s (squall.toml): there is no such setting; did you "
            "mean timers.follower_timeout_s?",
        ),
    ],
)
def test_a_mistake_names_key_value_source_and_remedy(
    tmp_path: Path, toml: str, expected: str
) -> None:
    assert refused(tmp_path, toml) == expected


def test_a_setting_in_the_wrong_section_is_pointed_home(tmp_path: Path) -> None:
    assert "did you mean timers.stagger_s?" in refused(tmp_path, "[network]\nstagger_s = 1")


def test_an_unknown_variable_is_refused_like_an_unknown_key(tmp_path: Path) -> None:
    message = refused(tmp_path, environment={"SQUALL_LOGG__LEVEL": "info"})
    assert "logg.level (SQUALL_LOGG__LEVEL)" in message
    assert "did you mean log.level?" in message


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    message = refused(
        tmp_path,
        "[log]\nburst = 0\n[timer]\nx = 1",
        environment={"SQUALL_LOG__JSON": "perhaps"},
        flags={"wire.stall_s": "soon"},
    )
    assert message.startswith("4 settings are wrong:\n")
    for part in ("log.burst = 0", "timer.x", 'log.json = "perhaps"', 'wire.stall_s = "soon"'):
        assert part in message


def test_a_section_that_refuses_its_values_is_named_with_what_was_given(tmp_path: Path) -> None:
    message = refused(tmp_path, flags={"admission.data_max": "100000"})
    assert "admission." in message
    assert "the limits nest" in message
    assert "given: admission.data_max by --set admission.data_max" in message
    message = refused(tmp_path, flags={"wire.dead_after_s": "1"})
    assert "wire.dead_after_s = 1 must be at least twice" in message


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the settings in .*absent\.toml"):
        load_settings("gate", Sources(tmp_path / "absent.toml", {}))
    assert "squall.toml is not TOML" in refused(tmp_path, "[log\n")


# Timers: the table of profiles and its checks.


@pytest.mark.parametrize(
    ("profile", "heartbeat_s", "follower_s", "bound_s", "lease_s", "lost_after_s"),
    [
        ("lan", 0.25, 2.0, 3.9, 15.0, 17.5),
        ("fast", 0.05, 0.4, 0.8, 2.5, 2.95),
    ],
)
def test_a_profile_sets_all_timers(
    tmp_path: Path,
    profile: str,
    heartbeat_s: float,
    follower_s: float,
    bound_s: float,
    lease_s: float,
    lost_after_s: float,
) -> None:
    timers = loaded(tmp_path, flags={"timers.profile": profile}).tree.timers
    assert timers.heartbeat_round_s == heartbeat_s
    assert timers.follower_timeout_s == follower_s
    assert timers.failover_bound_s == bound_s
    assert timers.lease_s(3) == lease_s
    assert timers.lost_after_s(timers.lease_s(3)) == pytest.approx(lost_after_s)


def test_gates_are_far_apart_by_default_and_hold_no_lease(tmp_path: Path) -> None:
    settings = loaded(tmp_path, role="gate")
    assert settings.tree.timers.follower_timeout_s == 8.0
    assert source_of(settings, "timers.follower_timeout_s") == "timers.profile wan"
    with pytest.raises(ConfigError, match="execution_lease_s is not set"):
        settings.tree.timers.lease_s(3)


def test_a_group_of_one_waits_longer(tmp_path: Path) -> None:
    timers = loaded(tmp_path).tree.timers
    assert timers.lease_s(1) == 60.0
    assert timers.lost_after_s(60.0) == pytest.approx(67.0)


def test_sessions_slow_down_with_the_number_of_workers() -> None:
    timers = TimerSettings()
    assert timers.session_interval_s(10) == 1.0
    assert timers.session_interval_s(3000) == 1.5
    assert timers.session_interval_s(100_000) == 2.0


@pytest.mark.parametrize("role", ["gate", "manager", "worker", "client"])
def test_every_profile_passes_its_own_checks_in_every_role(tmp_path: Path, role: Role) -> None:
    for profile in ("lan", "wan", "fast"):
        loaded(tmp_path, flags={"timers.profile": profile}, role=role)


@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [
        ("check_quorum_s", 2.0, "check_quorum_s must be below follower_timeout_s"),
        ("heartbeat_round_s", 0.26, "at least 8 x heartbeat_round_s = 2.08"),
        ("failover_bound_s", 3.7, "failover_bound_s must be at least 3.75"),
        ("execution_lease_s", 13.7, "session_interval_max_s = 13.8"),
        ("execution_lease_alone_s", 13.7, "session_interval_max_s = 13.8"),
        ("session_interval_min_s", 3.0, "must not exceed session_interval_max_s"),
    ],
)
def test_unsafe_timers_are_refused(tmp_path: Path, key: str, value: float, remedy: str) -> None:
    message = refused(tmp_path, flags={f"timers.{key}": str(value)})
    assert remedy in message
    assert f"timers.{key} = {value:g} (--set timers.{key})" in message


def test_a_limit_that_is_just_met_passes() -> None:
    assert not list(check_timers(TimerSettings(execution_lease_s=13.8)))
    assert not list(check_timers(TimerSettings(failover_bound_s=3.75)))


# What members compare, and what a real node needs.


def test_the_digest_changes_with_shared_values_only(tmp_path: Path) -> None:
    plain = digest(loaded(tmp_path).tree)
    assert plain == digest(loaded(tmp_path, "[log]\nburst = 3").tree)
    assert plain == digest(loaded(tmp_path, role="worker").tree)
    assert plain != digest(loaded(tmp_path, "[timers]\njitter_s = 0.2").tree)
    assert plain != digest(loaded(tmp_path, "[timers]\nexecution_lease_s = 16").tree)
    assert plain != digest(loaded(tmp_path, '[cluster]\nid = "load-eu"').tree)


def test_a_value_that_is_spelt_differently_has_the_same_digest(tmp_path: Path) -> None:
    as_int = loaded(tmp_path, "[timers]\nexecution_lease_s = 15").tree
    assert digest(as_int) == digest(Settings())


def test_admission_and_queues_follow_the_role(tmp_path: Path) -> None:
    assert loaded(tmp_path, role="gate").tree.admission.shared_max == 2000
    assert loaded(tmp_path, role="manager").tree.admission.shared_max == 5000
    worker = loaded(tmp_path, role="worker")
    assert worker.tree.admission.telemetry_max == 100
    assert worker.tree.wire.queue_messages == 250
    assert source_of(worker, "admission.telemetry_max") == "default of a worker"


def test_a_real_node_needs_a_cluster_and_a_secret() -> None:
    with pytest.raises(ConfigError, match=r"cluster\.id is not set"):
        require_cluster(ClusterSettings(secret_file="s"))
    with pytest.raises(ConfigError, match=r"cluster\.secret_file is not set"):
        require_cluster(ClusterSettings(id="eu"))
    require_cluster(ClusterSettings(id="eu", secret_file="s"))
