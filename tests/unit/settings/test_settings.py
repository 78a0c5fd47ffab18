"""The settings tree: ranks of sources, messages, profiles, checks, digest."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from squall.api.errors import ConfigError
from squall.cluster.protocol.timers import timers_of
from squall.cluster.settings_tree import Settings, load_settings
from squall.settings.loader import Sources, digest, leaves
from squall.settings.shared_sections import TIMER_PROFILES, TimerSettings, check_timers


def loaded(
    tmp_path: Path,
    toml: str = "",
    *,
    environment: dict[str, str] | None = None,
    flags: dict[str, str] | None = None,
) -> Settings:
    file = tmp_path / "squall.toml"
    file.write_text(toml, encoding="utf-8")
    return load_settings(Sources(file, environment or {}, flags or {}))


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


def test_without_sources_everything_is_the_default(tmp_path: Path) -> None:
    assert loaded(tmp_path) == Settings()


def test_a_file_yields_to_the_environment_and_that_to_flags(tmp_path: Path) -> None:
    toml = '[log]\nlevel = "debug"\nburst = 7\nevents_per_s = 2\n'
    environment = {"SQUALL_LOG__LEVEL": "warning", "SQUALL_LOG__BURST": "8"}
    settings = loaded(tmp_path, toml, environment=environment, flags={"log.level": "error"})
    assert settings.log.level == "error"
    assert settings.log.burst == 8
    assert settings.log.events_per_s == 2.0


def test_text_is_read_as_the_type_of_its_setting(tmp_path: Path) -> None:
    flags = {
        "log.json": "true",
        "cluster.accepted_secret_files": "a, b",
        "admission.warn_at": "0.5,0.6",
        "wire.ping_interval_s": "2",
    }
    tree = loaded(tmp_path, flags=flags)
    assert tree.log.json is True
    assert tree.cluster.accepted_secret_files == ("a", "b")
    assert tree.admission.warn_at == (0.5, 0.6)
    assert tree.wire.ping_interval_s == 2.0


def test_variables_that_are_no_settings_are_left_alone(tmp_path: Path) -> None:
    environment = {"SQUALL_LOADING": "1", "PATH": "/bin", "OTHER__THING": "x"}
    assert loaded(tmp_path, environment=environment) == Settings()


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
            "[wire]\nstall_s = inf",
            "setting wire.stall_s = inf (squall.toml): must be a number of at least 0, such as 10",
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


def test_tls_needs_all_of_its_files(tmp_path: Path) -> None:
    assert refused(tmp_path, '[tls]\ncertificate = "a.pem"') == (
        "setting tls.key is not set: TLS needs certificate, key and ca "
        "(given: tls.certificate by squall.toml)"
    )
    assert "tls.certificate is not set" in refused(tmp_path, '[tls]\nkey = "a"\nca = "b"')
    assert loaded(tmp_path, '[tls]\ncertificate = "a"\nkey = "b"\nca = "c"').tls.ca == "c"


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the settings in .*absent\.toml"):
        load_settings(Sources(tmp_path / "absent.toml", {}))
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
    timers = loaded(tmp_path, flags={"timers.profile": profile}).timers
    assert timers.heartbeat_round_s == heartbeat_s
    assert timers.follower_timeout_s == follower_s
    assert timers.failover_bound_s == bound_s
    assert timers.lease_s(3) == lease_s
    assert timers.lost_after_s(timers.lease_s(3)) == pytest.approx(lost_after_s)


def test_a_group_of_one_waits_longer(tmp_path: Path) -> None:
    timers = loaded(tmp_path).timers
    assert timers.lease_s(1) == 20.0
    assert timers.lost_after_s(20.0) == pytest.approx(23.0)


def test_sessions_slow_down_with_the_number_of_workers() -> None:
    timers = TimerSettings()
    assert timers.session_interval_s(10) == 1.0
    assert timers.session_interval_s(3000) == 1.5
    assert timers.session_interval_s(100_000) == 2.0


def test_every_profile_passes_its_own_checks(tmp_path: Path) -> None:
    for profile in TIMER_PROFILES:
        loaded(tmp_path, flags={"timers.profile": profile})


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


# What members compare.


def test_the_digest_changes_with_shared_values_only(tmp_path: Path) -> None:
    plain = digest(loaded(tmp_path))
    assert plain == digest(loaded(tmp_path, "[log]\nburst = 3"))
    assert plain != digest(loaded(tmp_path, "[timers]\njitter_s = 0.2"))
    assert plain != digest(loaded(tmp_path, "[timers]\nexecution_lease_s = 16"))
    assert plain != digest(loaded(tmp_path, '[cluster]\nid = "load-eu"'))


def test_a_value_that_is_spelt_differently_has_the_same_digest(tmp_path: Path) -> None:
    as_int = loaded(tmp_path, "[timers]\nexecution_lease_s = 15")
    assert digest(as_int) == digest(Settings())


# Jobs and clients.


def test_a_job_setting_out_of_range_is_one_clear_line(tmp_path: Path) -> None:
    for toml, line in (
        ("retries_max = -1", "jobs.retries_max = -1 (squall.toml): must be a whole number of at"),
        ("retention_s = 5", "of at least 10, such as 1800"),
        ("queue_max = 0", "jobs.queue_max = 0 (squall.toml): must be a whole number of at least 1"),
        ("stuck_s = 20", "jobs.stuck_s = 20 (squall.toml): stuck_s must be at least 25"),
        ("dispatch_timeout_s = 5", "dispatch_timeout_s must be at least 30"),
    ):
        text = refused(tmp_path, f"[jobs]\n{toml}\n")
        assert line in text and "\n" not in text, text
    rate = refused(tmp_path, environment={"SQUALL_CLIENTS__SUBMITS_PER_S": "0"})
    assert "clients.submits_per_s" in rate and "a number above 0, such as 20" in rate


def test_a_probe_leaves_time_to_ask_others(tmp_path: Path) -> None:
    text = refused(tmp_path, "[membership]\nprobe_timeout_s = 1.0\n")
    assert "membership.probe_timeout_s" in text and "below probe_interval_s" in text
    off = loaded(tmp_path, "[membership]\nmax_nodes = 0\n")
    assert off.membership.max_nodes == 0
    fast = loaded(tmp_path, '[timers]\nprofile = "fast"\n')
    assert fast.membership.probe_interval_s == 0.2


def test_the_profile_chooses_defaults_of_jobs_too(tmp_path: Path) -> None:
    fast = loaded(tmp_path, '[timers]\nprofile = "fast"\n[jobs]\nretries_max = 0\n')
    assert (fast.jobs.stuck_s, fast.jobs.dispatch_timeout_s) == (20.0, 30.0)
    work = timers_of(fast.timers, 1, fast.jobs)
    assert (work.stuck_s, work.retries_max, work.retention_s) == (20.0, 0, 1800.0)
    assert timers_of(fast.timers, 1) == msgspec.structs.replace(work, retries_max=3)


def test_the_reference_lists_every_setting_with_its_default() -> None:
    page = Path(__file__).parents[3] / "docs" / "settings.md"
    listed: dict[str, tuple[str, ...]] = {}
    section = ""
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("## `["):
            section = line.removeprefix("## `[").removesuffix("]`")
        elif line.startswith("| `"):
            name, *cells = (cell.strip() for cell in line.strip("|").split(" | "))
            listed[f"{section}.{name.strip(' `')}"] = tuple(cells[:-1])
    plain = msgspec.to_builtins(loaded_tree({}))
    fast = msgspec.to_builtins(loaded_tree({"timers.profile": "fast"}))
    for key, kind in leaves(Settings).items():
        assert key in listed, f"{key} ({kind}) is not in docs/settings.md"
        name, field = key.split(".")
        default, *of_fast = listed[key]
        assert read(default) == plain[name][field], key
        if of_fast and key != "timers.profile":
            shown = read(default if of_fast[0] == "the same" else of_fast[0])
            assert shown == fast[name][field], key
    assert set(listed) == set(leaves(Settings))


def loaded_tree(flags: dict[str, str]) -> Settings:
    return load_settings(Sources(None, {}, flags))


def read(cell: str) -> object:
    found = msgspec.json.decode(cell)
    return tuple(found) if isinstance(found, list) else found
