"""Finds a cluster and its secret: first what the caller named, then the environment, then
squall.toml.

    addresses   --to        SQUALL_TO                              [cluster] managers
    secret      --secret-file  SQUALL_SECRET_FILE, SQUALL_SECRET   [cluster] secret_file
    cluster id  --cluster   SQUALL_CLUSTER_ID                      [cluster] id, else "squall"

A secret is the cluster's own or a credential made by `squall secret`. Its file may hold several
lines: the node sends with the first and still accepts the others. From the cluster's secret
a client or worker derives only the credential of its own role. There is no default secret.

Agents behind a store are found by `squall.store_mode.access`, which builds on this module.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from squall.api.errors import ConfigError, UsageError
from squall.cluster.protocol.timeouts import RequestTimeouts
from squall.cluster.settings_tree import Settings, load_settings
from squall.cluster.wire.links.switchboard import LinkTLS
from squall.cluster.wire.roles import Role
from squall.cluster.wire.seal.secrets import Secrets, client_credential, worker_credential
from squall.runtime.addresses import address_fault, address_in, is_name, is_numeric
from squall.runtime.interfaces import Address, Runtime
from squall.runtime.tasks import TaskRunner
from squall.settings.loader import Sources
from squall.settings.shared_sections import DEFAULT_CLUSTER, ClusterSettings, TLSSettings

CREDENTIAL = "squall1:"
DNS_PORT = 53
SETTINGS_FILE = "squall.toml"
NO_SECRET = (
    "no secret of the cluster: name its file with --secret-file or SQUALL_SECRET_FILE "
    "(squall secret new makes one)"
)
NO_ADDRESS = (
    "no cluster named: give a manager with --to HOST:PORT or SQUALL_TO, or a store with --store URL"
)
_FILE_VARIABLES = ("SQUALL_SECRET_FILE", "SQUALL_CLUSTER_SECRET_FILE")


@dataclass(frozen=True)
class AccessOptions:
    """What the caller named; an empty value is looked up in the environment and squall.toml."""

    to: str = ""
    store: str = ""
    prefix: str = ""
    secret_file: str = ""
    secret: str = ""
    cluster: str = ""


class RoutedCluster(Protocol):
    """The cluster at the end of a route."""

    @property
    def runtime(self) -> Runtime:
        """The client's runtime, with the route's network in place of the machine's."""
        ...

    @property
    def timeouts(self) -> RequestTimeouts:
        """Timeouts that suit the route."""
        ...

    @property
    def shown(self) -> str:
        """How messages name the cluster."""
        ...

    async def ready(self, say: Callable[[str], None], within_s: float) -> None:
        """Returns once the cluster can take requests; `say` receives why it cannot yet."""
        ...


class Route(Protocol):
    """A way to the cluster other than the machine's own network. Store mode provides one."""

    def open(
        self, runtime: Runtime, tasks: TaskRunner
    ) -> AbstractAsyncContextManager[RoutedCluster]: ...


@dataclass(frozen=True)
class ClusterAccess:
    addresses: tuple[Address, ...]
    secrets: Secrets
    cluster: str
    route: Route | None = None
    """None: the addresses are dialled directly."""
    tls: LinkTLS | None = None
    dns_server: Address | None = None
    """None: the DNS servers of the system."""


def file_settings(flags: Mapping[str, str] | None = None) -> Settings:
    """The settings in squall.toml (or the file of SQUALL_CONFIG) and in the environment."""
    file = Path(os.environ.get("SQUALL_CONFIG", SETTINGS_FILE))
    return load_settings(Sources(file if file.is_file() else None, flags=flags))


def cluster_settings() -> ClusterSettings:
    return file_settings().cluster


def link_tls(settings: TLSSettings) -> LinkTLS | None:
    """None: the section is empty, and links run without TLS."""
    if not settings.certificate:
        return None
    from squall.runtime.real.tls import client_tls, server_tls

    words = (settings.certificate, settings.key, settings.ca)
    certificate, key, ca = (Path(word).expanduser() for word in words)
    return LinkTLS(server_tls(certificate, key, ca), client_tls(certificate, key, ca))


