"""What flags pass to a run: load, environment, secrets, addresses, choice of workflows."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from tests.lab.exit_codes import check_code
from tests.lab.target import running_target
from tests.runs.lab.command import GET, IMPORTS, CommandLab, sent, wait_until

SECRET = "s3cr3t-of-ada"
TWO = f"""
    class Browse(Workflow):
        @step()
        async def browse(self, url: URL = "/browse?delay=2ms") -> HTTPResponse:
            {GET}

    class Stock(Workflow):
        @step()
        async def stock(self, url: URL = "/stock") -> str:
            return (await self.client.http.get(url)).text

    @depends("Stock")
    class Buy(Workflow):
        @step()
        async def buy(self, stock: str, url: URL = "/buy?delay=2ms") -> HTTPResponse:
            {GET}
"""


def test_a_url_in_place_of_a_file_is_loaded(command: CommandLab) -> None:
    ended = command.load(f"{command.target.url}/page?q=1", "-u", "4", "-i", "30", "--workers", "2")
    assert ended.code == 0
    counts = command.target.counts()
    assert counts["paths"] == {"/page": 30}
    assert counts["connections"]["opened"] == 4


def test_a_short_run_ends_by_itself(command: CommandLab) -> None:
    """Three iterations with a duration of an hour end with the third."""
    assert command.load(command.target.url, "-i", "3", "-d", "1h").code == 0
    assert command.target.counts()["total"] == 3


@pytest.mark.usefixtures("no_start_is_dropped")
def test_flags_replace_the_model_and_leave_the_rest_to_the_file(command: CommandLab) -> None:
    text = f"""
    class Home(Workflow):
        vus = 40
        duration = "1s"

        @step()
        async def home(self, url: URL = "/") -> HTTPResponse:
            {GET}
    """
    words = [command.write(text), "--host", command.target.url, "-r", "30/s"]
    profile = command.load(*words).document["workflows"][0]["profile"]
    assert profile["model"] == "open"
    assert (profile["rate_per_s"], profile["duration_s"], profile["vus"]) == (30.0, 1.0, 40)
    assert command.target.counts()["total"] == 30


def test_flags_that_name_a_workflow_and_flags_for_all_go_together(command: CommandLab) -> None:
    words = ["-u", "Browse=2", "-u", "Buy=3", "-d", "700ms", "--host", command.target.url]
    document = command.load(command.write(TWO), *words).document
    profiles = {w["name"]: w["profile"] for w in document["workflows"]}
    assert (profiles["Browse"]["vus"], profiles["Browse"]["duration_s"]) == (2, 0.7)
    assert (profiles["Buy"]["vus"], profiles["Buy"]["duration_s"]) == (3, 0.7)
    assert sent(document) == command.target.counts()["total"]


def test_only_runs_a_workflow_with_what_it_needs(command: CommandLab) -> None:
    words = ["--host", command.target.url, "-i", "4"]
    assert command.load(command.write(TWO), "--only", "Buy", *words).code == 0
    assert command.target.counts()["paths"] == {"/stock": 1, "/buy": 4}


def test_skip_leaves_a_workflow_out(command: CommandLab) -> None:
    words = ["--host", command.target.url, "-i", "4", "--skip", "Buy,Stock"]
    assert command.load(command.write(TWO), *words).code == 0
    assert command.target.counts()["paths"] == {"/browse": 4}


def test_environment_and_secrets_are_set_before_the_import_and_secrets_are_never_shown(
    command: CommandLab,
) -> None:
    text = """
    COLOUR, TOKEN = os.environ["COLOUR"], os.environ["TOKEN"]

    class Shop(Workflow):
        vus = 1
        iterations = 2

        @step()
        async def echo(self, url: URL = "/echo", auth: Auth = bearer(env("TOKEN"))) -> HTTPResponse:
            print("colour", COLOUR, "token", TOKEN)
            response = await self.client.http.get(url, auth=auth, params={"t": TOKEN})
            assert TOKEN in response.text and COLOUR == "red"
            assert self.vu.iteration == 1, f"refused {TOKEN}"
            return response

        @step(expect=200)
        async def refused(self, url: URL = "/?status=403") -> HTTPResponse:
            return await self.client.http.get(url, headers={"X-Token": TOKEN})
    """
    words = [command.write(text), "--host", command.target.url, "-e", "COLOUR=red"]
    for given, environment in (
        (["--secret", "TOKEN"], {"TOKEN": SECRET}),
        (["--once", f"--secret=TOKEN={SECRET}"], {}),
    ):
        ended = command.load(*words, *given, **environment)
        written = (command.folder / "results.json").read_text(encoding="utf-8")
        assert "colour red token ***" in ended.err
        for shown in (ended.out, ended.err, written):
            assert SECRET not in shown
            assert "***" in shown


def test_a_secret_that_the_environment_lacks_is_a_usage_error(command: CommandLab) -> None:
    ended = command.squall("run", command.target.url, "--secret", "NOT_SET_ANYWHERE")
    assert ended.code == 2
    assert "NOT_SET_ANYWHERE" in ended.err


def test_a_seed_makes_random_choices_repeat(command: CommandLab) -> None:
    text = """
    class Dice(Workflow):
        iterations = 30

        @step()
        async def roll(self, url: URL = "/roll/{side}") -> HTTPResponse:
            side = self.vu.random.randint(1, 6)
            return await self.client.http.get(url, path={"side": side})
    """
    words = [command.write(text), "--host", command.target.url, "--seed"]
    seen: list[dict[str, int]] = []
    for seed in ("1", "1", "2"):
        command.target.reset()
        assert command.load(*words, seed).code == 0
        seen.append(command.target.counts()["paths"])
    assert seen[0] == seen[1] != seen[2]


@pytest.mark.usefixtures("no_start_is_dropped")
def test_warmup_keeps_the_first_seconds_out_of_the_numbers(command: CommandLab) -> None:
    ended = command.load(command.target.url, "-r", "50/s", "-d", "2s", "--warmup", "1s")
    assert ended.code == 0
    assert "without the first 1s" in ended.first_line
    counted = ended.document["workflows"][0]["iteration"]["count"]
    assert 0 < counted < command.target.counts()["total"] == 100
    assert ended.document["run"]["warmup_s"] == 1.0


def test_resolve_connects_elsewhere_and_keeps_the_name(command: CommandLab) -> None:
    port = command.target.port
    given = ["--resolve", f"shop.test:{port}:127.0.0.1"]
    ended = command.load(f"http://shop.test:{port}/", "-i", "3", "--once", *given)
    assert ended.code == 0
    assert f"> Host: shop.test:{port}" in ended.out
    assert f"to 127.0.0.1:{port}" in ended.out


def test_certificates_are_verified_unless_told_otherwise(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    with running_target(["--cert", str(tmp_path / "server.pem")]) as target:
        command = CommandLab(tmp_path, target)
        refused = command.load(target.url, "-i", "2")
        assert refused.code == 99 and "TLS" in refused.out
        plain = target.url.replace("https://", "http://")
        assert "write https://" in command.load(plain, "-i", "2").out
        assert "write https://" in command.squall("ping", plain).err
        assert target.counts()["total"] == 0
        assert command.load(target.url, "-i", "2", "--insecure").code == 0
        assert command.load(target.url, "-i", "2", "--cacert", "authority.pem").code == 0
        assert target.counts()["total"] == 4


def test_a_host_that_nothing_uses_is_warned_about(command: CommandLab) -> None:
    text = f"""
    class Home(Workflow):
        iterations = 1

        @step()
        async def home(self, url: URL = "{command.target.url}/") -> HTTPResponse:
            {GET}
    """
    ended = command.load(command.write(text), "--host", "http://elsewhere.test")
    assert ended.code == 0
    assert "--host changes nothing" in ended.err


def test_a_url_is_loaded_with_a_method_headers_and_a_body(command: CommandLab) -> None:
    url = f"{command.target.url}/echo"
    words = ["-X", "PUT", "-H", "X-Shop: north", "--json-body", '{"sku": 7}', "--once"]
    ended = command.squall("run", url, *words)
    assert ended.code == 0, ended.err
    assert f"── PUT {url}  to " in ended.out
    for part in ("PUT /echo HTTP/1.1", "X-Shop: north", "application/json", '{"sku": 7}'):
        assert part in ended.err + ended.out
    ended = command.load(url, "--data", "a=1", "-i", "5")
    assert [step["name"] for step in ended.document["workflows"][0]["steps"]] == ["post"]
    assert command.target.counts()["methods"] == {"PUT /echo": 1, "POST /echo": 5}


@pytest.mark.parametrize("workflows", [40, pytest.param(200, marks=pytest.mark.nightly)])
def test_many_workflows_of_a_layer_run_on_two_cores(command: CommandLab, workflows: int) -> None:
    text = "".join(
        f"""
class W{number}(Workflow):
    rate = "2/s"
    duration = "5s"

    @step()
    async def get(self, url: URL = "/w{number}") -> HTTPResponse:
        return await self.client.http.get(url)
"""
        for number in range(workflows)
    )
    (command.folder / "many.py").write_text(IMPORTS + text, encoding="utf-8")
    command.target.reset()
    started = command.start(
        "run", "many.py", "--host", command.target.url, "--json", "results.json", "--workers", "2"
    )
    wait_until(lambda: command.target.counts()["total"] > 0)
    assert len(started.cores()) == 2
    ended = started.end()
    check_code(ended)
    paths = command.target.counts()["paths"]
    for number, workflow in enumerate(ended.document["workflows"]):
        assert workflow["status"] == "completed" and workflow["starts"]["planned"] == 10
        assert workflow["requests"]["sent"] == paths[f"/w{number}"]
