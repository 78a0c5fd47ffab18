"""`squall coord doctor`, `coord secret rotate` and `coord install`: occasional tasks of operators.
The rules are in `squall.coordination.operations`; this module prints and writes files.

An installation writes files for the system's own tools; it starts nothing, and it replaces
existing files only with `--overwrite`.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from argparse import Namespace
from pathlib import Path

from squall.api.errors import ConfigError, ExitCode, UsageError
from squall.cli.coord import command as coord
from squall.coordination.operations import secret_rotation as rotation
from squall.coordination.operations.doctor import examine
from squall.coordination.operations.findings import Finding, worst
from squall.coordination.operations.inspect import find_leader
from squall.coordination.operations.production_checklist import checklist
from squall.coordination.operations.secret_rotation import SecretRotation, rotation_of
from squall.coordination.options import Options
from squall.coordination.secrets.keyrings import DEFAULT_ENVIRONMENT
from squall.coordination.secrets.sources import ENV_NAME, read_secrets
from squall.reporting.text.layout import aligned
from squall.reporting.text.standard_streams import print_json, print_or_drop

UNIT = "squall-coord-cleanup"
SETTINGS = "/etc/squall/coordination.env"
CRON_FOLDER = Path("/etc/cron.d")
KUBERNETES_SECRET = "squall-coordination"
SERVICE = """\
# Runs the cleanup once. squall-coord-cleanup.timer starts it every five minutes.
[Unit]
Description=Squall coordination: remove what stale members left behind
After=network-online.target
Wants=network-online.target

[Service]
Type=oneshot
# Sets SQUALL_COORD_STORE=redis://redis.internal:6379/0 and other variables that the store needs.
EnvironmentFile=-/etc/squall/coordination.env
ExecStart={command}
TimeoutStartSec=300
DynamicUser=yes
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
"""
TIMER = """\
# Runs the cleanup every five minutes, first five minutes after the machine has started.
[Unit]
Description=Squall coordination: cleanup every five minutes

[Timer]
OnBootSec=5min
OnUnitActiveSec=5min
AccuracySec=1s

[Install]
WantedBy=timers.target
"""
CRON = """\
# /etc/cron.d/squall-coord-cleanup: runs the cleanup every five minutes as the user squall. Prefer
# the systemd timer. Runs never overlap: a second one prints "already running" and exits with 0.
# The store, for instance redis://redis.internal:6379/0. If it has a password, chmod this file 600.
SQUALL_COORD_STORE="{store}"
PATH=/usr/local/bin:/usr/bin:/bin
*/5 * * * * squall {command} 2>&1 | logger -t squall-coord-cleanup
"""
KUBERNETES = """\
# Runs the cleanup every five minutes. The secret holds SQUALL_COORD_STORE and other variables that
# the store needs:
#   kubectl create secret generic {secret} --from-env-file=coordination.env
apiVersion: batch/v1
kind: CronJob
metadata:
  name: squall-coord-cleanup
spec:
  schedule: "*/5 * * * *"
  concurrencyPolicy: Forbid
  jobTemplate:
    spec:
      activeDeadlineSeconds: 240
      template:
        spec:
          restartPolicy: Never
          containers:
            - name: cleanup
              image: {image}
              command: [{words}]
              envFrom:
                - secretRef:
                    name: {secret}
                    optional: {optional}
