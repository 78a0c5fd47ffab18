"""The keys that a member begins with: from a secret that was given, from a source that is
read again while it runs, or from the store itself.

Embedded stores may keep a secret of their own; who can read the file can read it anyway. A
weak secret is refused outside of development, wherever it came from.
"""

from __future__ import annotations

import contextlib

from squall.coordination.errors import ConfigurationError, VersionConflict
from squall.coordination.metrics import CoordinationMetrics
from squall.coordination.options import Options
from squall.coordination.secrets import SecretKeeper, Secrets, check_secret
from squall.coordination.signing import Keyring
from squall.coordination.stores.interface import ABSENT, Put, Store, make_key
from squall.runtime.interfaces import Runtime
from squall.runtime.log import Log

DEFAULT_ENVIRONMENT = "staging"
"""Whose rules hold when none is named."""
SECRET = make_key("secret")
SECRET_BYTES = 32


async def open_keyring(
    options: Options,
    store: Store,
    runtime: Runtime,
    metrics: CoordinationMetrics,
    log: Log,
) -> tuple[Keyring, SecretKeeper | None]:
    """With a source also who reads it; what it finds later changes the keyring."""
    environment = options.environment or DEFAULT_ENVIRONMENT
    if options.secret_source is not None:
        return await _from_source(options, environment, runtime, metrics, log)
    given = options.secret
    if given is None:
        secrets = (await _of_the_store(store, runtime),)
    else:
        secrets = (given,) if isinstance(given, str) else tuple(given)
        if not secrets:
            raise ConfigurationError("secret is empty: `squall coord secret generate` makes one")
        for secret in secrets:
            check_secret(secret, environment)
    metrics.gauge(metrics.families.secret_keys).set(len(secrets))
    return Keyring.of(secrets, environment, options.namespace), None


async def _from_source(
    options: Options,
    environment: str,
    runtime: Runtime,
    metrics: CoordinationMetrics,
    log: Log,
) -> tuple[Keyring, SecretKeeper]:
    def on_warning(text: str) -> None:
        log.warning("secret_source", message=text)

    def on_change(found: Secrets) -> None:
        keyring.replace(found.values)
        log.info("secret_changed", accepted=len(found.values))

    keeper = SecretKeeper(
        options.secret_source or "",
        runtime.clock,
        environment=environment,
        strict=options.strict_secrets,
        metrics=metrics,
        on_change=on_change,
        on_warning=on_warning,
    )
    found = await keeper.start()
    keyring = Keyring.of(found.values, environment, options.namespace)
    return keyring, keeper


async def _of_the_store(store: Store, runtime: Runtime) -> str:
    (found,) = await store.get(SECRET)
    if found is None:
        made = runtime.entropy(SECRET_BYTES).hex().encode()
        with contextlib.suppress(VersionConflict):
            await store.write(Put(SECRET, made, expect=ABSENT, ttl_s=None))
        (found,) = await store.get(SECRET)
    if found is None:
        raise ConfigurationError("the store forgot its own secret: give one as `secret`")
    return found.value.decode()
