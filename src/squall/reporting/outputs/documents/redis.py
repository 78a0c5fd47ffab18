"""Redis: one hash per run, with a field for each table, and a sorted set of all runs.

Both change in one transaction, which replaces the hash: no field of an earlier delivery is left.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Annotated, Any

from squall.api.quantities import parse_duration
from squall.api.reporting import RunReporter
from squall.reporting.outputs.libraries import library
from squall.reporting.outputs.rows.as_json import objects_of
from squall.reporting.outputs.rows.from_document import RunRows
from squall.reporting.outputs.rows.model import TABLES
from squall.reporting.outputs.targets import Secret


@dataclass(frozen=True)
class RedisConfig:
    url: str = field(default="redis://127.0.0.1:6379/0", repr=False)
    """`redis://user@host:6379/0`, or `rediss://...` with TLS"""
    username: str = ""
    password: Annotated[str, Secret("REDIS_PASSWORD")] = field(default="", repr=False)
    prefix: str = "squall"
    """Begins each key: `squall:run:ID`, `squall:runs`."""
    expire: str = ""
    """Deletes the run after this time, such as `30d`; kept for ever without it."""
    timeout_s: float = 60.0


class RedisReporter(RunReporter):
    def __init__(self, config: RedisConfig) -> None:
        self.config = config
        self.timeout_s = config.timeout_s
        self._expire_s = parse_duration(config.expire, "expire") if config.expire else None
        self._client: Any = None

    async def connect(self) -> None:
        redis = library("redis.asyncio")

        config = self.config
        own = {"username": config.username} if config.username else {}
        if config.password:
            own["password"] = config.password
        self._client = redis.Redis.from_url(
            config.url,
            socket_timeout=config.timeout_s,
            socket_connect_timeout=config.timeout_s,
            **own,
        )
        await self._client.ping()

    async def submit(self, document: dict[str, Any]) -> None:
        rows = RunRows(document)
        fields: dict[str, list[Any]] = {table.name: [] for table in TABLES}
        for table, made in objects_of(rows):
            fields[table.name].append(made)
        key = f"{self.config.prefix}:run:{rows.run_id}"
        async with self._client.pipeline(transaction=True) as pipeline:
            pipeline.delete(key)
            pipeline.hset(key, mapping={name: json.dumps(own) for name, own in fields.items()})
            if self._expire_s is not None:
                pipeline.pexpire(key, round(self._expire_s * 1e3))
            began_s = rows.started_at.timestamp()
            pipeline.zadd(f"{self.config.prefix}:runs", {rows.run_id: began_s})
            await pipeline.execute()

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
