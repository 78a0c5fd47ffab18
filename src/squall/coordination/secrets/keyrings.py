"""Opens the keyring of a member: from the option `secret`, from a source that is read again while
the member runs, or from the store itself.

An embedded store may keep its own secret: any process that can read the file can read the records
anyway. A weak secret is refused outside of development, wherever it comes from.
"""

from __future__ import annotations

import contextlib

from squall.coordination.errors import ConfigurationError, VersionConflict
from squall.coordination.metrics import CoordinationMetrics
from squall.coordination.options import Options
from squall.coordination.secrets.signing import Keyring
from squall.coordination.secrets.sources import (
    AcceptedSecrets,
    SecretReloader,
    check_secret,
    check_source,
)
from squall.coordination.stores.interface import ABSENT, Put, Store, make_key
from squall.runtime.interfaces import Runtime
from squall.runtime.log import Log

# Its rules hold if no environment is given.
DEFAULT_ENVIRONMENT = "staging"
SECRET = make_key("secret")
SECRET_BYTES = 32


def check_secret_options(options: Options) -> None:
    """Checks what can be known of the secret before anything is started."""
    if options.secret_source is not None:
        check_source(options.secret_source)
    given = () if options.secret is None else options.secret
    for secret in (given,) if isinstance(given, str) else given:
        check_secret(secret, options.environment or DEFAULT_ENVIRONMENT)


async def open_keyring(
    options: Options,
    store: Store,
    runtime: Runtime,
    metrics: CoordinationMetrics,
    log: Log,
) -> tuple[Keyring, SecretReloader | None]:
    """The keyring; with a source also its reloader, which changes the keyring later."""
    environment = options.environment or DEFAULT_ENVIRONMENT
    if options.secret_source is not None:
        return await _from_source(options, environment, runtime, metrics, log)
    given = options.secret
    if given is None:
        secrets = (await _store_secret(store, runtime),)
    else:
        secrets = (given,) if isinstance(given, str) else tuple(given)
    metrics.gauge(metrics.families.secret_keys).set(len(secrets))
    return Keyring.of(secrets, environment, options.namespace), None


async def _from_source(
    options: Options,
    environment: str,
    runtime: Runtime,
    metrics: CoordinationMetrics,
    log: Log,
) -> tuple[Keyring, SecretReloader]:
    def on_warning(text: str) -> None:
        log.warning("secret_source", message=text)

    def on_change(found: AcceptedSecrets) -> None:
        keyring.replace(found.values)
        log.info("secret_changed", accepted=len(found.values))

    secret_reloader = SecretReloader(
        options.secret_source or "",
        runtime.clock,
        environment=environment,
        strict=options.strict_secrets,
        metrics=metrics,
        on_change=on_change,
        on_warning=on_warning,
    )
    found = await secret_reloader.start()
    keyring = Keyring.of(found.values, environment, options.namespace)
    return keyring, secret_reloader


async def _store_secret(store: Store, runtime: Runtime) -> str:
    (found,) = await store.get(SECRET)
    if found is None:
        made = runtime.entropy(SECRET_BYTES).hex().encode()
        with contextlib.suppress(VersionConflict):
            await store.write(Put(SECRET, made, expect=ABSENT, ttl_s=None))
        (found,) = await store.get(SECRET)
    if found is None:
        raise ConfigurationError("the store lost its own secret: pass one as `secret`")
    return found.value.decode()
