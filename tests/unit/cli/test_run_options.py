"""Command-line arguments become run options."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from squall.api.errors import UsageError
from squall.cli.main import build_parser
from squall.cli.run.command import outputs_of
from squall.cli.shared.run_options import connection_flags, run_options
from squall.engine.run import local_run
from squall.engine.run_options import ProfileFlags, RunOptions, URLRequest


def parsed(*words: str) -> RunOptions:
    arguments = build_parser().parse_args(["run", *words])
    arguments.words = ["run", *words]
    return run_options(arguments)


def test_a_bare_file_leaves_everything_to_the_file() -> None:
    assert parsed("shop.py") == RunOptions(file="shop.py", command=("run", "shop.py"))


def test_a_url_stands_in_place_of_a_file() -> None:
    options = parsed("https://127.0.0.1:8443/x?y=1", "-u", "50", "-d", "10s")
    assert (options.file, options.url) == ("", "https://127.0.0.1:8443/x?y=1")
    assert options.profiles == {"": ProfileFlags(vus=50, duration=10.0)}


@pytest.mark.parametrize(
    "what",
    [
        *("ftp://127.0.0.1/", "http:///path", "http://127.0.0.1:99999/", "http://127.0.0.1:x/"),
        "http://[::1/",
    ],
)
def test_what_is_neither_file_nor_http_url_is_refused(what: str) -> None:
    with pytest.raises(UsageError):
        parsed(what)


@pytest.mark.parametrize("flag", ["-u", "--vus", "--users"])
def test_users_have_three_names(flag: str) -> None:
    assert parsed("shop.py", flag, "1k").profiles == {"": ProfileFlags(vus=1000)}


def test_load_flags_are_read_into_numbers() -> None:
    options = parsed("shop.py", "-r", "300/m", "-i", "10k", "-d", "1h30m", "-s", "30s:10")
    assert options.profiles[""] == ProfileFlags(
        rate=5.0, iterations=10_000, duration=5400.0, stages=("30s:10",)
    )


def test_flags_may_name_a_workflow_and_stages_follow_one_another() -> None:
    options = parsed(
        "mix.py",
        *("-u", "Shop=100", "-u", "Browse=20", "-d", "30s", "-d", "Shop=1m"),
        *("-r", "Peak=100/s", "-s", "Ramp=30s:10", "-s", "Ramp=1m:20"),
    )
    assert options.profiles == {
        "Shop": ProfileFlags(vus=100, duration=60.0),
        "Browse": ProfileFlags(vus=20),
        "": ProfileFlags(duration=30.0),
        "Peak": ProfileFlags(rate=100.0),
        "Ramp": ProfileFlags(stages=("30s:10", "1m:20")),
    }


def test_of_a_repeated_flag_the_last_counts() -> None:
    assert parsed("shop.py", "-u", "5", "-u", "7").profiles[""].vus == 7


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--rate", "5x"), '--rate "5x" is not a rate'),
        (("-d", "soon"), '--duration "soon" is not a duration'),
        (("-d", "0"), "--duration"),
        (("-u", "0"), "--vus"),
        (("-u", "Shop="), "--vus"),
        (("-i", "1.5"), "--iterations"),
        (("-s", "30s"), "--stage"),
        (("-s", "1m:5", "-s", "1m:5/s"), "--stage 1m:5 and 1m:5/s"),
        (("--workers", "0"), "--workers"),
        (("--seed", "x"), "--seed x"),
        (("-e", "TOKEN"), "--env TOKEN: write NAME=VALUE"),
        (("--tag", "=v"), "--tag =v"),
        (("--secret", "NOT_SET_ANYWHERE"), "--secret NOT_SET_ANYWHERE"),
        (("--resolve", "shop.test:443"), "--resolve shop.test:443"),
        (("--resolve", "shop.test:https:127.0.0.1"), "--resolve"),
        (("--resolve", "shop.test:99999:127.0.0.1"), "--resolve shop.test:99999"),
        (("--cacert", "/nowhere/ca.pem"), "--cacert /nowhere/ca.pem: No such file"),
        (("--cacert", "/tmp"), "--cacert /tmp"),
        (("--cert", "/nowhere/me.pem"), "--cert /nowhere/me.pem: No such file"),
        (("--cert-key", "me.key"), "--cert-key me.key is the key of which certificate"),
        (("--proxy", "foo:abc"), "--proxy: write http://host:port"),
        (("--proxy", "foo:99999"), "--proxy: write"),
        (("--proxy", ":3128"), "--proxy: write"),
        (("--proxy", "foo:0"), "--proxy: write"),
        (("--proxy", "[::1"), "--proxy: write"),
        (("--proxy", "socks5://foo:1"), "--proxy: write"),
        (("--host", "http://"), '--host "http://"'),
        (("--host", "127.0.0.1:99999"), '--host "127.0.0.1:99999" is not a URL'),
        (("--host", "127.0.0.1:0"), '--host "127.0.0.1:0" is not a URL'),
        (("--host", "foo bar"), '--host "foo bar" is not a URL'),
        (("--host", "http://[::1"), '--host "http://[::1" is not a URL'),
        (("--only", ""), "--only: a name is empty"),
        (("--skip", "Shop,"), "--skip: a name is empty"),
        (("--data", ""), "--data is for a URL"),
        (("--warmup", "-1s"), "--warmup"),
    ],
)
def test_a_bad_value_names_its_flag(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parsed("shop.py", *words)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("flag", ["--data", "--json-body"])
@pytest.mark.parametrize("name", ["nope", "/tmp", ""])
def test_a_body_that_cannot_be_read_is_named_as_written(flag: str, name: str) -> None:
    with pytest.raises(UsageError, match=f"^{flag} @{name}: (No such file|Is a directory)"):
        parsed("http://shop.test/", flag, f"@{name}")


def pem_files(folder: Path) -> dict[str, str]:
    """Files that `--cacert`, `--cert` and `--cert-key` may name, good and bad."""
    authority = trustme.CA()
    issued, other = authority.issue_cert("me.test"), authority.issue_cert("you.test")
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    locked = key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"s3cret")
    )
    contents = {
        "ca": authority.cert_pem.bytes(),
        "cert": issued.cert_chain_pems[0].bytes(),
        "key": issued.private_key_pem.bytes(),
        "other key": other.private_key_pem.bytes(),
        "locked key": locked,
        "text": b"hello\n",
        "empty": b"",
        "binary": b"\x30\x82\xff\x00",
        "cut": issued.cert_chain_pems[0].bytes()[:100],
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return {name: str(folder / name) for name in contents}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"--cacert": "ca"}, ""),
        ({"--cacert": "text"}, "--cacert text: not a PEM file with certificates"),
        ({"--cacert": "empty"}, "--cacert empty: not a PEM file with certificates"),
        ({"--cacert": "binary"}, "--cacert binary: not a PEM file with certificates"),
        ({"--cacert": "cut"}, "--cacert cut: not a PEM file with certificates"),
        ({"--cacert": "key"}, "--cacert key: not a PEM file with certificates"),
        ({"--cert": "cert", "--cert-key": "key"}, ""),
        ({"--cert": "cert"}, "--cert cert has no private key; name its file (--cert-key)"),
        ({"--cert": "text"}, "--cert text: not a PEM file with a certificate or a private key"),
        ({"--cert": "binary"}, "--cert binary: not a PEM file"),
        ({"--cert": "cert", "--cert-key": "text"}, "--cert-key text: not a PEM file"),
        ({"--cert": "cut", "--cert-key": "key"}, "--cert cut: cannot use the client certificate"),
        ({"--cert": "cert", "--cert-key": "other key"}, "--cert cert: cannot use the client"),
        ({"--cert": "cert", "--cert-key": "locked key"}, "without a password"),
    ],
)
@pytest.mark.parametrize("command", ["run", "ping"])
def test_files_of_certificates(
    flags: dict[str, str], said: str, command: str, tmp_path: Path
) -> None:
    files = pem_files(tmp_path)
    words = [word for flag, name in flags.items() for word in (flag, files[name])]
    arguments = vars(build_parser().parse_args([command, "http://shop.test/", *words]))
    if not said:
        assert connection_flags(arguments).ca_file == arguments["cacert"]
        return
    with pytest.raises(UsageError) as caught:
        connection_flags(arguments)
    message = str(caught.value).replace(f"{tmp_path}/", "")
    assert message.startswith(said) or said in message
    assert "\n" not in message


def test_environment_tags_and_names() -> None:
    options = parsed(
        "shop.py",
        *("-e", "A=1", "--env", "B=x=y", "--tag", "team=shop"),
        *("--only", "Shop,Browse", "--only", "Pay", "--skip", "Slow"),
    )
    assert options.env == {"A": "1", "B": "x=y"}
    assert options.tags == {"team": "shop"}
    assert options.only == ("Shop", "Browse", "Pay")
    assert options.skip == ("Slow",)


def test_a_secret_comes_from_the_environment_and_is_never_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("API_TOKEN", "s3cret")
    options = parsed("shop.py", "--secret", "API_TOKEN", "--secret", "K=v4lue", "--secret=L=v5")
    assert options.secrets == {"API_TOKEN": "s3cret", "K": "v4lue", "L": "v5"}
    assert options.command == (
        *("run", "shop.py", "--secret", "API_TOKEN", "--secret", "K=***", "--secret=L=***"),
    )


def test_connection_flags(tmp_path: Path) -> None:
    certificate = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(certificate)
    options = parsed(
        "shop.py",
        *("--resolve", "Shop.test:443:127.0.0.1", "--resolve", "six.test:80:[::1]"),
        *("--insecure", "--cacert", str(certificate), "--host", "127.0.0.1:8080"),
    )
    assert options.resolve == {"shop.test:443": "127.0.0.1", "six.test:80": "::1"}
    assert options.insecure
    assert options.ca_file == str(certificate)
    assert options.host == "http://127.0.0.1:8080"


def test_the_request_of_a_url(tmp_path: Path) -> None:
    url = "https://shop.test/orders"
    assert parsed(url).request == URLRequest()
    plain = parsed(url, "-X", "delete", "-H", "X-Shop: north", "-H", "Accept:text/html").request
    assert plain == URLRequest(method="DELETE", headers={"X-Shop": "north", "Accept": "text/html"})
    form = parsed(url, "--data", "a=1&b=2").request
    assert (form.method, form.body) == ("POST", b"a=1&b=2")
    assert form.headers == {"Content-Type": "application/x-www-form-urlencoded"}
    (tmp_path / "body.json").write_text('{"sku": 7}', encoding="utf-8")
    json = parsed(url, "-X", "PUT", "--json-body", f"@{tmp_path}/body.json").request
    assert (json.method, json.body) == ("PUT", b'{"sku": 7}')
    typed = parsed(url, "--data", "x", "-H", "content-type: text/plain").request
    assert typed.headers == {"content-type": "text/plain"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("shop.py", "-X", "POST"), "--method is for a URL"),
        (("shop.py", "-H", "http://127.0.0.1"), "write --host"),
        (("http://shop.test", "-H", "Accept"), "write 'NAME: VALUE'"),
        (("http://shop.test", "--json-body", "{"), "not JSON"),
        (("http://shop.test", "-X", ""), "--method : write a method"),
        (("http://shop.test", "--data", "@nowhere"), "--data @nowhere: No such file"),
        (("http://shop.test", "-X", "A B"), "--method A B"),
    ],
)
def test_requests_that_cannot_be_sent(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parsed(*words)
    assert said in str(caught.value)


def test_credentials_in_headers_are_not_shown() -> None:
    words = ("http://shop.test", "-H", "Authorization: Bearer s3cret", "-HX-Api-Key: s3cret")
    options = parsed(*words, "--header=Cookie: s3cret", "-H", "Accept: */*")
    assert "s3cret" not in " ".join(options.command)
    assert options.command[-1] == "Accept: */*"


def test_the_rest_of_the_flags() -> None:
    options = parsed(
        "shop.py",
        *("--workers", "2", "--seed", "-7", "--warmup", "5s", "--once"),
        *("--threshold", "errors < 1%", "--threshold", "checks > 99%", "--headless"),
    )
    assert (options.workers, options.seed, options.warmup_s, options.once) == (2, -7, 5.0, True)
    assert options.thresholds == ("errors < 1%", "checks > 99%")


@pytest.mark.parametrize("words", [("--json", "-"), ("-o", "html=-"), ("--csv", "-")])
def test_a_dash_is_no_file(words: tuple[str, ...]) -> None:
    arguments = build_parser().parse_args(["run", "shop.py", *words])
    with pytest.raises(UsageError, match="name a file; /dev/stdout is one"):
        outputs_of(arguments)


def test_the_time_limit_of_a_run_is_an_amount_of_time() -> None:
    assert parsed("shop.py", "--timeout", "1m30s").timeout_s == 90.0
    assert parsed("shop.py").timeout_s is None
    with pytest.raises(UsageError, match=r'--timeout "soon" is not a duration'):
        parsed("shop.py", "--timeout", "soon")


@pytest.mark.parametrize(("asked", "refused"), [(1, False), (16, False), (17, True), (1000, True)])
def test_more_processes_than_a_machine_can_run_are_refused(
    asked: int, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_run, "available_cores", lambda: 1)
    options = RunOptions(file="shop.py", workers=asked)
    if refused:
        with pytest.raises(UsageError, match=f"--workers {asked} is too many for 1 core"):
            local_run.worker_count(options)
    else:
        assert local_run.worker_count(options) == asked


@pytest.mark.parametrize(
    ("words", "processes"),
    [
        (("http://shop.test/", "-i", "1"), 1),
        (("http://shop.test/", "-i", "3"), 3),
        (("http://shop.test/", "-i", "1000"), 8),
        (("http://shop.test/", "-i", "1/vu", "-u", "20"), 8),
        (("http://shop.test/", "-i", "1", "--workers", "2"), 2),
        (("http://shop.test/", "-u", "1"), 8),
        # It may have several workflows.
        (("shop.py", "-i", "1"), 8),
        (("shop.py", "--once"), 1),
    ],
)
def test_a_run_of_a_url_starts_no_process_without_an_iteration(
    words: tuple[str, ...], processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_run, "available_cores", lambda: 8)
    assert local_run.worker_count(parsed(*words)) == processes
