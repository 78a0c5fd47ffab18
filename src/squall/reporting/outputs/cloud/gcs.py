"""Google Cloud Storage by google-cloud-storage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from squall.api.reporting import RunReporter
from squall.reporting.outputs.blocking_calls import in_thread
from squall.reporting.outputs.cloud.google import GoogleAccess, client_options
from squall.reporting.outputs.cloud.objects import bucket_and_prefix, run_objects
from squall.reporting.outputs.libraries import library


@dataclass(frozen=True)
class GCSConfig(GoogleAccess):
    url: str
    """`gs://bucket/prefix`; the bucket must exist."""


class GCSReporter(RunReporter):
    def __init__(self, config: GCSConfig) -> None:
        self.config = config
        self.timeout_s = config.timeout_s
        self._bucket, self._prefix = bucket_and_prefix(config.url, "gs")

    async def submit(self, document: dict[str, Any]) -> None:
        await in_thread(self._upload, document)

    def _upload(self, document: dict[str, Any]) -> None:
        storage = library("google.cloud.storage")

        client = storage.Client(**client_options(self.config))
        try:
            bucket = client.bucket(self._bucket)
            for name, content_type, content in run_objects(document, self._prefix):
                bucket.blob(name).upload_from_string(
                    content, content_type=content_type, timeout=self.config.timeout_s
                )
        finally:
            client.close()
