"""AWS Lambda by aiobotocore: calls the user's function with the rows of the run.

It sends the rows in as many calls as their size needs, one after the other. Each event has the id
of the run, its own number and the number of all events. If the function fails, the output fails.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from squall.api.reporting import RunReporter
from squall.reporting.outputs.cloud.aws import AWSAccess, aws_client
from squall.reporting.outputs.output_error import OutputError
from squall.reporting.outputs.rows.as_json import objects_of
from squall.reporting.outputs.rows.from_document import RunRows
from squall.reporting.outputs.rows.model import SCHEMA

_EVENT_BYTES = 5_000_000
"""Rows of one call; Lambda takes 6 MB."""


@dataclass(frozen=True)
class LambdaConfig(AWSAccess):
    function: str
    """Its name or ARN."""


class LambdaReporter(RunReporter):
    def __init__(self, config: LambdaConfig) -> None:
        self.config = config
        self.timeout_s = config.timeout_s

    async def submit(self, document: dict[str, Any]) -> None:
        rows = RunRows(document)
        parts = split([json.dumps(made) for _, made in objects_of(rows)], _EVENT_BYTES)
        async with aws_client("lambda", self.config) as client:
            for number, part in enumerate(parts, 1):
                head = {"schema": SCHEMA, "run_id": rows.run_id, "part": number, "of": len(parts)}
                event = json.dumps(head)[:-1] + f', "rows": [{", ".join(part)}]}}'
                answer = await client.invoke(
                    FunctionName=self.config.function,
                    InvocationType="RequestResponse",
                    Payload=event.encode(),
                )
                content = await answer["Payload"].read()
                if answer.get("FunctionError"):
                    text = " ".join(content.decode(errors="replace").split())
                    raise OutputError(f"the function failed: {text[:300]}")


def split(rows: Sequence[str], most_bytes: int) -> list[list[str]]:
    """Splits the rows into parts of a bounded size; a larger row has a part of its own."""
    parts: list[list[str]] = []
    room = 0
    for row in rows:
        # JSON is ASCII here: a character is a byte.
        if not parts or len(row) > room:
            parts.append([])
            room = most_bytes
        parts[-1].append(row)
        room -= len(row) + 2
    return parts
