"""Servers of nineteen protocols and a workflow that uses them all, with plain HTTP beside it. What
a run counts by protocol must equal what the servers counted."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from tests.lab.brokers import (
    Broker,
    NATSBroker,
    RabbitMQQueue,
    eventually,
    rabbitmq_queue,
    running_mosquitto,
    running_nats,
)
from tests.lab.databases import mariadb_database, on_mysql, on_postgres, postgres_database
from tests.lab.echo_server import EchoServer, running_echo_server
from tests.lab.ftp_server import FileServer, running_ftp_server
from tests.lab.graphql_server import GraphQLServer, running_graphql_server
from tests.lab.grpc_server import EXAMPLES, GRPCServer, running_grpc_server
from tests.lab.http2_server import HTTP2Server, running_http2_server
from tests.lab.http3_server import HTTP3Server, running_http3_server
from tests.lab.kafka_server import KafkaServer, running_kafka_server
from tests.lab.mail_server import MailServer, running_mail_server
from tests.lab.mongodb_server import MongoDBServer, running_mongodb_server
from tests.lab.redis_server import OwnRedis, running_redis
from tests.lab.sse_server import EventServer, running_event_server
from tests.lab.ssh_server import SSHServer, running_ssh_server
from tests.lab.websocket_server import WebsocketServer, running_websocket_server

EVENTS = 3
SENT = b"what a file holds\n"
WORKFLOW = """
from squall import GraphQLResponse, GRPCResponse, HTTP2Response, HTTP3Response, Mutation, Proto
from squall import SQL, Document, MongoDBResponse, MySQLResponse, PostgresResponse
from squall import AMQPResponse, KafkaResponse
from squall import Data, MQTTResponse, NATSResponse, RedisResponse, TCPResponse, UDPResponse
from squall import Directory, Email, FileGlob, FTPResult, SFTPResult, SMTPResult
from squall import Query, SSEResponse, WebsocketResponse, then

class Load(Workflow):
    {load}
    shop = Proto("shop.proto")

    @step()
    async def plain(self, url: URL = "/") -> HTTPResponse:
        return await self.client.http.get(url)

    @then()
    async def stream(self, url: URL = "{http2}/") -> HTTP2Response:
        return await self.client.http2.get(url)

    @then()
    async def datagrams(self, url: URL = "{http3}/") -> HTTP3Response:
        return await self.client.http3.get(url)

    @then()
    async def ask(self, url: URL = "{websocket}/echo") -> WebsocketResponse:
        return await self.client.websocket.ask(url, "hello")

    @then()
    async def events(self, url: URL = "{sse}/events") -> SSEResponse:
        return await self.client.sse.listen(url, events={events}, timeout="60s")

    @then()
    async def buy(self, url: URL = "{grpc}/shop.Shop/Buy") -> GRPCResponse:
        bought = await self.client.grpc.unary(url, dict(item="shoe", count=2))
        assert bought.reply.total == 2
        return bought

    @then()
    async def talk(self, url: URL = "{grpc}/shop.Shop/Talk") -> GRPCResponse:
        return await self.client.grpc.stream(url, [self.shop.Order(count=n) for n in range(3)])

    @then()
    async def look(
        self, url: URL = "{graphql}", query: Query = "{{ products {{ id }} }}"
    ) -> GraphQLResponse:
        return await self.client.graphql2.query(url, query)

    @then()
    async def order(
        self, url: URL = "{graphql1}", mutation: Mutation = "mutation Order {{ order(id: 7) }}"
    ) -> GraphQLResponse:
        return await self.client.graphql.mutate(url, mutation, operation="Order")

    @then()
    async def book(
        self, url: URL = "{postgres}", sql: SQL = "INSERT INTO orders VALUES ($1) RETURNING number"
    ) -> PostgresResponse:
        return await self.client.postgres.query(url, sql, self.vu.iteration)

    @then()
    async def pay(
        self, url: URL = "{mysql}", sql: SQL = "INSERT INTO orders VALUES (?)"
    ) -> MySQLResponse:
        async with self.client.mysql.transaction(url) as orders:
            return await orders.query(sql, self.vu.iteration)

    @then()
    async def note(
        self, url: URL = "{mongodb}", order: Document = dict(item="shoe")
    ) -> MongoDBResponse:
        return await self.client.mongodb.insert(url, "orders", order)

    @then()
    async def mail(
        self,
        url: URL = "{mail}",
        email: Email = dict(sender="a@x.test", to="b@x.test", attachments="shop.proto"),
    ) -> SMTPResult:
        return await self.client.smtp.send(url, email)

    @then()
    async def upload(self, url: URL = "{ftp}", files: FileGlob = "data/*.txt") -> FTPResult:
        return await self.client.ftp.put(url, f"/{{self.vu.id}}-", files[0])

    @then()
    async def store(self, url: URL = "{sftp}", files: Directory = "data") -> SFTPResult:
        return await self.client.sftp.put(url, f"/{{self.vu.id}}-{{files[-1]}}", files[-1])

    @then()
    async def count(self, url: URL = "{redis}/3") -> RedisResponse:
        return await self.client.redis.incr(url, "n")

    @then()
    async def line(self, url: URL = "{tcp}", data: Data = "hello\\n") -> TCPResponse:
        return await self.client.tcp.exchange(url, data, until=b"\\n")

    @then()
    async def datagram(self, url: URL = "{udp}", data: Data = "hello") -> UDPResponse:
        return await self.client.udp.exchange(url, data, timeout="60s")

    @then()
    async def publish(self, url: URL = "{nats}") -> NATSResponse:
        return await self.client.nats.publish(url, "counted", "hello")

    @then()
    async def send(self, url: URL = "{kafka}") -> KafkaResponse:
        return await self.client.kafka.send(url, "{topic}", "hello", headers=dict(kind="shoe"))

    @then()
    async def deliver(self, url: URL = "{amqp}") -> AMQPResponse:
        return await self.client.amqp.publish(url, "hello", key="{queue}")

    @then()
    async def echo(self, url: URL = "{mqtt}") -> MQTTResponse:
        topic = "users/" + str(self.vu.id)
        await self.client.mqtt.subscribe(url, topic)
        await self.client.mqtt.publish(url, topic, "hello", qos=2, stamp=True)
        received = await self.client.mqtt.receive(url, topic, timeout="60s")
        assert received.latencies[0] > 0
        return received
