"""Every file in `examples/` runs as it is printed.

Only the address of the server is replaced: by `--host` where the file allows it, otherwise
in a copy.
"""

from __future__ import annotations

import importlib
import re
import socketserver
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from email import message_from_bytes
from email.policy import SMTP
from pathlib import Path
from uuid import uuid4

import pytest

from tests.lab.brokers import Broker, rabbitmq, running_kafka, running_mosquitto, running_nats
from tests.lab.databases import mariadb_database, on_mysql, on_postgres, postgres_database
from tests.lab.echo_server import running_echo_server
from tests.lab.ftp_server import running_ftp_server
from tests.lab.graphql_server import running_graphql_server
from tests.lab.grpc_server import running_grpc_server
from tests.lab.http2_server import running_http2_server
from tests.lab.http3_server import running_http3_server
from tests.lab.mail_server import running_mail_server
from tests.lab.mongodb_server import running_mongodb_server
from tests.lab.redis_server import running_redis
from tests.lab.sse_server import running_event_server
from tests.lab.ssh_server import running_ssh_server
from tests.lab.target import running_target
from tests.lab.websocket_server import running_websocket_server
from tests.runs.lab.command import EXAMPLES, CommandLab, Ended
from tests.runs.lab.in_process import in_process

ADDRESS = "http://127.0.0.1:8080"


@pytest.fixture
def command(examples: CommandLab) -> CommandLab:
    return examples


def replace(command: CommandLab, name: str, old: str, new: str) -> None:
    path = command.folder / name
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def be_patient(command: CommandLab, name: str, threshold: str) -> None:
    """A machine that stands still for a moment says nothing about the example."""
    longer = re.sub(r"< ?[0-9]+(ms|s)?", lambda limit: "< 60s" if limit[1] else "<60000", threshold)
    replace(command, name, threshold, longer)


def test_hello(command: CommandLab) -> None:
    """With core processes, as a reader starts it. A busy machine may make such a run INVALID,
    which says nothing about the example: `--exit-zero` excuses that."""
    replace(command, "hello.py", ADDRESS, command.target.url)
    words = ["-d", "1s", "--workers", "2", "--exit-zero", "--json", "results.json"]
    command.check_passed(command.process("run", "hello.py", *words))
    assert command.target.counts()["connections"]["opened"] == 50


def test_journey(command: CommandLab) -> None:
    ended = command.passes("journey.py", "-d", "1s", "-e", f"TARGET={command.target.url}")
    assert ended.document["checks"][0]["failed"] == 0
    assert command.target.counts()["paths"]["/search"] >= 20


def test_http2(command: CommandLab) -> None:
    with running_http2_server() as server:
        ended = command.load("http2.py", "--host", server.url, "-u", "5", "-i", "20")
    command.check_passed(ended, server.requests)
    assert ended.document["checks"][0]["failed"] == 0
    assert {row["protocol"] for row in ended.document["workflows"][0]["steps"]} == {"http2"}
    pictures = {f"/pictures/{number}": 20 for number in range(1, 7)}
    assert server.paths == {"/feed": 20, "/comments": 20, **pictures}


def test_http3(command: CommandLab, tmp_path: Path) -> None:
    with running_http3_server(tmp_path) as server:
        words = ["--host", server.url, "--cacert", server.ca_file, "-u", "5", "-i", "20"]
        ended = command.load("http3.py", *words)
    command.check_passed(ended, server.requests)
    assert ended.document["checks"][0]["failed"] == 0
    assert {row["protocol"] for row in ended.document["workflows"][0]["steps"]} == {"http3"}
    pictures = {f"/pictures/{number}": 20 for number in range(1, 7)}
    assert server.paths == {"/feed": 20, "/comments": 20, **pictures}
    assert server.connections == 5


def test_websocket(command: CommandLab) -> None:
    with running_websocket_server() as server:
        ended = command.load("websocket.py", "--host", server.url, "-u", "5", "-i", "20")
    # Two questions in each iteration; the greeting is sent and received, but not asked.
    command.check_passed(ended, 40)
    assert server.messages == {"/echo": 60}
    assert server.connections == 5 + 20
    assert {row["protocol"] for row in ended.document["workflows"][0]["steps"]} == {"websocket"}
    messages = next(m for m in ended.document["metrics"] if m["name"] == "messages")
    assert messages["sum"] == 40


