"""Secrets from variables, files, Vault over HTTP and AWS Secrets Manager (moto)."""

from __future__ import annotations

import base64
import json
import os
import random
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squall.api.errors import SquallError
from squall.coordination.errors import ConfigurationError
from squall.coordination.metrics import CoordinationMetrics
from squall.coordination.secrets.sources import (
    WELL_KNOWN,
    SecretReloader,
    SecretSourceError,
    check_secret,
    generate_secret,
    read_secrets,
)
from squall.runtime.real.runtime import RealClock

OLD, NEW = generate_secret(), generate_secret()


class Vault:
    """The two forms of the KV engine, and a token."""

    def __init__(self) -> None:
        self.pages: dict[str, dict[str, object]] = {}
        self.status = 200
        vault = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page = vault.pages.get(self.path)
                status = vault.status if page is not None else 404
                if self.headers["X-Vault-Token"] != "right":
                    status = 403
                body = json.dumps(page or {"errors": []}).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.variables = {
            "VAULT_ADDR": f"http://127.0.0.1:{self._server.server_address[1]}",
            "VAULT_TOKEN": "right",
        }
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def vault() -> Iterator[Vault]:
    server = Vault()
    yield server
    server.close()


@pytest.mark.asyncio
async def test_a_variable_gives_the_signing_secret_and_the_next_one() -> None:
    warnings: list[str] = []
    variables = {"BLOCKING_COORDINATION_SECRET": OLD, "BLOCKING_COORDINATION_SECRET_NEW": NEW}
    found = await read_secrets("env:", variables=variables, on_warning=warnings.append)
    assert found.values == (OLD, NEW) and len(warnings) == 1
    with pytest.raises(ConfigurationError, match="strict_secrets"):
        await read_secrets("env:", variables=variables, strict=True)
    with pytest.raises(SecretSourceError, match="no variable OTHER"):
        await read_secrets("env:OTHER", variables=variables)


