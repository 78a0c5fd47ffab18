"""The Redis client against a real redis-server."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest
import trustme

from squall.api.errors import CallError, TransportError
from squall.clients.http import HTTPShared
from squall.clients.ping import ping
from squall.clients.redis import RedisClient
from tests.lab.ports import free_ports
from tests.lab.redis_server import running_redis
from tests.services.http.lab.servers import on_uvloop, prepared, swept


@pytest.mark.parametrize("version", ["2", "3"])
@on_uvloop
async def test_commands_and_their_replies(version: str) -> None:
    with running_redis() as server:
        shared = HTTPShared()
        async with swept(shared) as http:
            redis = RedisClient(http)
            url: Any = await prepared(shared, f"{server.url}/3?protocol={version}")
            assert (await redis.get(url, "cart")).value is None
            assert (await redis.set(url, "cart", "ü", expires="60s")).text == "OK"
            found = await redis.get(url, "cart")
            assert (found.value, found.text, found.ok) == ("ü".encode(), "ü", True)
            assert 0 < found.started < found.first_byte <= found.ended
            assert (found.bytes_sent, found.bytes_received) == (23, 8)
            assert 0 < (await redis.call(url, "PTTL", b"cart")).value <= 60_000
            assert (await redis.incr(url, "n", 5)).value == 5
            assert (await redis.mget(url, "cart", "none")).value == ["ü".encode(), None]
            assert (await redis.hset(url, "h", {"a": 1, "b": 2.5})).value == 2
            assert (await redis.hget(url, "h", "b")).text == "2.5"
            assert sorted((await redis.hgetall(url, "h")).value) == (
                [b"a", b"b"] if version == "3" else [b"1", b"2.5", b"a", b"b"]
            )
            assert (await redis.rpush(url, "l", "1", "2")).value == 2
            assert (await redis.lpush(url, "l", "0")).value == 3
            assert (await redis.lrange(url, "l")).text == "0\n1\n2"
            assert (await redis.lpop(url, "l")).text == "0"
            assert (await redis.sadd(url, "s", 1, 1, 2)).value == 2
            assert (await redis.publish(url, "news", "x")).value == 0
            assert (await redis.exists(url, "l", "s", "none")).value == 2
            assert (await redis.delete(url, "l", "s")).value == 2
            big = "x" * 3_000_000
            await redis.set(url, "big", big)
            assert (await redis.get(url, "big")).text == big
            wrong = await redis.lpush(url, "cart", 1)
            assert (wrong.ok, wrong.value) == (False, None)
            assert wrong.failure.startswith("WRONGTYPE ")
            unknown = await redis.call(url, "NONSENSE", "id 7")
            assert unknown.failure == "ERR unknown command 'NONSENSE'"
            counters = shared.counters_of("redis")
            sent = counters.sent
            assert (counters.answered, counters.failed) == (sent, 0)
        calls = server.calls()
        # Those of the lab and of the log-in are not of the author.
        mine = {name: n for name, n in calls.items() if name not in ("info", "select", "hello")}
        # An unknown command is in no count of the server.
        assert sum(mine.values()) == sent - 1
        assert calls["select"] == counters.connections == 1


@on_uvloop
async def test_pipelines_and_transactions() -> None:
    with running_redis() as server:
        shared = HTTPShared()
        async with swept(shared) as http:
            redis = RedisClient(http)
            url: Any = await prepared(shared, server.url)
            many = await redis.pipeline(url, [("INCR", "n")] * 500)
            assert many.value == list(range(1, 501))
            assert (many.exchanges, many.error) == (500, "")
            assert (await redis.pipeline(url, [("GET", "n")])).value == [b"500"]
            mixed = await redis.pipeline(url, [("SET", "a", 1), ("LPUSH", "a", 1), ("GET", "a")])
            assert mixed.error.startswith("WRONGTYPE") and mixed.value[2] == b"1"
            whole = await redis.pipeline(url, [("INCR", "n"), ("GET", "n")], transaction=True)
            assert whole.value == [501, b"501"] and whole.exchanges == 4
            refused = await redis.pipeline(url, [("GET",), ("GET", "n")], transaction=True)
            assert refused.error.startswith("ERR wrong number of arguments for 'get'")
            await redis.call(url, "WATCH", "n")
            other = RedisClient(http)
            await other.incr(url, "n")
            changed = await redis.pipeline(url, [("GET", "n")], transaction=True)
            assert changed.error == "transaction not executed: a watched key changed"
            # WATCH, a pipeline of 500, one of 1, one of 3, and transactions of 4, 4 and 3.
            assert shared.counters_of("redis").sent == 1 + 1 + 500 + 1 + 3 + 4 + 4 + 3
        assert server.calls()["incr"] == 501


@on_uvloop
async def test_the_log_in_and_its_refusal() -> None:
    with running_redis(password="pä:ss/wörd") as server:
        shared = HTTPShared()
        async with swept(shared) as http:
            redis = RedisClient(http)
            place = f"127.0.0.1:{server.port}"
            for version in "23":
                secret = "p%C3%A4%3Ass%2Fw%C3%B6rd"
                url: Any = f"redis://:{secret}@{place}/1?protocol={version}"
                assert (await redis.set(url, "a", 1)).ok
                wrong: Any = f"redis://default:wrong@{place}?protocol={version}"
                with pytest.raises(TransportError, match=r"^log-in refused: WRONGPASS") as caught:
                    await redis.get(wrong, "a")
                assert "wrong@" not in caught.value.request
            with pytest.raises(TransportError, match=r"^log-in refused: NOAUTH"):
                await redis.get(server.url, "a")
            # RESP2 needs no log-in: the command is refused, and not the connection.
            old = await redis.get(f"{server.url}?protocol=2", "a")
            assert old.error.startswith("NOAUTH")
            with pytest.raises(CallError, match="path is the number of a database"):
                await redis.get(f"redis://{place}/cart", "a")
        counters = shared.counters_of("redis")
        assert (counters.sent, counters.failed, counters.unsent) == (3, 3, 3)
        found = await ping(f"redis://:{secret}@{place}")
        assert found.ok and found.render().startswith("Redis ")
        refused = await ping(f"redis://:nope@{place}")
        assert refused.error.startswith("log-in refused: WRONGPASS")
        assert "nope" not in refused.render()


@on_uvloop
async def test_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("redis.test")
    paths = [tmp_path / name for name in ("cert", "key", "ca")]
    certificate.cert_chain_pems[0].write_to_path(paths[0])
    certificate.private_key_pem.write_to_path(paths[1])
    authority.cert_pem.write_to_path(paths[2])
    (port,) = free_ports(1)
    names = ("--tls-cert-file", "--tls-key-file", "--tls-ca-cert-file")
    files = [word for pair in zip(names, map(str, paths), strict=True) for word in pair]
    with running_redis("--tls-port", str(port), "--tls-auth-clients", "no", *files):
        resolve = {("redis.test", port): "127.0.0.1"}
        shared = HTTPShared(resolve=resolve, ca_file=str(paths[2]))
        async with swept(shared) as http:
            redis = RedisClient(http)
            assert (await redis.set(f"rediss://redis.test:{port}", "a", 1)).ok
            with pytest.raises(TransportError, match="certificate verify failed"):
                await redis.get(f"rediss://127.0.0.1:{port}", "a")
        assert len(shared.counters_of("redis").tls_samples) == 1


@on_uvloop
async def test_a_server_that_stands_still_and_one_that_is_killed() -> None:
    with running_redis() as server:
        shared = HTTPShared()
        async with swept(shared) as http:
            redis = RedisClient(http)
            url: Any = await prepared(shared, server.url)
            await redis.get(url, "a")
            server.signal(signal.SIGSTOP)
            with pytest.raises(TransportError, match=r"^timeout after 0.05 s$"):
                await redis.call(url, "GET", "a", timeout="50ms")
            server.signal(signal.SIGCONT)
            assert (await redis.get(url, "a")).ok
            waiting = asyncio.ensure_future(redis.call(url, "BLPOP", "none", 0))
            while not shared.counters_of("redis").in_flight:
                await asyncio.sleep(0)
            server.stop()
            with pytest.raises(TransportError, match=r"^connection (closed|reset)"):
                await waiting
            with pytest.raises(TransportError, match=r"^connection refused: "):
                await redis.get(url, "a")
            server.start()
            assert (await redis.get(url, "a")).ok
            idle = asyncio.ensure_future(redis.call(url, "BLPOP", "none", 0))
            await asyncio.sleep(0.01)
            idle.cancel()
            with pytest.raises(asyncio.CancelledError):
                await idle
            # A connection that was closed while it was idle is opened again without a failure.
            await redis.get(url, "a")
            server.stop()
            server.start()
            while any(getattr(each, "is_open", False) for each in shared.live):
                await asyncio.sleep(0.001)
            assert (await redis.get(url, "a")).ok
        counters = shared.counters_of("redis")
        assert (counters.failed, counters.unsent, counters.cancelled) == (3, 1, 1)


@on_uvloop
async def test_a_thousand_users_share_a_pool_within_the_limit_of_the_server() -> None:
    # One more connection is of the lab, which asks for counts.
    with running_redis("--maxclients", "13") as server:
        shared = HTTPShared(connections="shared", pool_size=12)
        async with swept(shared) as http:
            url: Any = await prepared(shared, server.url)
            clients = [RedisClient(http) for _ in range(1000)]
            done = await asyncio.gather(
                *(each.incr(url, "n") for each in clients for _ in range(2))
            )
            assert all(each.ok for each in done)
            assert (await clients[0].get(url, "n")).value == b"2000"
        counters = shared.counters_of("redis")
        assert (counters.connections, counters.failed) == (12, 0)


@on_uvloop
async def test_what_is_refused_before_it_is_sent() -> None:
    shared = HTTPShared()
    async with swept(shared) as http:
        redis = RedisClient(http)
        url: Any = "redis://127.0.0.1:9"
        for command in (("SUBSCRIBE", "news"), ("monitor",), ()):
            with pytest.raises(CallError, match=r"no end|needs a command"):
                await redis.call(url, *command)
        with pytest.raises(CallError, match="text, bytes and numbers, not NoneType, str"):
            await redis.call(url, "GET", None)  # pyright: ignore[reportArgumentType]
        with pytest.raises(CallError, match="needs commands"):
            await redis.pipeline(url, [])
    assert shared.counters_of("redis").sent == 0
