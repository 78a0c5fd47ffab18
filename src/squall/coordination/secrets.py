"""Where signing secrets come from, and which are good enough.

A source is a URL. Reading it gives the secrets that are accepted, the newest last: a second
one is there while a secret is changed. Members sign with the newest once all accept it.

    env:                 BLOCKING_COORDINATION_SECRET, ..._NEW; env:NAME for another name
    file:/path  k8s:/path   one secret per line; must not be readable by others
    vault:               KV version 1 or 2 at VAULT_ADDR with VAULT_TOKEN; vault:path
    awssm:               AWS Secrets Manager; awssm:name

At the start a source that fails is fatal, after three more tries where a server has to
answer. Later the last good secrets stay, and the failure is counted. Nothing here may show a
secret or a token in a text, a `repr` or an error.
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
from squall.coordination.stores.errors import CoordinationError
from squall.coordination.stores.extras import load_extra
from squall.runtime.interfaces import Clock

ENV_NAME = "BLOCKING_COORDINATION_SECRET"
PLACE = "cfn-loop/blocking-coordination"
FIELDS = ("secret", "secret_new")
MIN_BYTES = 32
MIN_BITS = 128.0
REREAD_S = 300.0
START_DELAYS_S = (1.0, 2.0, 4.0)
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


class SecretSourceError(CoordinationError):
    """The source holds no secret that can be read."""

    exit_code = ExitCode.CONFIG


class SecretSourceAway(SecretSourceError):
    """A server did not answer: worth another try."""

    exit_code = ExitCode.UNREACHABLE


class Secrets:
    """The accepted secrets, the newest last."""

    def __init__(self, values: Sequence[str]) -> None:
        self.values = tuple(dict.fromkeys(values))

    def __repr__(self) -> str:
        return f"Secrets({len(self.values)} accepted)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secrets) and self.values == other.values

    def __hash__(self) -> int:
        return hash(self.values)

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """To tell secrets apart without showing them."""
        return tuple(hashlib.sha256(value.encode()).hexdigest()[:8] for value in self.values)


def generate_secret() -> str:
    """256 bits as 64 hex characters."""
    return random_secrets.token_hex(MIN_BYTES)


def check_secret(secret: str, environment: str = "") -> None:
    """Weak ones are only for development."""
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
            f"the coordination secret is made of well-known words and too little else: {hint}"
        )
    if entropy_bits(secret) < MIN_BITS:
        raise ConfigurationError(
            f"the coordination secret is worth less than {MIN_BITS:g} random bits: {hint}"
        )


def without_words(secret: str) -> str:
    """What is left when no well-known word is found any more."""
    while (rest := WORDS.sub("", secret)) != secret:
        secret = rest
    return secret


def entropy_bits(secret: str) -> float:
    """By the frequency of its characters: an upper bound that weak ones fail."""
    counts = Counter(secret)
    size = len(secret)
    return -sum(count * math.log2(count / size) for count in counts.values())


async def read_secrets(
    url: str,
    *,
    environment: str = "",
    variables: Mapping[str, str] | None = None,
    strict: bool = False,
    on_warning: Callable[[str], None] = lambda _: None,
) -> Secrets:
    """From one source, checked. `variables` are those of the process."""
    variables = os.environ if variables is None else variables
    scheme, _, rest = url.partition(":")
    if scheme == "env":
        if environment != "development":
            what = "an environment variable is the least protected place for a secret"
            if strict:
                raise ConfigurationError(f"{what}, and strict_secrets is set: use file: or vault:")
            on_warning(f"{what}: use file:, k8s:, vault: or awssm:")
        values = _from_variables(rest or ENV_NAME, variables)
    elif scheme in {"file", "k8s"} and rest:
        values = _from_file(Path(rest), environment, is_mounted=scheme == "k8s")
    elif scheme == "vault":
        values = await asyncio.to_thread(_from_vault, rest or f"secret/{PLACE}", variables)
    elif scheme == "awssm":
        values = await _from_aws(rest or PLACE, variables)
    else:
        raise ConfigurationError(
            f"{scheme}: is no source of secrets: use env:, file:/path, k8s:/path, vault: or awssm:"
        )
    if not values:
        raise SecretSourceError(f"{scheme}: holds no secret")
    for value in values:
        check_secret(value, environment)
    return Secrets(values)


class SecretKeeper:
    """Reads the source again every five minutes; keeps the last good secrets."""

    def __init__(
        self,
        url: str,
        clock: Clock,
        *,
        environment: str = "",
        variables: Mapping[str, str] | None = None,
        strict: bool = False,
        metrics: CoordinationMetrics | None = None,
        on_change: Callable[[Secrets], None] = lambda _: None,
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
        self._secrets: Secrets | None = None
        self.last_failure = ""

    @property
    def secrets(self) -> Secrets:
        if self._secrets is None:
            raise ConfigurationError("the coordination secret was not read yet")
        return self._secrets

    async def start(self) -> Secrets:
        """The first reading; its failure is fatal."""
        for delay_s in (*START_DELAYS_S, None):
            try:
                self._secrets = await self._read(self._on_warning)
                break
            except SecretSourceAway:
                if delay_s is None:
                    raise
                await self._clock.sleep(delay_s)
        self._count()
        return self.secrets

    async def reload(self) -> bool:
        """Every `REREAD_S`, and on SIGHUP. Whether the secrets changed."""
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

    async def _read(self, on_warning: Callable[[str], None] = lambda _: None) -> Secrets:
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
                f"file: {path} lies in a git work tree, where it gets committed: move it out"
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
        kind = SecretSourceAway if error.code >= 500 else SecretSourceError
        raise kind(f"vault: the server answers {error.code}") from None
    except (OSError, ValueError) as error:
        raise SecretSourceAway(f"vault: no answer: {type(error).__name__}") from None


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
        raise SecretSourceAway(f"awssm: {name}: {type(error).__name__}") from None
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
