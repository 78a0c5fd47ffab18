"""Kafka by aiokafka: one message per row, as JSON.

The key of a message is the id of its row, so in a compacted topic a second delivery replaces the
first. Rows that only the first one had stay. The message of the run comes last, after all others
are acknowledged, and has the number of rows of each table, so a reader knows which rows count.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from squall.api.reporting import RunReporter
from squall.reporting.outputs.libraries import library
from squall.reporting.outputs.rows.as_json import objects_of
from squall.reporting.outputs.rows.from_document import RunRows
from squall.reporting.outputs.rows.model import RUNS, SCHEMA
from squall.reporting.outputs.targets import Secret


@dataclass(frozen=True)
class KafkaConfig:
    brokers: tuple[str, ...] = ("127.0.0.1:9092",)
    topic: str = "squall"
    tls: bool = False
    username: str = ""
    password: Annotated[str, Secret("KAFKA_PASSWORD")] = field(default="", repr=False)
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"
    """How the password is sent."""
    timeout_s: float = 60.0


class KafkaReporter(RunReporter):
    def __init__(self, config: KafkaConfig) -> None:
        self.config = config
        self.timeout_s = config.timeout_s
        self._producer: Any = None

    async def connect(self) -> None:
        config = self.config
        sasl: dict[str, Any] = {}
        if config.username:
            sasl = {
                "sasl_mechanism": config.mechanism,
                "sasl_plain_username": config.username,
                "sasl_plain_password": config.password,
            }
        protocol = ("SASL_" if sasl else "") + ("SSL" if config.tls else "PLAINTEXT")
        self._producer = library("aiokafka").AIOKafkaProducer(
            bootstrap_servers=list(config.brokers),
            client_id="squall",
            acks="all",
            security_protocol=protocol,
            ssl_context=ssl.create_default_context() if config.tls else None,
            request_timeout_ms=round(config.timeout_s * 1e3),
            **sasl,
        )
        await self._producer.start()

    async def submit(self, document: dict[str, Any]) -> None:
        waiting: list[asyncio.Future[Any]] = []
        for table, made in objects_of(RunRows(document)):
            if table is RUNS:
                await asyncio.gather(*waiting)
                await (await self._send(made))
            else:
                waiting.append(await self._send(made))

    async def _send(self, made: dict[str, Any]) -> asyncio.Future[Any]:
        """Adds the message to a batch and returns; the future ends with its acknowledgement."""
        headers = [("schema", SCHEMA.encode()), ("table", made["table"].encode())]
        return await self._producer.send(
            self.config.topic, json.dumps(made).encode(), key=made["id"].encode(), headers=headers
        )

    async def close(self) -> None:
        if self._producer is not None:
            await self._producer.stop()
