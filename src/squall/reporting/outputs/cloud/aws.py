"""The configuration that all outputs to AWS share: region, endpoint, credentials.

Without `access_key` the credentials come from the places that every AWS program searches: the
environment, `~/.aws`, the role of the machine.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

from squall.reporting.outputs.libraries import library
from squall.reporting.outputs.targets import Secret


@dataclass(frozen=True, kw_only=True)
class AWSAccess:
    region: str = ""
    endpoint: str = ""
    """The URL of another server that speaks the same protocol."""
    access_key: str = ""
    secret_key: Annotated[str, Secret("AWS_SECRET_ACCESS_KEY")] = field(default="", repr=False)
    timeout_s: float = 60.0


@asynccontextmanager
async def aws_client(service: str, access: AWSAccess) -> AsyncGenerator[Any]:
    own: dict[str, str] = {}
    if access.access_key:
        own["aws_access_key_id"] = access.access_key
        own["aws_secret_access_key"] = access.secret_key
    if access.region:
        own["region_name"] = access.region
    if access.endpoint:
        own["endpoint_url"] = access.endpoint
    config = library("aiobotocore.config").AioConfig(
        connect_timeout=access.timeout_s,
        read_timeout=access.timeout_s,
        retries={"max_attempts": 3, "mode": "standard"},
    )
    session = library("aiobotocore.session").get_session()
    async with session.create_client(service, config=config, **own) as client:
        yield client