def test_redis_shop(command: CommandLab) -> None:
    with running_redis() as server:
        words = ["-e", f"REDIS={server.url}/2", "-u", "5", "-i", "20"]
        ended = command.load("redis_shop.py", *words)
        # Three commands and a transaction of three, with MULTI and EXEC, in each iteration.
        command.check_passed(ended, 20 * 8)
        calls = server.calls()
    wanted = ("set", "get", "multi", "incr", "rpush", "ltrim", "exec", "llen")
    assert {name: calls[name] for name in wanted} == dict.fromkeys(wanted, 20)
    assert ended.document["checks"][0]["failed"] == 0
    (found,) = (p for p in ended.document["workflows"][0]["protocols"] if p["name"] == "redis")
    assert found["connections"] == calls["select"] == 5
    assert ended.document["workflows"][0]["requests"]["other_calls"] == 0


def test_sockets(command: CommandLab) -> None:
    with running_echo_server() as server:
        words = ["-e", f"TCP={server.tcp}", "-e", f"UDP={server.udp}"]
        words += ["-u", "Lines=5", "-u", "Datagrams=5", "-i", "Lines=20", "-i", "Datagrams=20"]
        ended = command.load("sockets.py", *words)
        assert ended.code == 0, ended.err + ended.out
    found = {
        each["name"]: each
        for workflow in ended.document["workflows"]
        for each in workflow["protocols"]
    }
    # A line and a frame in each iteration; only the line is asked.
    assert (found["tcp"]["sent"], found["tcp"]["messages_sent"]) == (20, 40)
    assert found["tcp"]["bytes_sent"] == server.bytes_received
    assert found["tcp"]["connections"] == server.connections == 5
    assert found["udp"]["sent"] == server.datagrams == 20
    steps = [step for workflow in ended.document["workflows"] for step in workflow["steps"]]
    assert {step["name"]: step["ok"] for step in steps} == {"question": 20, "frame": 20, "ask": 20}


def test_sse(command: CommandLab) -> None:
    with running_event_server() as server:
        ended = command.load("sse.py", "--host", server.url, "-u", "5", "-i", "20")
        command.check_passed(ended, server.paths["/events"])
    metrics = {metric["name"]: metric["count"] for metric in ended.document["metrics"]}
    assert metrics == {"first_event": 20, "gap": 80}


def test_grpc_shop(command: CommandLab) -> None:
    with running_grpc_server() as server:
        ended = command.load("grpc_shop.py", "--host", server.url, "-u", "5", "-i", "20")
        command.check_passed(ended, server.calls.total())
    assert server.calls == {"Buy": 20, "Watch": 20, "Collect": 20, "Talk": 20}
    assert ended.document["checks"][0]["failed"] == 0
    assert {row["protocol"] for row in ended.document["workflows"][0]["steps"]} == {"grpc"}
    (found,) = (p for p in ended.document["workflows"][0]["protocols"] if p["name"] == "grpc")
    assert (found["messages_sent"], found["messages_received"]) == (
        server.messages_received - 20,
        server.messages_sent - 20,
    )
    gaps = next(m for m in ended.document["metrics"] if m["name"] == "gap")
    assert gaps["count"] == 4 * 20


def test_graphql_shop(command: CommandLab) -> None:
    with running_graphql_server() as server:
        old = 'URL = "/graphql", query: Query = "subscription'
        replace(command, "graphql_shop.py", old, old.replace("/graphql", server.websocket_url))
        host = server.url.removesuffix("/graphql")
        ended = command.load("graphql_shop.py", "--host", host, "-u", "5", "-i", "20")
        command.check_passed(ended, server.requests)
    assert server.operations == {"anonymous": 40, "subscription": 20}
    rows = {row["name"]: row["protocol"] for row in ended.document["workflows"][0]["steps"]}
    assert rows == {"look": "graphql", "order": "graphql", "follow": "graphql", "Look": "http"}
    assert ended.document["checks"][0]["failed"] == 0


def test_nats_prices(command: CommandLab) -> None:
    with running_nats() as broker:
        words = ["-u", "5", "-i", "20", "-e", f"NATS_URL={broker.url}"]
        ended = command.load("nats_prices.py", *words)
        # Each iteration publishes one message and receives it; each user subscribes once.
        command.check_passed(ended, 5 + 20 + 20)
        assert broker.counts()["in_msgs"] == broker.counts()["out_msgs"] == 20
    check_latencies(ended, 20)


