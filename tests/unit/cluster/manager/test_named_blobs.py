"""A command names a blob only after a quorum has confirmed it, whatever this manager holds (R9)."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from squall.cluster.control.settings import ClientSettings
from squall.cluster.group.blob_transfers import Transfers
from squall.cluster.group.committer import Committer
from squall.cluster.ledger.interface import Digest, TryLater
from squall.cluster.manager.clients.api import ClientApi
from squall.cluster.manager.director.effect_runner import EffectRunner
from squall.cluster.manager.node import CODEC
from squall.cluster.protocol.messages import SubmitJob
from squall.cluster.wire.counters import WireCounters
from squall.cluster.wire.errors import RemoteError
from squall.cluster.wire.messages import ErrorCode
from squall.runtime.interfaces import NodeId
from tests.fakes.datacenter import Bench, submission, workflow

DIGEST = "ab" * 32
unused = cast(Any, None)


class HeldAlone:
    """The blobs of a manager that holds one which no other manager has or takes."""

    async def has(self, digest: Digest) -> bool:
        return digest == DIGEST

    async def ensure(self, digest: Digest) -> bool:
        raise TryLater(NodeId("m1"), "the blob is not on a quorum")


class Log:
    """A log that must not be asked to commit anything."""

    blobs = HeldAlone()

    async def submit(self, body: bytes) -> None:
        raise AssertionError("a command names a blob that only this manager has")


@pytest.mark.asyncio
async def test_a_job_is_not_accepted_while_only_one_manager_has_its_bundle() -> None:
    bench = Bench(w1=1)
    log = cast(Any, Log())
    api = ClientApi(
        datacenter="dc",
        machine=bench.machine,
        ledger=log,
        committer=Committer(log, CODEC, lambda node: ""),
        stream=unused,
        reports=unused,
        views=unused,
        sealer=unused,
        clock=unused,
        wall_s=unused,
        lead_member=lambda key: "m1",
        led_elsewhere=lambda job: "",
        ask_primary=unused,
        log=unused,
        rates=ClientSettings(),
        queue_max=10,
        results=unused,
    )
    plain = submission(workflow("Load", vus=1, duration_s=1))
    bundled = msgspec.structs.replace(plain, bundle=DIGEST, bundle_size=7)
    with pytest.raises(RemoteError, match="not on a quorum") as refused:
        await api.accept(SubmitJob(key="k", submission=bundled), "ann")
    assert refused.value.code == ErrorCode.RETRY_LATER


@pytest.mark.asyncio
async def test_a_record_counts_only_when_a_quorum_has_it() -> None:
    log = cast(Any, Log())
    transfers = Transfers(log.blobs, WireCounters(), unused)
    with pytest.raises(TryLater):
        await transfers.pull(DIGEST, 7, unused)
    runner = EffectRunner(
        ledger=log,
        machine=unused,
        leader=unused,
        leaders=unused,
        transfers=transfers,
        channel_of=lambda node, boot, bulk: None,
        results=unused,
        effects=unused,
    )
    with pytest.raises(TryLater):
        await runner.pulled("w1", "w1.1", DIGEST, 7)
