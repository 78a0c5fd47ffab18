"""Turns the arguments of a command line into `RunOptions`.

It parses each value. Whether the load can be run (several workflows and a bare `-u`, a rate with
iterations) is decided by the planner, because only the planner knows the file. Secrets never
reach `command`.
"""

from __future__ import annotations

import os
import re
from argparse import Namespace
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from squall.api.errors import ConfigError, UsageError
from squall.api.quantities import (
    parse_count,
    parse_duration,
    parse_host,
    parse_iterations,
    parse_rate,
    parse_stage,
)
from squall.engine.connection_options import (
    ConnectionOptions,
    check_resolve,
    connection_options,
)
from squall.engine.run_options import (
    ProfileFlags,
    RunOptions,
    URLRequest,
)
from squall.reporting.redaction import without_credentials

T = TypeVar("T")


def run_options(arguments: Namespace) -> RunOptions:
    """Options of `run`, `submit`, `schedule add` and `explain`; a flag that a command lacks keeps
    its default."""
    given = vars(arguments)
    what: str = arguments.what
    is_url = what.lower().startswith(("http://", "https://"))
    if is_url:
        _check_url(what)
    if not is_url and "://" in what:
        raise UsageError(f"{what}: a URL begins with http:// or https://")
    connection = connection_flags(given)
    workers: str | None = given.get("workers")
    warmup: str | None = given.get("warmup")
    timeout: str | None = given.get("timeout")
    return RunOptions(
        file="" if is_url else what,
        url=what if is_url else "",
        request=_request(given, is_url=is_url),
        workers=None if workers is None else _read(parse_count, workers, "--workers"),
        host=_host(given.get("host", "")),
        env=_pairs(given.get("env", ()), "--env"),
        secrets=_secrets(given.get("secret", ())) | connection.secrets,
        proxy=connection.proxy,
        profiles=profile_flags(arguments),
        thresholds=tuple(given.get("threshold", ())),
        once=given.get("once", False),
        only=_names(given.get("only", ()), "--only"),
        skip=_names(given.get("skip", ()), "--skip"),
        seed=_seed(given.get("seed")),
        tags=_pairs(given.get("tag", ()), "--tag"),
        warmup_s=0.0 if warmup is None else seconds(warmup, "--warmup", zero_ok=True),
        resolve=resolve_map(given.get("resolve", ())),
        insecure=given.get("insecure", False),
        http2=given.get("http2", False),
        traceparent=given.get("traceparent", False),
        ca_file=connection.ca_file,
        command=_shown(given.get("words", ())),
        timeout_s=None if timeout is None else seconds(timeout, "--timeout"),
        on_control_loss=given.get("on_control_loss") or "",
        on_agent_loss=given.get("on_agent_loss") or "replan",
    )


def _request(given: dict[str, Any], *, is_url: bool) -> URLRequest:
    """The request of a URL; curl's rules say what a body means."""
    named = ("method", "header", "data", "json_body")
    used = [name for name in named if given.get(name) not in (None, [], ())]
    headers = dict(_header(text) for text in given.get("header") or ())
    if used and not is_url:
        flag = "--" + used[0].replace("_", "-")
        raise UsageError(f"{flag} is for a URL; a workflow file says what it sends")
    body: bytes | None = None
    if given.get("data") is not None:
        body, kind = _body(given["data"], "--data"), "application/x-www-form-urlencoded"
    elif given.get("json_body") is not None:
        body, kind = _json(given["json_body"]), "application/json"
    else:
        kind = ""
    if kind and "content-type" not in {name.lower() for name in headers}:
        headers["Content-Type"] = kind
    default = "GET" if body is None else "POST"
    method = (default if given.get("method") is None else given["method"]).upper()
    if not method.replace("-", "").isalpha() or not method.isascii() or method == "CONNECT":
        raise UsageError(f"--method {method}: write a method, such as POST")
    return URLRequest(method=method, headers=headers, body=body)


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if text.startswith(("http://", "https://")):
        raise UsageError(f"-H {text}: -H is a header, such as 'Accept: text/html'; write --host")
    if not name.strip() or not colon or "\n" in text:
        raise UsageError(f"-H {text}: write 'NAME: VALUE'")
    return name.strip(), value.strip()


def _body(text: str, flag: str) -> bytes:
    if not text.startswith("@"):
        return text.encode()
    try:
        with open(text[1:], "rb") as file:
            return file.read()
    except OSError as error:
        raise UsageError(f"{flag} {text}: {error.strerror}") from None


def _json(text: str) -> bytes:
    body = _body(text, "--json-body")
    try:
        msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise UsageError(f"--json-body {text}: not JSON: {error}") from None
    return body