"""
CLOSED = "vus = 2\n    iterations = 12"
# The authority of the server of HTTP/3 is its own.
FLAGS = ("--insecure",)
OPEN = 'rate = "8/s"\n    duration = "2s"'


class ProtocolServers(NamedTuple):
    http2: HTTP2Server
    http3: HTTP3Server
    websocket: WebsocketServer
    sse: EventServer
    grpc: GRPCServer
    graphql: GraphQLServer
    postgres: str
    mysql: str
    mongodb: MongoDBServer
    redis: OwnRedis
    echo: EchoServer
    nats: NATSBroker
    mqtt: Broker
    mail: MailServer
    ftp: FileServer
    sftp: SSHServer
    kafka: KafkaServer
    amqp: RabbitMQQueue

    def workflow(self, load: str, folder: Path) -> str:
        """The text of the file; what it names is put into the folder."""
        (folder / "shop.proto").write_bytes((EXAMPLES / "shop.proto").read_bytes())
        (folder / "data").mkdir(exist_ok=True)
        (folder / "data" / "a.txt").write_bytes(SENT)
        (folder / "data" / "b.bin").write_bytes(SENT)
        urls = {
            "http2": self.http2.url,
            "http3": self.http3.url,
            "websocket": self.websocket.url,
            "sse": self.sse.url,
            "grpc": self.grpc.url,
            "graphql": self.graphql.http2_url,
            "graphql1": self.graphql.url,
            "postgres": self.postgres,
            "mysql": self.mysql,
            "mongodb": self.mongodb.url,
            "mail": self.mail.url,
            "ftp": self.ftp.url,
            "sftp": self.sftp.url(),
            "redis": self.redis.url,
            "tcp": self.echo.tcp,
            "udp": self.echo.udp,
            "nats": self.nats.url,
            "mqtt": self.mqtt.url,
            "kafka": self.kafka.url,
            "topic": self.kafka.topic,
            "amqp": self.amqp.url,
            "queue": self.amqp.name,
        }
        return WORKFLOW.format(load=load, events=EVENTS, **urls)

    def check(self, document: dict[str, Any], plain: int) -> None:
        """`plain` is what the server of plain HTTP counted."""
        (workflow,) = document["workflows"]
        found = {each["name"]: each for each in workflow["protocols"]}
        databases = {"postgres", "mysql", "mongodb"}
        sockets = {"redis", "tcp", "udp"}
        web = {"http", "http2", "http3", "websocket", "sse", "grpc"}
        files = {"smtp", "ftp", "sftp"}
        brokers = {"nats", "mqtt", "kafka", "amqp"}
        assert set(found) == {*web, *databases, *sockets, *files, *brokers}
        made = workflow["starts"]["made"]
        assert made == workflow["iteration"]["ok"] > 0
        # Two steps of gRPC; GraphQL over HTTP/2 and HTTP/1.1; a transaction begins and commits;
        # three calls of MQTT in a step.
        twice = dict.fromkeys(("grpc", "http2", "http"), 2 * made)
        wanted = dict.fromkeys(found, made) | twice | {"mysql": 3 * made, "mqtt": 3 * made}
        assert {name: each["sent"] for name, each in found.items()} == wanted
        seen = (
            plain,
            self.http2.requests,
            self.http3.requests,
            self.websocket.messages["/echo"],
            self.sse.paths["/events"],
            self.grpc.calls["Buy"],
            self.grpc.calls["Talk"],
            self.graphql.operations["anonymous"],
            self.graphql.operations["Order"],
            on_postgres(self.postgres, "SELECT count(*) FROM orders"),
            on_mysql(self.mysql, "SELECT count(*) FROM orders"),
            self.mongodb.calls["insert"],
            len(self.mail.mails),
            self.ftp.files["received"],
            self.sftp.files["written"],
            self.redis.calls()["incrby"],
            self.echo.bytes_received / len("hello\n"),
            self.echo.datagrams,
            self.nats.counts()["in_msgs"],
            self.amqp.waiting(),
        )
        assert seen == (made,) * 20
        # The server writes down what it has a moment later.
        eventually(lambda: len(self.kafka.messages), made)
        assert {each["headers"] for each in self.kafka.messages} == {"kind=shoe"}
        attached = b64encode((EXAMPLES / "shop.proto").read_bytes())[:40]
        assert all(attached in bytes(mail.content or b"") for mail in self.mail.mails)
        for server in (self.ftp, self.sftp):
            assert {path.read_bytes() for path in server.folder.iterdir()} == {SENT}
            assert server.logins["ada"] + server.logins["all"] == server.connections
        for name, server in (("smtp", self.mail), ("ftp", self.ftp), ("sftp", self.sftp)):
            assert found[name]["connections"] == server.connections
        assert found["nats"]["messages_sent"] == made
        assert found["nats"]["connections"] == self.nats.counts()["total_connections"] - 1
        assert found["mqtt"]["messages_sent"] == found["mqtt"]["messages_received"] == made
        assert found["tcp"]["connections"] == self.echo.connections
        assert sum(each["sent"] for each in found.values()) == workflow["requests"]["sent"]
        assert not any(each["failed"] for each in found.values())
        assert found["http2"]["connections"] == self.http2.connections + self.graphql.connections
        assert found["http3"]["connections"] == self.http3.connections
        assert found["grpc"]["messages_sent"] == self.grpc.messages_received - made == 3 * made
        assert found["grpc"]["messages_received"] == self.grpc.messages_sent - made == 3 * made
        assert found["websocket"]["connections"] == self.websocket.connections
        assert found["websocket"]["messages_sent"] == made
        assert found["websocket"]["messages_received"] == made
        # Events that came in one packet with the last one are received, too.
        assert found["sse"]["messages_received"] >= EVENTS * made
        assert found["sse"]["connections"] == found["sse"]["connect_histogram"]["count"] == made


@contextmanager
def running_protocol_servers() -> Generator[ProtocolServers]:
    with ExitStack() as stack:
        begin = stack.enter_context
        folders = [Path(begin(TemporaryDirectory())) for _ in range(3)]
        servers = ProtocolServers(
            http2=begin(running_http2_server()),
            http3=begin(running_http3_server(folders[0])),
            websocket=begin(running_websocket_server()),
            sse=begin(running_event_server()),
            grpc=begin(running_grpc_server()),
            graphql=begin(running_graphql_server()),
            postgres=begin(postgres_database()),
            mysql=begin(mariadb_database()),
            mongodb=begin(running_mongodb_server()),
            redis=begin(running_redis()),
            echo=begin(running_echo_server()),
            nats=begin(running_nats()),
            mqtt=begin(running_mosquitto()),
            mail=begin(running_mail_server()),
            ftp=begin(running_ftp_server(folders[1])),
            sftp=begin(running_ssh_server(folders[2])),
            kafka=begin(running_kafka_server()),
            amqp=begin(rabbitmq_queue()),
        )
        on_postgres(servers.postgres, "CREATE TABLE orders (number INTEGER)")
        on_mysql(servers.mysql, "CREATE TABLE orders (number INTEGER)")
        yield servers
