"""`squall secret new | client | worker`: makes the cluster's secret and credentials.

The cluster's own secret stays with the managers. A worker or client gets a credential: it proves
one role, and nothing else can be derived from it.
"""

from __future__ import annotations

import os
import secrets
from argparse import Namespace
from pathlib import Path

from squall.api.errors import ConfigError, UsageError
from squall.cluster.client.access import CREDENTIAL, cluster_settings, secret_lines, user_name
from squall.cluster.wire.seal.secrets import client_credential, worker_credential

SECRET_BYTES = 32


def execute(arguments: Namespace) -> int:
    _deliver(_made(arguments), arguments.output)
    return 0


def _made(arguments: Namespace) -> str:
    if arguments.secret_command == "new":
        return secrets.token_hex(SECRET_BYTES)
    cluster_secret = secret_lines(arguments.secret_file, cluster_settings())[0]
    if cluster_secret.startswith(CREDENTIAL):
        raise ConfigError(
            "a credential cannot make another: name the file of the cluster's own secret with "
            "--secret-file"
        )
    if arguments.secret_command == "worker":
        return worker_credential(cluster_secret, arguments.name or "")
    name = arguments.name or user_name()
    return client_credential(cluster_secret, name, operator=arguments.operator)


def _deliver(text: str, output: str | None) -> None:
    if output is None:
        print(text)
        return
    # Never over an existing file: it may be the only copy of a secret in use.
    try:
        descriptor = os.open(Path(output), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UsageError(
            f"{output} already exists; it is not overwritten, because it may be a secret in use"
        ) from None
    except OSError as error:
        raise UsageError(f"{output}: cannot be written: {error.strerror}") from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(f"{text}\n")