def profile_flags(arguments: Namespace) -> dict[str, ProfileFlags]:
    """Flags by workflow; "" holds those that name none. The last of a repeated flag counts,
    except stages, which follow one another."""
    found: dict[str, ProfileFlags] = {}

    def note(workflow: str, **flags: Any) -> None:
        found[workflow] = replace(found.get(workflow, ProfileFlags()), **flags)

    for workflow, text in _named(arguments.vus):
        note(workflow, vus=_read(parse_count, text, "--vus"))
    for workflow, text in _named(arguments.duration):
        note(workflow, duration=seconds(text, "--duration"))
    for workflow, text in _named(arguments.iterations):
        count, per_user = _read(parse_iterations, text, "--iterations")
        note(workflow, iterations=f"{count}/vu" if per_user else count)
    for workflow, text in _named(arguments.rate):
        note(workflow, rate=_read(parse_rate, text, "--rate"))
    for workflow, text in _named(arguments.stage):
        is_rate = _read(parse_stage, text, "--stage")[2]
        earlier = found.get(workflow, ProfileFlags()).stages
        if earlier and parse_stage(earlier[-1])[2] != is_rate:
            raise UsageError(
                f"--stage {earlier[-1]} and {text}: users and starts (/s) cannot be mixed"
            )
        note(workflow, stages=(*earlier, text))
    return found


def seconds(text: str, flag: str, *, zero_ok: bool = False) -> float:
    return _read(lambda value, what: parse_duration(value, what, zero_ok=zero_ok), text, flag)


def resolve_map(entries: Iterable[str]) -> dict[str, str]:
    """Parses `host:port:addr` as curl does; an IPv6 address may be in brackets."""
    found: dict[str, str] = {}
    for entry in entries:
        host, _, rest = entry.partition(":")
        port, _, address = rest.partition(":")
        found[f"{host.lower()}:{port}"] = address.removeprefix("[").removesuffix("]")
    check_resolve("--resolve", found)
    return found


def connection_flags(given: dict[str, Any]) -> ConnectionOptions:
    names = ("proxy", "cacert", "cert", "cert_key")
    return connection_options(
        lambda name: "--" + name.replace("_", "-"),
        **{name: given.get(name) or "" for name in names},
    )


def _named(values: Iterable[str]) -> Iterable[tuple[str, str]]:
    """`Shop=100` names a workflow; `100` names none."""
    for value in values:
        name, equals, text = value.partition("=")
        yield (name.strip(), text) if equals else ("", value)


def _read(parse: Callable[[str, str], T], text: str, flag: str) -> T:
    """The parser reports a wrong amount as a mistake in a file; here it is a mistake of usage."""
    try:
        return parse(text, flag)
    except ConfigError as error:
        raise UsageError(str(error)) from None


def _pairs(entries: Iterable[str], flag: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in entries:
        key, equals, value = entry.partition("=")
        if not key or not equals:
            raise UsageError(f"{flag} {entry}: write NAME=VALUE")
        found[key] = value
    return found


def _secrets(entries: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in entries:
        key, equals, value = entry.partition("=")
        if not key:
            raise UsageError("--secret: write NAME, or NAME=VALUE")
        if not equals:
            if key not in os.environ:
                raise UsageError(f"--secret {key}: the environment has no {key}; export it first")
            value = os.environ[key]
        found[key] = value
    return found


def _names(entries: Iterable[str], flag: str) -> tuple[str, ...]:
    names = [name.strip() for entry in entries for name in entry.split(",")]
    if "" in names:
        raise UsageError(f"{flag}: a name is empty; name a workflow")
    return tuple(names)


def _seed(text: str | None) -> int:
    try:
        return 0 if text is None else int(text)
    except ValueError:
        raise UsageError(f"--seed {text}: write a whole number") from None


def _host(text: str) -> str:
    return _read(parse_host, text, "--host") if text else ""


def _check_url(url: str) -> None:
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"{url}: not a URL: {error}") from None
    if not host:
        raise UsageError(f"{url}: this URL has no host")


def _shown(words: Iterable[str]) -> tuple[str, ...]:
    """The command line for the results document, without the values of secrets."""
    shown: list[str] = []
    for word in words:
        if shown and shown[-1] == "--secret":
            shown.append(_hidden(word))
        elif shown and shown[-1] in ("-H", "--header"):
            shown.append(_without_credentials(word))
        elif word.startswith("--header="):
            shown.append("--header=" + _without_credentials(word.removeprefix("--header=")))
        elif word.startswith("-H"):
            shown.append("-H" + _without_credentials(word.removeprefix("-H")))
        elif (shown and shown[-1] == "--proxy") or word.startswith("--proxy="):
            shown.append(_without_password(word))
        elif (shown and shown[-1] in ("-o", "--output")) or word.startswith(("-o", "--output=")):
            shown.append(without_credentials(word))
        elif word.startswith("--secret="):
            shown.append("--secret=" + _hidden(word.removeprefix("--secret=")))
        else:
            shown.append(word)
    return tuple(shown)


def _without_credentials(header: str) -> str:
    name, colon, _ = header.partition(":")
    secret = name.strip().lower() in ("authorization", "cookie", "proxy-authorization")
    return f"{name}{colon} ***" if secret or "key" in name.lower() else header


def _without_password(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//***@", url)


def _hidden(entry: str) -> str:
    key, equals, _ = entry.partition("=")
    return f"{key}=***" if equals else entry
