"""Where the cluster is and with which secret: flags, then environment, then squall.toml.

    addresses   --to        SQUALL_TO                              [cluster] managers
    or a store  --store     SQUALL_STORE; its keys: --prefix, SQUALL_STORE_PREFIX
    secret      --secret-file  SQUALL_SECRET_FILE, SQUALL_SECRET   [cluster] secret_file
    cluster id  --cluster   SQUALL_CLUSTER_ID                      [cluster] id, else "squall"

A secret is the cluster's own or a credential of `squall secret`; its file may hold several
lines: the first is sent with, the others are still understood. From the cluster's secret
a client or worker makes only the credential of its own role. There is no default secret.
"""

from __future__ import annotations

import os
import re
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from squall.api.errors import ConfigError, UsageError
from squall.cli.cluster_words import DEFAULT_CLUSTER
from squall.runtime.interfaces import Address
from squall.runtime.sections import ClusterSettings
from squall.runtime.settings import Sources
from squall.settings import Role as SettingsRole
from squall.settings import load_settings
from squall.wire.roles import Role
from squall.wire.secrets import Secrets, client_credential, worker_credential

if TYPE_CHECKING:
    from squall.nodes.agent.reaching import StorePlace

CREDENTIAL = "squall1:"
SETTINGS_FILE = "squall.toml"
NO_SECRET = (
    "no secret of the cluster: name its file with --secret-file or SQUALL_SECRET_FILE "
    "(squall secret new makes one)"
)
NO_ADDRESS = (
    "which cluster: name a manager with --to HOST:PORT or SQUALL_TO, or a store with --store URL"
)
_FILE_VARIABLES = ("SQUALL_SECRET_FILE", "SQUALL_CLUSTER_SECRET_FILE")


@dataclass(frozen=True)
class Access:
    addresses: tuple[Address, ...]
    secrets: Secrets
    cluster: str
    store: StorePlace | None = None
    """The agents are reached through it; the address is then the word for who leads."""


def client_access(arguments: Namespace, *, comes_first: bool = False) -> Access:
    """For commands of people: their credential, or one made of the cluster's secret with
    the name of the user. Who `comes_first` may name a store where nobody was yet."""
    settings = cluster_settings("client")
    url = store_url(arguments)
    cluster = cluster_id(arguments, settings)
    given: list[str] | None = getattr(arguments, "secret_lines", None)
    if url:
        lines = given or secret_lines(arguments.secret_file, settings)
        return store_access(url, store_prefix(arguments), lines, cluster, comes_first)
    addresses = given_addresses(getattr(arguments, "to", None), "--to", settings)
    secrets = client_secrets_of(given) if given else client_secrets(arguments, settings)
    return Access(addresses, secrets, cluster)


def store_access(
    url: str, prefix: str, lines: list[str], cluster: str, comes_first: bool
) -> Access:
    from squall.nodes.agent.leader import LEADER_ADDRESS
    from squall.nodes.agent.opening import check_url
    from squall.nodes.agent.reaching import StorePlace
    from squall.nodes.agent.secret_check import proof_of

    path = check_url(url).removeprefix("sqlite:///")
    if path != url and not comes_first and not Path(path).is_file():
        raise UsageError(f"--store {url}: there is no such file: no agent was ever there")
    proofs = tuple(proof_of(each, cluster) for each in lines if not each.startswith(CREDENTIAL))
    place = StorePlace(url, prefix, proofs)
    return Access((LEADER_ADDRESS,), client_secrets_of(lines), cluster, place)


def store_url(arguments: Namespace) -> str:
    """The store of `--store` or SQUALL_STORE; empty where managers are named instead."""
    given = vars(arguments)
    flag: str = given.get("store") or ""
    if flag and given.get("to"):
        raise UsageError("--store and --to: a run goes through a store or to managers; choose one")
    if flag or given.get("to"):
        return flag
    kept = os.environ.get("SQUALL_STORE", "")
    if kept and os.environ.get("SQUALL_TO"):
        raise UsageError("SQUALL_STORE and SQUALL_TO are both set: choose with --store or --to")
    return kept


def store_prefix(arguments: Namespace) -> str:
    from squall.nodes.agent.opening import DEFAULT_PREFIX

    given: str = vars(arguments).get("prefix") or os.environ.get("SQUALL_STORE_PREFIX", "")
    return given or DEFAULT_PREFIX


