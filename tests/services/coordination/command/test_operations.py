"""`squall coord doctor`, `secret rotate` and `install` against the stores that another process
can open."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from squall.cli.main import main
from squall.coordination.coordinator import Coordinator
from squall.coordination.members.housekeeping import NamespaceMeta
from squall.coordination.operations.doctor import examine
from squall.coordination.operations.secret_rotation import SecretRotation, promote
from squall.coordination.records import keys
from squall.coordination.records.schemas import HeartbeatRecord, LeaseRecord
from squall.coordination.secrets.signing import Key
from squall.coordination.secrets.sources import generate_secret
from squall.coordination.stores.interface import ANY, Fence, Put, Store
from tests.lab.programs import ROOT
from tests.services.coordination.lab.coord_command import (
    CODEC,
    beat,
    coord,
    populate,
    secret,
    shared,
    verdicts,
    write,
)
from tests.services.coordination.lab.places import Place
from tests.services.coordination.programs.member import scaled

__all__ = ["secret", "shared"]
NAMES = ("staging", "default")


def test_a_namespace_that_works_is_found_good(
    shared: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run(store: Store) -> None:
        profile = scaled(3.0 if shared.kind == "s3" else 1.0)
        options = {"profile": profile, "unsafe_timings": True, "secret": generate_secret()}
        async with Coordinator(store, **options) as member:
            await member.ensure_coordinator(timeout_s=60.0)
            guarded = member.parts.patient
            findings = await examine(guarded, await guarded.now_ms() / 1000.0)
        # There was no cleanup in the first second; everything else is as it should be.
        assert [each.about for each in findings if each.verdict != "good"] == ["cleanup"]

    write(shared, run)
    assert coord(shared, "doctor") == 0
    assert "no member leads" in capsys.readouterr().out


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_the_secret_that_the_library_made_may_stay_for_ever(shared: Place) -> None:
    async def run(store: Store) -> None:
        async with Coordinator(store, profile=scaled(1.0), unsafe_timings=True) as member:
            await member.ensure_coordinator(timeout_s=60.0)
            guarded = member.parts.patient
            assert "secret" in await guarded.count()
            findings = await examine(guarded, await guarded.now_ms() / 1000.0)
        (expiry,) = (each for each in findings if each.about == "expiry")
        assert (expiry.verdict, expiry.text) == ("good", "every record expires")

    write(shared, run)


def test_what_is_wrong_is_named(shared: Place, capsys: pytest.CaptureFixture[str]) -> None:
    async def spoil(store: Store) -> None:
        await populate(store)
        ahead = HeartbeatRecord(member_id="ahead", boot=2, sequence=7, timestamp=0.0, epoch=9)
        await store.write(
            Put(keys.heartbeat("ahead"), CODEC.encode(ahead), expect=ANY, ttl_s=600.0),
            Put("session/1", b"{}", expect=ANY, ttl_s=None),
        )

    write(shared, spoil)
    assert coord(shared, "doctor", "--json", "--queue", "mail") == 1
    found = verdicts(capsys.readouterr().out)
    assert found["coordinator"] == "good" and found["store"] == "good"
    assert found["epoch"] == "bad"
    assert found["members"] == "doubtful" and found["expiry"] == "doubtful"
    assert found["queue mail"] == "good"


def test_production_asks_for_more(shared: Place, capsys: pytest.CaptureFixture[str]) -> None:
    async def stage(store: Store) -> None:
        await store.write(
            Put(
                keys.META,
                msgspec.json.encode(NamespaceMeta(environment="staging")),
                expect=ANY,
                ttl_s=None,
            ),
            beat("one"),
        )

    write(shared, stage)
    assert coord(shared, "doctor", "--json", "--production") == 1
    found = verdicts(capsys.readouterr().out)
    assert found["environment"] == "bad" and found["cleanup"] == "bad"
    assert found["source"] == "doubtful"


def test_a_secret_in_a_file_is_changed_step_by_step(
    shared: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "secret"
    old = generate_secret()
    file.write_text(f"{old}\n")
    file.chmod(0o600)
    source = ("--secret-source", f"file:{file}")
    rotate = ("secret", "rotate")
    assert coord(shared, *rotate, "promote", *source) == 104
    assert coord(shared, *rotate, "start", *source) == 0
    first, second = file.read_text().split()
    assert first == old and file.stat().st_mode & 0o777 == 0o600
    assert coord(shared, *rotate, "start", *source) == 104
    old_key, new_key = (Key(each, *NAMES).key_id for each in (first, second))

    def members(*accepted: tuple[str, ...], signing: str) -> None:
        async def put(store: Store) -> None:
            now_ms = await store.now_ms()
            for number, key_ids in enumerate(accepted):
                record = HeartbeatRecord(
                    member_id=f"m{number}",
                    boot=1,
                    sequence=1,
                    timestamp=0.0,
                    key_ids=key_ids,
                )
                name = keys.heartbeat(f"m{number}")
                await store.write(Put(name, CODEC.encode(record), expect=ANY, ttl_s=60.0))
            lease = LeaseRecord(
                epoch=5,
                member_id="m0",
                boot=1,
                token="t",
                elected_at=0.0,
                renewals=1,
                lease_ttl=90.0,
                term_ends_at=0.0,
                signing_key=signing,
            )
            await store.write(
                Put(keys.LEADER, CODEC.encode(lease), expect=ANY, ttl_s=None),
                fence=Fence(keys.LEADER, 5),
            )
            meta = NamespaceMeta(
                environment="staging", signing_since_ms={new_key: now_ms - 3_600_000}
            )
            encoded = msgspec.json.encode(meta)
            await store.write(Put(keys.META, encoded, expect=ANY, ttl_s=None))

        write(shared, put)

    members((old_key, new_key), (old_key,), signing=old_key)
    capsys.readouterr()
    assert coord(shared, *rotate, "status", "--json") == 0
    status = json.loads(capsys.readouterr().out)
    assert status["accepted"] == {old_key: 2, new_key: 1} and status["lacking"][new_key] == ["m1"]
    assert coord(shared, *rotate, "promote", *source) == 104
    assert "m1" in capsys.readouterr().err
    members((old_key, new_key), (old_key, new_key), signing=new_key)
    assert coord(shared, *rotate, "abort", *source) == 104
    assert coord(shared, *rotate, "promote", *source) == 104
    assert "23.0 h" in capsys.readouterr().err
    assert coord(shared, *rotate, "promote", "--force", *source) == 0
    assert file.read_text().split() == [second]
    told = capsys.readouterr()
    assert first not in told.out + told.err and second not in told.out + told.err


def test_a_day_after_all_sign_with_it_a_secret_is_promoted(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    first, second = generate_secret(), generate_secret()
    new = Key(second, *NAMES).key_id
    file.write_text(f"{first}\n{second}\n")
    found = SecretRotation(
        signing=new,
        signs_for_s=90_000.0,
        accepted={new: 2},
        seen_s={new: 90_000.0},
        live=2,
        lacking={new: []},
    )
    promote(file, found, *NAMES)
    assert file.read_text().split() == [second]


INSTALL = ("coord", "install", "cleanup", "--folder")
VARIABLE = "SQUALL_COORD_STORE"


@pytest.mark.parametrize("way", ["--systemd", "--cron", "--kubernetes"])
def test_a_cleanup_without_a_store_says_where_to_name_it(
    way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert main([*INSTALL, str(tmp_path), way]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    place = {
        "--systemd": "/etc/squall/coordination.env",
        "--cron": str(tmp_path / "squall-coord-cleanup"),
        "--kubernetes": "secret squall-coordination",
    }[way]
    assert last.startswith(f"fill in the store: {VARIABLE} in ") and place in last
    assert main([*INSTALL, str(tmp_path), way, "--overwrite", "--store", "redis://redis/0"]) == 0
    assert "fill in" not in capsys.readouterr().out


def cron_lines(path: Path) -> tuple[dict[str, str], str]:
    """The variables and the job of a file for /etc/cron.d."""
    lines = [line for line in path.read_text().splitlines() if line and line[0] != "#"]
    *settings, job = lines
    return {name: value.strip('"') for name, _, value in (s.partition("=") for s in settings)}, job


@pytest.mark.parametrize(
    ("found", "written"),
    [
        ("", ""),
        ("redis://redis.internal:6379/0", "redis://redis.internal:6379/0"),
        ("redis://:hush@redis.internal/0", ""),
    ],
)
def test_a_job_of_cron_finds_the_store_that_was_set_when_it_was_installed(
    found: str,
    written: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, found)
    assert main([*INSTALL, str(tmp_path), "--cron"]) == 0
    variables, job = cron_lines(tmp_path / "squall-coord-cleanup")
    assert variables[VARIABLE] == written and "/usr/local/bin" in variables["PATH"]
    assert job.startswith("*/5 * * * * squall squall coord cleanup --once") and "%" not in job
    told = capsys.readouterr().out
    assert ("fill in" in told) == (not written) and "hush" not in told


def test_a_job_of_kubernetes_has_the_variables_of_a_secret(tmp_path: Path) -> None:
    def container(*words: str) -> dict[str, Any]:
        assert main([*INSTALL, str(tmp_path), "--kubernetes", "--overwrite", *words]) == 0
        job = yaml.safe_load((tmp_path / "squall-coord-cleanup.yaml").read_text())
        (found,) = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
        return found

    needed = {"secretRef": {"name": "squall-coordination", "optional": False}}
    assert container()["envFrom"] == [needed]
    assert container()["command"] == ["squall", "coord", "cleanup", "--once"]
    named = container("--store", "s3://bucket/prefix")
    assert named["command"][-2:] == ["--store", "s3://bucket/prefix"]
    assert named["envFrom"][0]["secretRef"]["optional"] is True


def test_the_files_in_deploy_are_those_that_install_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    deployed = ROOT / "deploy" / "coordination"
    for way in ("--systemd", "--cron", "--kubernetes"):
        assert main([*INSTALL, str(tmp_path), way]) == 0
    for written, kept in (
        ("squall-coord-cleanup.service", "systemd/squall-coord-cleanup.service"),
        ("squall-coord-cleanup.timer", "systemd/squall-coord-cleanup.timer"),
        ("squall-coord-cleanup", "cleanup.cron"),
        ("squall-coord-cleanup.yaml", "cleanup.yaml"),
    ):
        assert (tmp_path / written).read_text() == (deployed / kept).read_text()


def test_the_files_of_the_cleanup_are_written_and_hold_no_password(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install = ("coord", "install", "cleanup", "--folder", str(tmp_path))
    store = ("--store", "redis://redis.internal:6379/0")
    assert main([*install, "--systemd", *store]) == 0
    assert main([*install, "--systemd", *store]) == 104
    assert main([*install, "--systemd", "--overwrite", *store]) == 0
    assert main([*install, "--cron"]) == 0
    assert main([*install, "--kubernetes", *store, "--image", "registry/squall:1"]) == 0
    assert main([*install, "--cron", "--store", "redis://:hush@redis.internal/0"]) == 104
    assert "hush" not in "".join(path.read_text() for path in tmp_path.iterdir())
    job = yaml.safe_load((tmp_path / "squall-coord-cleanup.yaml").read_text())
    assert job["spec"]["schedule"] == "*/5 * * * *"
    (container,) = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert container["command"][-1] == store[1] and container["image"] == "registry/squall:1"
    _, line = cron_lines(tmp_path / "squall-coord-cleanup")
    assert line.startswith("*/5 * * * * squall squall coord cleanup --once")
    units = sorted(str(path) for path in tmp_path.glob("*.[st]*r*"))
    assert [Path(unit).suffix for unit in units] == [".service", ".timer"]
    if shutil.which("systemd-analyze"):
        subprocess.run(["systemd-analyze", "verify", *units], check=True)
