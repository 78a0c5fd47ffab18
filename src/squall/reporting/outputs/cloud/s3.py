"""S3, and stores that speak its protocol, by aiobotocore."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from squall.api.reporting import RunReporter
from squall.reporting.outputs.cloud.aws import AWSAccess, aws_client
from squall.reporting.outputs.cloud.objects import bucket_and_prefix, run_objects


@dataclass(frozen=True)
class S3Config(AWSAccess):
    url: str
    """`s3://bucket/prefix`; the bucket must exist."""


class S3Reporter(RunReporter):
    def __init__(self, config: S3Config) -> None:
        self.config = config
        self.timeout_s = config.timeout_s
        self._bucket, self._prefix = bucket_and_prefix(config.url, "s3")

    async def submit(self, document: dict[str, Any]) -> None:
        async with aws_client("s3", self.config) as client:
            for name, content_type, content in run_objects(document, self._prefix):
                await client.put_object(
                    Bucket=self._bucket, Key=name, Body=content, ContentType=content_type
                )