def cluster_id(flag: str | None, settings: ClusterSettings) -> str:
    given: str = flag or os.environ.get("SQUALL_CLUSTER_ID", "") or settings.id
    if given and not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,62}", given):
        raise UsageError(f'--cluster "{given}": use small letters, digits and "-", such as load-eu')
    return given or DEFAULT_CLUSTER


def client_secrets(lines: list[str]) -> Secrets:
    """A person's own credential, or an operator's, derived from the cluster's secret and the user
    name: who holds that secret could make one anyway."""
    sending, *accepted = lines
    if sending.startswith(CREDENTIAL):
        return _of_role(Secrets.of_credential(sending, accepted), Role.CLIENT)
    name = user_name()
    made = [client_credential(each, name, operator=True) for each in (sending, *accepted)]
    return Secrets.of_credential(made[0], made[1:])


def worker_secrets(lines: list[str]) -> Secrets:
    sending, *accepted = lines
    if sending.startswith(CREDENTIAL):
        return _of_role(Secrets.of_credential(sending, accepted), Role.WORKER)
    return Secrets.of_credential(worker_credential(sending), list(map(worker_credential, accepted)))


def node_secrets(lines: list[str]) -> Secrets:
    sending, *accepted = lines
    if sending.startswith(CREDENTIAL):
        raise ConfigError(
            "a manager needs the secret of the cluster itself, not a credential made from it"
        )
    return Secrets.of_node(sending, accepted)


def secret_lines(flag: str | None, settings: ClusterSettings) -> list[str]:
    """The secret to send with, then those that are still accepted."""
    file = secret_file(flag, settings)
    lines: list[str] = []
    if file:
        lines = _read(file)
    elif os.environ.get("SQUALL_SECRET"):
        lines = [os.environ["SQUALL_SECRET"].strip()]
    if not lines:
        raise ConfigError(NO_SECRET)
    for other in settings.accepted_secret_files:
        lines += _read(other)
    return lines


def secret_file(flag: str | None, settings: ClusterSettings) -> str:
    """The file that the secret is read from; "" if it comes from elsewhere."""
    named = [flag, *map(os.environ.get, _FILE_VARIABLES)]
    file = next((each for each in named if each), "")
    if not file and not os.environ.get("SQUALL_SECRET"):
        file = settings.secret_file
    return file


def given_addresses(
    flag: str | None, name: str, settings: ClusterSettings | None = None
) -> tuple[Address, ...]:
    text = flag or os.environ.get("SQUALL_TO", "")
    words = text.split(",") if text else list(settings.managers if settings is not None else ())
    found = tuple(address_of(word, name) for word in words if word.strip())
    if not found:
        raise UsageError(NO_ADDRESS if name == "--to" else f"{name}: write HOST:PORT")
    return tuple(dict.fromkeys(found))


def address_of(text: str, name: str) -> Address:
    """The address of a manager or gate: HOST:PORT, dns:NAME[:PORT] or srv:NAME."""
    text = text.strip()
    address = address_in(text)
    fault = address_fault(text)
    if fault or address is None:
        raise UsageError(f"{name} {text}: {fault}")
    return address


def listen_address(text: str, name: str, *, zero_ok: bool = False) -> Address:
    """An address of this machine; port 0 takes a free one."""
    address = address_in(text.strip())
    if address is None or is_name(address) or (address[1] == 0 and not zero_ok):
        raise UsageError(f"{name} {text.strip()}: write HOST:PORT, such as 127.0.0.1:7400")
    return address


def dns_server(settings: ClusterSettings) -> Address | None:
    """The DNS server for the names of managers and gates; None: those of the system."""
    text = settings.dns_server.strip()
    if not text:
        return None
    address = address_in(text if text.rpartition("]")[2].count(":") else f"{text}:{DNS_PORT}")
    if address is None or not is_numeric(address[0]):
        raise ConfigError(
            f"[cluster] dns_server {text}: write the address of a DNS server, such as 10.0.0.53 or "
            "127.0.0.1:5353"
        )
    return address


def user_name() -> str:
    """The name under which jobs are submitted if the credential contains none."""
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
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise ConfigError(f"secret file {file}: cannot be read: {reason}") from None
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise ConfigError(f"secret file {file} is empty; squall secret new makes a secret")
    return lines