@pytest.mark.asyncio
async def test_a_file_must_be_private_and_outside_of_a_work_tree(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(f"{OLD}\n{NEW}\n")
    path.chmod(0o640)
    with pytest.raises(ConfigurationError, match=f"chmod 600 {path}"):
        await read_secrets(f"file:{path}")
    assert (await read_secrets(f"k8s:{path}")).values == (OLD, NEW)
    path.chmod(0o600)
    assert (await read_secrets(f"file:{path}")).values == (OLD, NEW)
    (tmp_path / ".git").mkdir()
    with pytest.raises(ConfigurationError, match="git work tree"):
        await read_secrets(f"file:{path}")
    assert (await read_secrets(f"file:{path}", environment="development")).values == (OLD, NEW)
    with pytest.raises(SecretSourceError, match="cannot be read"):
        await read_secrets(f"file:{tmp_path / 'none'}")


@pytest.mark.asyncio
async def test_vault_version_1_and_2(vault: Vault) -> None:
    fields = {"secret": OLD, "secret_new": NEW}
    default = "secret/data/cfn-loop/blocking-coordination"
    vault.pages[f"/v1/{default}"] = {"data": {"data": fields, "metadata": {"version": 3}}}
    vault.pages["/v1/kv/mine"] = {"data": {"secret": NEW}}
    assert (await read_secrets("vault:", variables=vault.variables)).values == (OLD, NEW)
    assert (await read_secrets("vault:kv/mine", variables=vault.variables)).values == (NEW,)
    with pytest.raises(SecretSourceError, match="nothing at kv/other"):
        await read_secrets("vault:kv/other", variables=vault.variables)
    wrong = {**vault.variables, "VAULT_TOKEN": "geheim"}
    with pytest.raises(SecretSourceError, match="403") as caught:
        await read_secrets("vault:", variables=wrong)
    assert "geheim" not in str(caught.value)
    with pytest.raises(SecretSourceError, match="VAULT_ADDR"):
        await read_secrets("vault:", variables={})


@pytest.mark.asyncio
async def test_aws_secrets_manager_as_text_and_as_fields(s3_endpoint: str) -> None:
    import boto3

    client = boto3.client("secretsmanager", endpoint_url=s3_endpoint, region_name="us-east-1")
    client.create_secret(Name="plain", SecretString=OLD)
    client.create_secret(
        Name="cfn-loop/blocking-coordination",
        SecretString=json.dumps({"secret": OLD, "secret_new": NEW}),
    )
    client.close()
    variables = {
        "AWS_ENDPOINT_URL_SECRETS_MANAGER": s3_endpoint,
        "AWS_REGION": "us-east-1",
    }
    assert (await read_secrets("awssm:plain", variables=variables)).values == (OLD,)
    assert (await read_secrets("awssm:", variables=variables)).values == (OLD, NEW)
    with pytest.raises(SecretSourceError, match="ResourceNotFoundException"):
        await read_secrets("awssm:none", variables=variables)


@pytest.mark.asyncio
async def test_a_secret_is_changed_without_a_restart_and_an_outage_keeps_the_last(
    tmp_path: Path,
) -> None:
    path = tmp_path / "secret"
    path.write_text(OLD)
    path.chmod(0o600)
    metrics, seen = CoordinationMetrics.of_registry(), list[tuple[str, ...]]()
    secret_reloader = SecretReloader(
        f"file:{path}", RealClock(), metrics=metrics, on_change=lambda s: seen.append(s.values)
    )
    with pytest.raises(ConfigurationError, match="has not been read yet"):
        _ = secret_reloader.secrets
    await secret_reloader.start()
    for lines in (f"{OLD}\n{NEW}", f"{NEW}\n{OLD}", NEW):
        path.write_text(lines)
        assert await secret_reloader.reload()
        assert not await secret_reloader.reload()
    assert seen == [(OLD, NEW), (NEW, OLD), (NEW,)]
    path.unlink()
    assert not await secret_reloader.reload()
    assert (
        secret_reloader.secrets.values == (NEW,)
        and "cannot be read" in secret_reloader.last_failure
    )
    text = metrics.families.registry.exposition()
    assert 'coordination_secret_read_failures_total{namespace="default"} 1' in text
    assert 'coordination_secret_keys{namespace="default"} 1' in text
    assert NEW not in repr(secret_reloader.secrets) + text


@pytest.mark.parametrize(
    ("secret", "said"),
    [
        ("short", "5 bytes"),
        ("a" * 64, "bits of entropy"),
        ("ab" * 32, "bits of entropy"),
        ("password" * 8, "well-known"),
        ("changeme-changeme-changeme-changeme", "well-known"),
        ("passwordchangemepasswordchangemesecret1", "well-known"),
        ("development-secret-do-not-use-in-production", "well-known"),
        ("PassWord.ChangeMe.Example.Staging.Default.1234567890", "well-known"),
        ("passpasswordwordchangechangememe-secsecretret-0123456789", "well-known"),
        ("please-replace-me-with-a-signing-secret-of-your-company", "well-known"),
        ("abcdefghijklmnopqrstuvwxyz0123456789", "well-known"),
    ],
)
def test_weak_secrets_are_refused_outside_of_development(secret: str, said: str) -> None:
    for environment in ("", "staging", "production"):
        with pytest.raises(ConfigurationError, match=said) as caught:
            check_secret(secret, environment)
        assert secret not in str(caught.value)
    check_secret(secret, "development")


def test_words_do_no_harm_beside_enough_that_is_random() -> None:
    check_secret(f"squall-production-{generate_secret()}", "production")
    check_secret(f"{base64.b64encode(os.urandom(32)).decode()}-secret", "production")


@given(st.binary(min_size=32, max_size=64).filter(lambda found: len(set(found)) > 20))
@settings(max_examples=500, deadline=None)
def test_bytes_that_differ_are_never_refused_however_they_are_written(found: bytes) -> None:
    check_secret(found.hex(), "production")
    check_secret(base64.b64encode(found).decode(), "production")
    check_secret(base64.urlsafe_b64encode(found).decode().rstrip("="), "production")


def test_random_secrets_are_never_refused() -> None:
    source = random.Random(7)
    for _ in range(20_000):
        made = source.randbytes(32)
        check_secret(made.hex(), "production")
        check_secret(base64.b64encode(made).decode(), "production")
        check_secret(base64.urlsafe_b64encode(made).decode().rstrip("="), "production")


def test_a_word_in_a_random_secret_by_accident_is_no_reason_to_refuse_it() -> None:
    """No word fits into hex; in 256 bits as base64 one that does leaves enough."""
    source = random.Random(11)
    for word in WELL_KNOWN:
        assert not set(word) <= set("0123456789abcdef") and len(word) >= 6
        if len(word) <= 9:
            for _ in range(50):
                text = base64.b64encode(source.randbytes(32)).decode()
                at = source.randrange(44 - len(word))
                check_secret(text[:at] + word.title() + text[at + len(word) :], "production")


def test_a_generated_secret_has_256_bits() -> None:
    secret = generate_secret()
    assert len(bytes.fromhex(secret)) == 32
    check_secret(secret, "production")


@pytest.mark.asyncio
async def test_an_unknown_source_names_the_known_ones() -> None:
    with pytest.raises(SquallError, match="env:, file:/path, k8s:/path, vault: and awssm:"):
        await read_secrets("http://x")