def cluster_settings(role: SettingsRole) -> ClusterSettings:
    file = Path(os.environ.get("SQUALL_CONFIG", SETTINGS_FILE))
    return load_settings(role, Sources(file if file.is_file() else None)).tree.cluster


def cluster_id(arguments: Namespace, settings: ClusterSettings) -> str:
    given: str = arguments.cluster or os.environ.get("SQUALL_CLUSTER_ID", "") or settings.id
    if given and not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,62}", given):
        raise UsageError(f'--cluster "{given}": small letters, digits and "-", such as load-eu')
    return given or DEFAULT_CLUSTER


def client_secrets(arguments: Namespace, settings: ClusterSettings) -> Secrets:
    return client_secrets_of(secret_lines(arguments.secret_file, settings))


def client_secrets_of(lines: list[str]) -> Secrets:
    sending, *accepted = lines
    if sending.startswith(CREDENTIAL):
        return _of_role(Secrets.of_credential(sending, accepted), Role.CLIENT)
    name = user_name()
    return Secrets.of_credential(
        client_credential(sending, name), [client_credential(each, name) for each in accepted]
    )


def worker_secrets(arguments: Namespace, settings: ClusterSettings) -> Secrets:
    sending, *accepted = secret_lines(arguments.secret_file, settings)
    if sending.startswith(CREDENTIAL):
        return _of_role(Secrets.of_credential(sending, accepted), Role.WORKER)
    return Secrets.of_credential(worker_credential(sending), list(map(worker_credential, accepted)))


def node_secrets(arguments: Namespace, settings: ClusterSettings) -> Secrets:
    sending, *accepted = secret_lines(arguments.secret_file, settings)
    if sending.startswith(CREDENTIAL):
        raise ConfigError(
            "a manager needs the secret of the cluster itself, not a credential made of it"
        )
    return Secrets.of_node(sending, accepted)


def secret_lines(flag: str | None, settings: ClusterSettings) -> list[str]:
    """The secret to send with, then those that are accepted too."""
    named = [flag, *map(os.environ.get, _FILE_VARIABLES)]
    file = next((each for each in named if each), "")
    lines: list[str] = []
    if file:
        lines = _read(file)
    elif os.environ.get("SQUALL_SECRET"):
        lines = [os.environ["SQUALL_SECRET"].strip()]
    elif settings.secret_file:
        lines = _read(settings.secret_file)
    if not lines:
        raise ConfigError(NO_SECRET)
    for other in settings.accepted_secret_files:
        lines += _read(other)
    return lines


def given_addresses(
    flag: str | None, name: str, settings: ClusterSettings | None = None
) -> tuple[Address, ...]:
    text = flag or os.environ.get("SQUALL_TO", "")
    words = text.split(",") if text else list(settings.managers if settings is not None else ())
    found = tuple(address_of(word, name) for word in words if word.strip())
    if not found:
        raise UsageError(NO_ADDRESS if name == "--to" else f"{name}: write HOST:PORT")
    return tuple(dict.fromkeys(found))


def address_of(text: str, name: str, *, zero_ok: bool = False) -> Address:
    host, colon, port = text.strip().rpartition(":")
    usable = bool(host and colon) and port.isdecimal() and int(port) < 65536
    if not usable or (int(port) == 0 and not zero_ok):
        raise UsageError(f"{name} {text.strip()}: write HOST:PORT, such as 127.0.0.1:7400")
    return host.removeprefix("[").removesuffix("]"), int(port)


def user_name() -> str:
    """The principal of what this person submits, where the credential names none."""
    name = os.environ.get("SQUALL_USER") or os.environ.get("USER") or os.environ.get("LOGNAME")
    usable = "".join(c for c in name or "" if c.isprintable() and c not in ": ")
    return usable[:64] or f"uid{os.getuid()}"


def _of_role(secrets: Secrets, role: Role) -> Secrets:
    if secrets.role is not role:
        raise ConfigError(
            f"this credential is one of a {secrets.role.label}; a {role.label} needs its own: "
            f"squall secret {role.label}"
        )
    return secrets


def _read(file: str) -> list[str]:
    try:
        text = Path(file).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text"
        raise ConfigError(f"secret file {file}: cannot be read: {reason}") from None
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise ConfigError(f"secret file {file} is empty; squall secret new makes a secret")
    return lines
