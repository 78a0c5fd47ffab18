"""Reads signing secrets from their sources, and refuses weak ones.

A source is a URL. It holds the accepted secrets, the newest last; a second one is there during a
rotation. Members sign with the newest once all accept it.

    env:                 BLOCKING_COORDINATION_SECRET, ..._NEW; env:NAME for another name
    file:/path  k8s:/path   one secret per line; must not be readable by others
    vault:               KV version 1 or 2 at VAULT_ADDR with VAULT_TOKEN; vault:path
    awssm:               AWS Secrets Manager; awssm:name

A source that fails at the start is fatal; a server that does not answer is tried three more times.
Later the last good secrets stay in force and the failure is counted. No text, `repr` or error shows
a secret or a token.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import re
import secrets as random_secrets
import stat
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from squall.api.errors import ExitCode
from squall.coordination.errors import ConfigurationError
from squall.coordination.metrics import CoordinationMetrics
from squall.coordination.start_retry import retry_start
from squall.coordination.store_errors import CoordinationError
from squall.coordination.stores.optional_libraries import load_extra
from squall.runtime.interfaces import Clock

ENV_NAME = "BLOCKING_COORDINATION_SECRET"
PLACE = "cfn-loop/blocking-coordination"
FIELDS = ("secret", "secret_new")
MIN_BYTES = 32
MIN_BITS = 128.0
REREAD_S = 300.0
ANSWER_S = 5.0
ROTATION_S = {"production": 90 * 86_400.0, "staging": 30 * 86_400.0}
WELL_KNOWN = (
    *("changeme", "change-me", "change_me", "change", "replaceme", "replace", "placeholder"),
    *("password", "passwort", "passw0rd", "p4ssw0rd", "p4ssword", "passphrase", "secret"),
    *("default", "example", "sample", "foobar", "letmein", "welcome", "iloveyou", "hunter2"),
    *("development", "developer", "staging", "production", "testing", "environment", "insecure"),
    *("squall", "coordination", "coordinator", "blocking", "signing", "cluster", "company"),
    *("do-not-use", "do_not_use", "donotuse", "please", "private", "shared", "unsafe"),
    *("qwertyuiop", "qwerty", "asdfghjkl", "zxcvbnm", "abcdefghijklmnopqrstuvwxyz"),
    *("correct", "battery", "staple", "administrator", "security", "internal"),
)
"""Of six letters and more: shorter ones happen in secrets that a machine made. None is made of hex
digits alone."""
_LONGEST_FIRST = "|".join(sorted(map(re.escape, WELL_KNOWN), key=len, reverse=True))
WORDS = re.compile(rf"[-_.:/\s]*(?:{_LONGEST_FIRST})[-_.:/\s]*", re.IGNORECASE)
"""With what joins them."""


SCHEMES = ("env", "file", "k8s", "vault", "awssm")


class SecretSourceError(CoordinationError):
    """The source holds no secret that can be read."""

    exit_code = ExitCode.CONFIG


class SecretSourceUnavailable(SecretSourceError):
    """A server did not answer: worth a retry."""

    exit_code = ExitCode.UNREACHABLE


class AcceptedSecrets:
    """The accepted secrets, the newest last."""

    def __init__(self, values: Sequence[str]) -> None:
        self.values = tuple(dict.fromkeys(values))

    def __repr__(self) -> str:
        return f"Secrets({len(self.values)} accepted)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AcceptedSecrets) and self.values == other.values

    def __hash__(self) -> int:
        return hash(self.values)

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """Identify the secrets without showing them."""
        return tuple(hashlib.sha256(value.encode()).hexdigest()[:8] for value in self.values)


def generate_secret() -> str:
    """256 bits as 64 hex characters."""
    return random_secrets.token_hex(MIN_BYTES)


def check_secret(secret: str, environment: str = "") -> None:
    """Refuses an empty secret, and outside of development a weak one."""
    if environment == "development":
        if not secret:
            raise ConfigurationError("the coordination secret is empty")
        return
    hint = "make one with `squall coord secret generate`"
    if len(secret.encode()) < MIN_BYTES:
        raise ConfigurationError(
            f"the coordination secret has {len(secret.encode())} bytes, "
            f"at least {MIN_BYTES} are needed: {hint}"
        )
    rest = without_words(secret)
    if rest != secret and (len(rest.encode()) < MIN_BYTES or entropy_bits(rest) < MIN_BITS):
        raise ConfigurationError(
            f"the coordination secret consists mostly of well-known words: {hint}"
        )
    if entropy_bits(secret) < MIN_BITS:
        raise ConfigurationError(
            f"the coordination secret has less than {MIN_BITS:g} bits of entropy: {hint}"
        )


def without_words(secret: str) -> str:
    """The secret without its well-known words, also those that the removal makes."""
    while (rest := WORDS.sub("", secret)) != secret:
        secret = rest
    return secret


def entropy_bits(secret: str) -> float:
    """Estimated from the frequency of the characters: an upper bound, which weak secrets fail."""
    counts = Counter(secret)
    size = len(secret)
    return -sum(count * math.log2(count / size) for count in counts.values())


def check_source(url: str) -> None:
    """Refuses the URL of no source. Whether the source can be read shows at the start."""
    scheme, found, rest = url.partition(":")
    is_place = scheme not in ("file", "k8s") or bool(rest)
    if not found or scheme not in SCHEMES or not is_place:
        raise ConfigurationError(
            f"secret_source is {url!r}: it is no known source, which are env:, file:/path,"
            " k8s:/path, vault: and awssm:; use secret_source='file:/path'"
        )


async def read_secrets(
    url: str,
    *,
    environment: str = "",
    variables: Mapping[str, str] | None = None,
    strict: bool = False,
    on_warning: Callable[[str], None] = lambda _: None,
) -> AcceptedSecrets:
    """Reads and checks the secrets of one source. `variables` default to the environment."""
    check_source(url)
    variables = os.environ if variables is None else variables
    scheme, _, rest = url.partition(":")
    if scheme == "env":
        if environment != "development":
            what = "an environment variable is the least protected place for a secret"
            if strict:
                raise ConfigurationError(f"{what}, and strict_secrets is set: use file: or vault:")
            on_warning(f"{what}: use file:, k8s:, vault: or awssm:")
        values = _from_variables(rest or ENV_NAME, variables)
    elif scheme in ("file", "k8s"):
        values = _from_file(Path(rest), environment, is_mounted=scheme == "k8s")
    elif scheme == "vault":
        values = await asyncio.to_thread(_from_vault, rest or f"secret/{PLACE}", variables)
    else:
        values = await _from_aws(rest or PLACE, variables)
    if not values:
        raise SecretSourceError(f"{scheme}: holds no secret")
    for value in values:
        check_secret(value, environment)
    return AcceptedSecrets(values)


class SecretReloader:
    """Reads the source at the start and then again; keeps the last good secrets."""

    def __init__(
        self,
        url: str,
        clock: Clock,
        *,
        environment: str = "",
        variables: Mapping[str, str] | None = None,
        strict: bool = False,
        metrics: CoordinationMetrics | None = None,
        on_change: Callable[[AcceptedSecrets], None] = lambda _: None,
        on_warning: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._url = url
        self._clock = clock
        self._environment = environment
        self._variables = variables
        self._strict = strict
        self._metrics = metrics
        self._on_change = on_change
        self._on_warning = on_warning
        self._secrets: AcceptedSecrets | None = None
        self.last_failure = ""

    @property
    def secrets(self) -> AcceptedSecrets:
        if self._secrets is None:
            raise ConfigurationError("the coordination secret has not been read yet")
        return self._secrets

    async def start(self) -> AcceptedSecrets:
        """The first read; its failure is fatal."""
        self._secrets = await retry_start(
            self._clock, lambda: self._read(self._on_warning), SecretSourceUnavailable
        )
        self._count()
        return self.secrets

    async def reload(self) -> bool:
        """Reads the source again, every `REREAD_S` and on SIGHUP; whether the secrets changed."""
        try:
            found = await self._read()
        except CoordinationError as error:
            self.last_failure = str(error)
            if self._metrics is not None:
                self._metrics.counter(self._metrics.families.secret_failures).add()
            return False
        self.last_failure = ""
        if found == self._secrets:
            return False
        self._secrets = found
        self._count()
        self._on_change(found)
        return True

    async def _read(self, on_warning: Callable[[str], None] = lambda _: None) -> AcceptedSecrets:
        return await read_secrets(
            self._url,
            environment=self._environment,
            variables=self._variables,
            strict=self._strict,
            on_warning=on_warning,
        )

    def _count(self) -> None:
        if self._metrics is not None:
            accepted = len(self.secrets.values)
            self._metrics.gauge(self._metrics.families.secret_keys).set(accepted)


def _from_variables(name: str, variables: Mapping[str, str]) -> list[str]:
    found = [variables.get(name, ""), variables.get(f"{name}_NEW", "")]
    if not found[0]:
        raise SecretSourceError(f"env: there is no variable {name}")
    return [value.strip() for value in found if value.strip()]


def _from_file(path: Path, environment: str, *, is_mounted: bool) -> list[str]:
    try:
        mode = path.stat().st_mode
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise SecretSourceError(f"file: {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SecretSourceError(f"file: {path} is not text") from None
    if environment != "development":
        if not is_mounted and mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigurationError(
                f"file: {path} can be read by others (mode {mode & 0o777:o}): chmod 600 {path}"
            )
        if any((folder / ".git").exists() for folder in path.resolve().parents):
            raise ConfigurationError(
                f"file: {path} is in a git work tree and could be committed: move it out"
            )
    return [line.strip() for line in lines if line.strip()]


def _from_vault(path: str, variables: Mapping[str, str]) -> list[str]:
    """KV version 2 nests the fields under data.data and adds /data/ to the path."""
    address, token = variables.get("VAULT_ADDR", ""), variables.get("VAULT_TOKEN", "")
    if not address.startswith(("http://", "https://")) or not token:
        raise SecretSourceError("vault: needs VAULT_ADDR (an http or https URL) and VAULT_TOKEN")
    mount, _, rest = path.partition("/")
    for place in (f"{mount}/data/{rest}", path):
        body = _vault_get(f"{address.rstrip('/')}/v1/{place}", token)
        if body is None:
            continue
        fields: object = body.get("data")
        if isinstance(fields, dict) and "data" in fields:
            fields = cast("dict[str, Any]", fields)["data"]
        if isinstance(fields, dict):
            return _fields(cast("dict[str, Any]", fields))
    raise SecretSourceError(f"vault: there is nothing at {path}")


def _vault_get(url: str, token: str) -> dict[str, Any] | None:
    request = urllib.request.Request(url, headers={"X-Vault-Token": token})
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 404:
            return None
        kind = SecretSourceUnavailable if error.code >= 500 else SecretSourceError
        raise kind(f"vault: the server answers {error.code}") from None
    except (OSError, ValueError) as error:
        raise SecretSourceUnavailable(f"vault: no answer: {type(error).__name__}") from None


async def _from_aws(name: str, variables: Mapping[str, str]) -> list[str]:
    sessions = load_extra("aiobotocore.session", "s3")
    errors = load_extra("botocore.exceptions", "s3")
    context = sessions.get_session().create_client(
        "secretsmanager",
        endpoint_url=variables.get("AWS_ENDPOINT_URL_SECRETS_MANAGER"),
        region_name=variables.get("AWS_REGION") or variables.get("AWS_DEFAULT_REGION"),
    )
    try:
        async with context as client:
            answer = await client.get_secret_value(SecretId=name)
    except errors.ClientError as error:
        code = error.response.get("Error", {}).get("Code", "an error")
        raise SecretSourceError(f"awssm: {name}: {code}") from None
    except (errors.NoRegionError, errors.NoCredentialsError) as error:
        hint = "set AWS_REGION and the credentials of the process"
        raise ConfigurationError(f"awssm: {name}: {type(error).__name__}: {hint}") from None
    except (errors.BotoCoreError, OSError) as error:
        raise SecretSourceUnavailable(f"awssm: {name}: {type(error).__name__}") from None
    text: str = answer.get("SecretString", "")
    try:
        fields = json.loads(text)
    except ValueError:
        fields = None
    if isinstance(fields, dict):
        return _fields(cast("dict[str, Any]", fields))
    return [text.strip()] if text.strip() else []


def _fields(found: Mapping[str, Any]) -> list[str]:
    return [str(found[name]).strip() for name in FIELDS if found.get(name)]