"""


async def doctor(arguments: Namespace) -> int:
    rules, dashboard = _text_of(arguments.rules), _text_of(arguments.dashboard)
    async with coord.opened(arguments) as store:
        timing = Options(profile=arguments.profile).timing_for(store.capabilities)
        findings = await examine(
            store,
            time.time(),
            queues=arguments.queue,
            production=arguments.production,
            timing=timing,
        )
        if arguments.production:
            findings += await checklist(
                store,
                await find_leader(store),
                timing,
                blocking_timeout_ms=os.environ.get("BLOCKING_TIMEOUT"),
                rules=rules,
                dashboard=dashboard,
            )
    if arguments.production or arguments.secret_source is not None:
        findings += await _source(arguments)
    if arguments.json:
        print_json({"verdict": worst(findings), "findings": findings})
    else:
        rows = [(each.about, each.verdict, each.text) for each in findings]
        lines: list[str] = []
        for row, finding in zip(aligned(rows), findings, strict=True):
            lines.append(row)
            if finding.advice:
                lines.append(f"    {finding.advice}")
        print_or_drop("\n".join(lines))
    return int(ExitCode.INTERNAL if worst(findings) == "bad" else ExitCode.PASSED)


def _text_of(name: str | None) -> str | None:
    if name is None:
        return None
    try:
        return Path(name).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"there is no file {name}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name} cannot be read: {error}") from None


async def _source(arguments: Namespace) -> list[Finding]:
    """Checks where a service reads its secret from."""
    source = arguments.secret_source
    if source is None:
        text = "not checked"
        advice = f"name it with --secret-source; {ENV_NAME} alone is the least protected place"
        return [Finding(about="source", verdict="doubtful", text=text, advice=advice)]
    strict = bool(arguments.production)
    environment = "production" if strict else coord.environment_of(arguments)
    secrets = await read_secrets(
        source, environment=environment or DEFAULT_ENVIRONMENT, strict=strict
    )
    text = f"{source.partition(':')[0]}: holds {len(secrets.values)}, strong enough"
    return [Finding(about="source", verdict="good", text=text)]


async def rotate(arguments: Namespace) -> int:
    step = arguments.rotate_command
    path = None if step == "status" else _file_of(arguments)
    environment = coord.environment_of(arguments) or DEFAULT_ENVIRONMENT
    if step == "start" and path is not None:
        print_or_drop(rotation.start(path, environment))
        return 0
    async with coord.opened(arguments) as store:
        found = await rotation_of(store)
    if path is None:
        return _show(found, as_json=arguments.json)
    names = (environment, arguments.namespace)
    if step == "promote":
        print_or_drop(rotation.promote(path, found, *names, force=arguments.force))
    else:
        print_or_drop(rotation.abort(path, found, *names))
    return 0


def _file_of(arguments: Namespace) -> Path:
    scheme, _, rest = (arguments.secret_source or "").partition(":")
    if scheme != "file" or not rest:
        raise UsageError(
            "rotate changes secrets in a file: name it with --secret-source file:/path. Change "
            "other sources with their own tools and check with rotate status"
        )
    return Path(rest)


def _show(found: SecretRotation, *, as_json: bool) -> int:
    if as_json:
        return print_json(found)
    rows = [("KEY", "ACCEPTED BY", "FIRST SEEN", "SIGNS")]
    for key, number in found.accepted.items():
        signs = f"for {found.signs_for_s / 3600.0:.1f} h" if key == found.signing else "-"
        seen = f"{found.seen_s[key] / 86_400.0:.1f} days ago"
        rows.append((key, f"{number} of {found.live}", seen, signs))
    lines = aligned(rows) if found.accepted else ["no live member signs"]
    lines += [
        f"{key} is not accepted by {', '.join(lacking[:5])}"
        for key, lacking in found.lacking.items()
        if lacking
    ]
    print_or_drop("\n".join(lines))
    return 0


def install(arguments: Namespace) -> int:
    """Writes the files that run the cleanup."""
    words = ["squall", "coord", "cleanup", "--once"]
    folder = Path(arguments.folder)
    if arguments.systemd:
        place = SETTINGS
        after = f"systemctl enable --now {UNIT}.timer"
    elif arguments.cron:
        place = f"{folder / UNIT} (with a password: chmod 600)"
        is_in_cron_folder = folder.resolve() == CRON_FOLDER
        after = "cron runs it" if is_in_cron_folder else f"copy it to {CRON_FOLDER / UNIT}"
    else:
        place = f"the Kubernetes secret {KUBERNETES_SECRET}"
        after = f"kubectl apply -f {UNIT}.yaml"
    store = _store_for(arguments, place)
    if store and not arguments.cron:
        words += ["--store", store]
    if arguments.namespace != "default":
        words += ["--namespace", arguments.namespace]
    if arguments.prefix:
        words += ["--prefix", arguments.prefix]
    files = _files(arguments, words, store)
    for name, text in files.items():
        _write(folder / name, text, overwrite=arguments.overwrite)
    if not store:
        after = f"fill in the store: {coord.STORE_VARIABLE} in {place}; then {after}"
    print_or_drop("\n".join([*(f"wrote {folder / name}" for name in files), after]))
    return 0


def _store_for(arguments: Namespace, place: str) -> str:
    """The address to write into the files; "" if the operator must fill it in. A cron file takes
    the one of this environment, because cron jobs have no other source for it."""
    found = arguments.store or (os.environ.get(coord.STORE_VARIABLE, "") if arguments.cron else "")
    if not found:
        return ""
    if any(sign in found for sign in "@%\"'"):
        if not arguments.store:
            return ""
        raise ConfigError(
            "the address contains a password, a % or a quote, which others could read or cron "
            f"would change: leave out --store and set {coord.STORE_VARIABLE} in {place}"
        )
    return coord.store_url(arguments)


def _files(arguments: Namespace, words: list[str], store: str) -> dict[str, str]:
    command = shlex.join(words)
    if arguments.systemd:
        service = SERVICE.format(command=f"/usr/bin/env {command}")
        return {f"{UNIT}.service": service, f"{UNIT}.timer": TIMER}
    if arguments.cron:
        return {UNIT: CRON.format(store=store, command=command)}
    text = KUBERNETES.format(
        image=json.dumps(arguments.image),
        words=", ".join(map(json.dumps, words)),
        secret=KUBERNETES_SECRET,
        optional="true" if store else "false",
    )
    return {f"{UNIT}.yaml": text}


def _write(path: Path, text: str, *, overwrite: bool) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w" if overwrite else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{path} already exists: --overwrite replaces it") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