def test_mqtt_sensors(command: CommandLab) -> None:
    with running_mosquitto() as broker:
        words = ["-u", "5", "-i", "20", "-e", f"MQTT_URL={broker.url}"]
        ended = command.load("mqtt_sensors.py", *words)
    command.check_passed(ended, 60)
    (found,) = (p for p in ended.document["workflows"][0]["protocols"] if p["name"] == "mqtt")
    assert found["connections"] == 5
    assert (found["messages_sent"], found["messages_received"]) == (40, 20)
    assert ended.document["checks"][0]["failed"] == 0
    check_latencies(ended, 20)


def test_rabbitmq_orders(command: CommandLab) -> None:
    with rabbitmq() as url:
        words = [
            "-u",
            "5",
            "-i",
            "20",
            "-e",
            f"RABBITMQ_URL={url}",
            "-e",
            f"QUEUE=squall-{uuid4()}",
        ]
        ended = command.load("rabbitmq_orders.py", *words)
    command.check_passed(ended, 5 + 20 + 20)
    check_latencies(ended, 20)


@pytest.fixture(scope="module")
def kafka() -> Generator[Broker]:
    with running_kafka() as broker:
        yield broker


def test_kafka_orders(command: CommandLab, kafka: Broker) -> None:
    words = ["-i", "Orders=20", "-d", "Reader=4s", "-e", f"KAFKA_URL={kafka.url}"]
    ended = command.load("kafka_orders.py", *words)
    assert ended.code == 0, ended.err + ended.out
    orders, reader = ended.document["workflows"]
    assert orders["requests"]["sent"] == orders["iteration"]["ok"] == 20
    assert reader["steps"][0]["ok"] > 0
    read = next(m for m in ended.document["metrics"] if m["name"] == "read")
    assert read["sum"] == 20


def test_order_journey(command: CommandLab, kafka: Broker) -> None:
    with postgres_database() as database, running_websocket_server() as news:
        words = ["--host", command.target.url, "-u", "5", "-i", "20"]
        for name, url in (("DATABASE", database), ("KAFKA_URL", kafka.url), ("NEWS", news.url)):
            words += ["-e", f"{name}={url}/echo" if name == "NEWS" else f"{name}={url}"]
        ended = command.load("order_journey.py", *words)
        # What is received without a question is a message, not a request.
        command.check_passed(ended, 3 * 20)
        assert news.messages == {"/echo": 20}
    assert command.target.counts()["paths"] == {"/login": 20}
    (journey,) = ended.document["workflows"]
    protocols = {row["name"]: row["protocol"] for row in journey["steps"]}
    assert protocols == {
        "log_in": "http",
        "stock": "postgres",
        "publish": "kafka",
        "news": "websocket",
    }
    assert ended.document["checks"][0]["failed"] == 0


def check_latencies(ended: Ended, count: int) -> None:
    (found,) = (m for m in ended.document["metrics"] if m["name"] == "end_to_end")
    assert found["count"] == count
    assert 0 < found["max"] < 60_000


def test_postgres_shop(command: CommandLab) -> None:
    with postgres_database() as url:
        ended = command.load("postgres_shop.py", "-e", f"DATABASE={url}", "-u", "20", "-i", "40")
        check_shop(command, ended, "postgres")
        assert on_postgres(url, "SELECT count(*) FROM shop_orders") == 40
        assert on_postgres(url, "SELECT count(*) FROM shop_lines") == 120


def test_mysql_shop(command: CommandLab) -> None:
    with mariadb_database() as url:
        ended = command.load("mysql_shop.py", "-e", f"DATABASE={url}", "-u", "20", "-i", "40")
        check_shop(command, ended, "mysql")
        assert on_mysql(url, "SELECT count(*) FROM shop_orders") == 40
        assert on_mysql(url, "SELECT count(*) FROM shop_lines") == 120


def check_shop(command: CommandLab, ended: Ended, protocol: str) -> None:
    """One query, and a transaction of BEGIN, two statements and COMMIT; before all, the tables."""
    command.check_passed(ended, 201)
    (shop,) = (each for each in ended.document["workflows"] if each["name"] == "Shop")
    assert ended.document["checks"][0]["failed"] == 0
    assert {row["name"]: row["protocol"] for row in shop["steps"]} == {
        "look": protocol,
        "order": protocol,
    }
    (found,) = (each for each in shop["protocols"] if each["name"] == protocol)
    assert (found["sent"], found["answered"], found["failed"]) == (200, 200, 0)
    assert 1 <= found["connections"] <= 10


def test_mongodb_shop(command: CommandLab) -> None:
    with running_mongodb_server() as server:
        words = ["-e", f"DATABASE={server.url}", "-u", "5", "-i", "20"]
        ended = command.load("mongodb_shop.py", *words)
    command.check_passed(ended, server.calls.total())
    assert ended.document["checks"][0]["failed"] == 0
    (found,) = (p for p in ended.document["workflows"][0]["protocols"] if p["name"] == "mongodb")
    assert (found["failed"], found["connections"], server.connections) == (0, 5, 5)
    assert len(server.documents["orders"]) == 20
    assert sum(each["orders"] for each in server.documents["customers"]) == 20


def test_mail(command: CommandLab) -> None:
    with running_mail_server() as server:
        replace(command, "mail.py", "smtp://127.0.0.1:8025", server.url)
        ended = command.load("mail.py", "-u", "5", "-i", "20")
    command.check_passed(ended, len(server.mails))
    assert server.connections == 5
    assert ended.document["checks"][0]["failed"] == 0
    letters = [mail for mail in server.mails if len(mail.rcpt_tos) == 2]
    assert len(letters) == 20
    ids = {message_from_bytes(mail.content)["Message-ID"] for mail in server.mails}
    assert len(ids) == 40
    (picture,) = message_from_bytes(letters[0].content, policy=SMTP).iter_attachments()
    assert picture.get_content() == (EXAMPLES / "cat.png").read_bytes()


def test_files(command: CommandLab, tmp_path: Path) -> None:
    pictures, documents = tmp_path / "pictures", tmp_path / "documents"
    pictures.mkdir()
    documents.mkdir()
    with running_ftp_server(pictures) as ftp, running_ssh_server(documents) as ssh:
        replace(command, "files.py", "ftp://ada:swordfish@127.0.0.1:8021", ftp.url)
        replace(command, "files.py", "sftp://ada:swordfish@127.0.0.1:8022", ssh.url())
        ssh.write_known_hosts(command.folder / "known_hosts")
        words = [f"{name}={n}" for n in (5, 20) for name in ("Pictures", "Documents")]
        options = [
            part for pair in zip(("-u", "-u", "-i", "-i"), words, strict=True) for part in pair
        ]
        ended = command.load("files.py", *options)
    command.check_passed(ended, ftp.files.total() + ssh.files.total())
    assert ftp.files == {"received": 20, "listed": 20}
    assert ssh.files == {"written": 20, "read": 20}
    assert (ftp.logins["ada"], ssh.logins["all"]) == (5, 5)
    sent = {path.name.partition("-")[2]: path.read_bytes() for path in documents.iterdir()}
    assert (
        sent.items() <= {p.name: p.read_bytes() for p in (EXAMPLES / "documents").iterdir()}.items()
    )
    assert {path.read_bytes() for path in pictures.iterdir()} == {
        (EXAMPLES / "cat.png").read_bytes()
    }


def test_browser(command: CommandLab) -> None:
    """With a core process: a driver of Chromium needs the streams of a process."""
    words = ["--host", command.target.url, "-u", "1", "-i", "2", "--workers", "1", "--exit-zero"]
    ended = command.process("run", "browser.py", *words, "--json", "results.json")
    command.check_passed(ended, 4)
    assert command.target.counts()["paths"]["/"] == 2
    metrics = {metric["name"]: metric for metric in ended.document["metrics"]}
    assert metrics["first_paint"]["count"] == 2
    assert metrics["first_paint"]["min"] > 0


def test_parallel(command: CommandLab) -> None:
    command.passes("parallel.py", "--host", command.target.url, "-u", "5", "-i", "20")
    paths = command.target.counts()["paths"]
    assert paths == dict.fromkeys(("/login", "/cart", "/offers", "/pay"), 20)


def test_login_once(command: CommandLab) -> None:
    command.passes("login_once.py", "--host", command.target.url, "-u", "5", "-i", "20")
    paths = command.target.counts()["paths"]
    assert paths == {"/login": 5, "/logout": 5, "/inbox": 20}


@pytest.mark.usefixtures("no_start_is_dropped")
def test_profiles(command: CommandLab) -> None:
    be_patient(command, "profiles.py", "home.p(99) < 300ms")
    shorter = ["-s", "Ramp=400ms:5", "-s", "Ramp=200ms:0", "-r", "Steady=50/s", "-d", "Steady=1s"]
    shorter += ["-s", "Peak=1s:60/s", "-i", "Fixed=100"]
    ended = command.passes("profiles.py", "--host", command.target.url, *shorter)
    made = {w["name"]: w["starts"]["made"] for w in ended.document["workflows"]}
    assert (made["Steady"], made["Peak"], made["Fixed"]) == (50, 30, 100)


@pytest.mark.usefixtures("no_start_is_dropped")
def test_data(command: CommandLab) -> None:
    command.passes("data.py", "--host", command.target.url, "-d", "1s", "--workers", "2")
    assert command.target.counts()["total"] == 20


def test_mix(command: CommandLab) -> None:
    ended = command.passes("mix.py", "--host", command.target.url, "-u", "5", "-i", "1000")
    steps = {step["name"]: step["count"] for step in ended.document["workflows"][0]["steps"]}
    assert steps["home"] == steps["browse"] + steps["buy"] == 1000
    # 700 with a standard deviation of 14.5: six of them never happen.
    assert 610 < steps["browse"] < 790


def test_setup_teardown(command: CommandLab) -> None:
    # A target of its own numbers from 1 what it makes: the tenant, then twenty orders. It
    # counts the values of "last", which is what `@state` handed over to Teardown.
    with running_target(["--count-field", "last"]) as target:
        words = ["setup_teardown.py", "--host", target.url, "-u", "1", "-i", "20"]
        ended = command.load(*words)
        counts = target.counts()
    assert ended.code == 0, ended.err
    assert counts["methods"] == {"POST /tenants": 1, "POST /orders": 20, "DELETE /tenants/t1": 1}
    assert counts["fields"]["last"] == {"21": 1}


def test_calls(command: CommandLab) -> None:
    ended = command.passes("calls.py", "--host", command.target.url, "-i", "20")
    assert ended.document["workflows"][0]["iteration"]["ok"] == 20


def test_custom_protocol(command: CommandLab) -> None:
    with echo_server() as port:
        replace(command, "custom_protocol.py", '"127.0.0.1", 7)', f'"127.0.0.1", {port})')
        ended = command.passes("custom_protocol.py")
    assert ended.document["workflows"][0]["steps"][0]["count"] == 1000


def test_measure(command: CommandLab) -> None:
    for limit in ("order.p(95) < 500ms", "order.p(99) < 2s over 10s", "p(95)<500"):
        be_patient(command, "measure.py", limit)
    ended = command.passes("measure.py", "--host", command.target.url, "-u", "5", "-i", "40")
    orders = next(m for m in ended.document["metrics"] if m["name"] == "orders")
    assert orders["count"] == command.target.counts()["total"] == 40


def test_test_shop(command: CommandLab) -> None:
    """Called as pytest would, with core threads: it demands a VALID run, which a busy machine
    could refuse to core processes."""
    replace(command, "parallel.py", ADDRESS, command.target.url)
    replace(command, "test_shop.py", 'duration="3s"', 'duration="1s"')
    replace(command, "test_shop.py", "p(95) < 0.5", "p(95) < 60.0")
    with in_process(command.folder):
        sys.path.insert(0, str(command.folder))
        importlib.import_module("test_shop").test_checkout_is_fast()
    assert command.target.counts()["paths"]["/pay"] >= 5


def test_the_examples_run_as_they_are_against_the_built_in_target() -> None:
    """The other tests replace the address; this one says that it is the target's."""
    for path in EXAMPLES.glob("*.py"):
        hosts = re.findall(r"(?:https?|grpc)://[^/\"]+", path.read_text(encoding="utf-8"))
        # HTTP/3 has no addresses without TLS.
        scheme = {"http3": "https", "grpc_shop": "grpc"}.get(path.stem, "http")
        assert set(hosts) <= {ADDRESS.replace("http", scheme)}, path.name


def test_every_example_has_its_test() -> None:
    tests = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {path.stem for path in EXAMPLES.glob("*.py")} <= tests


class Echo(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        for line in self.rfile:
            self.wfile.write(line)


@contextmanager
def echo_server() -> Generator[int]:
    """Sends lines back, on a free port."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
