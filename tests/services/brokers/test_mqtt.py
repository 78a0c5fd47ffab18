"""What `self.client.mqtt` does, against a real broker."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
import trustme

from squall.api.errors import CallError
from squall.clients.ping import ping
from tests.lab.brokers import Broker, running_mosquitto
from tests.services.brokers.lab.users import counters_of, reason_of, user, users
from tests.services.http.lab.servers import on_uvloop

_GUARDED = """\
user root
listener {port} 127.0.0.1
allow_anonymous true
cafile {folder}/ca
certfile {folder}/cert
keyfile {folder}/cert
acl_file {folder}/acl
"""


@pytest.fixture(scope="module")
def broker() -> Generator[Broker]:
    with running_mosquitto() as broker:
        yield broker


@pytest.mark.parametrize("version", ["5", "3.1.1"])
@on_uvloop
async def test_a_subscriber_receives_each_message_once(broker: Broker, version: str) -> None:
    url = f"{broker.url}?version={version}"
    place = f"rooms{version}"
    async with users("mqtt", 2) as (sender, receiver):
        await receiver.subscribe(url, f"{place}/+/heat", qos=2)
        for qos in (0, 1, 2):
            sent = await sender.publish(url, f"{place}/{qos}/heat", {"qos": qos}, qos=qos)
            assert sent.ok and sent.code < 128
            await sender.publish(url, f"{place}/{qos}/light", "on", qos=qos)
        found = await receiver.receive(url, f"{place}/+/heat", 3, qos=2)
        assert [each.json() for each in found.messages] == [{"qos": qos} for qos in (0, 1, 2)]
        assert found.message.topic == f"{place}/0/heat"
        assert not found.message.retained
        assert counters_of(sender).connections == 2


@on_uvloop
async def test_headers_and_latency_with_version_5_only(broker: Broker) -> None:
    async with user("mqtt") as client:
        await client.subscribe(broker.url, "timed")
        await client.publish(broker.url, "timed", "x", headers={"a": "b"}, stamp=True)
        found = await client.receive(broker.url, "timed")
        assert found.message.headers["a"] == "b"
        (latency,) = found.latencies
        assert 0 < latency < 60
        with pytest.raises(CallError, match=r"MQTT 3\.1\.1 has no headers"):
            await client.publish(f"{broker.url}?version=3.1.1", "timed", "x", stamp=True)


@on_uvloop
async def test_a_retained_message_waits_for_subscribers(broker: Broker) -> None:
    async with users("mqtt", 2) as (sender, receiver):
        await sender.publish(broker.url, "state", "on", retain=True)
        found = await receiver.receive(broker.url, "state")
        assert (found.body, found.message.retained) == (b"on", True)
        await sender.publish(broker.url, "state", b"", retain=True)


@on_uvloop
async def test_ids_begin_as_the_address_says(broker: Broker) -> None:
    async with users("mqtt", 2) as clients:
        ids = set[str]()
        for client in clients:
            await client.publish(f"{broker.url}?id=sensor", "a", "x")
            ids.update(each.connection.client.identifier for each in client._calls._held.values())
        assert len(ids) == 2
        assert all(each.startswith("sensor-") for each in ids)


@on_uvloop
async def test_a_mistake_is_a_line_and_leaves_the_connection(broker: Broker) -> None:
    async with user("mqtt") as client:
        await client.publish(broker.url, "fine", "x")
        with pytest.raises(CallError, match="cannot contain wildcards"):
            await client.publish(broker.url, "not/#", "x")
        await client.publish(broker.url, "fine", "x")
        assert counters_of(client).connections == 1
        with pytest.raises(CallError, match=r'version=4 in the address: write "5" or "3\.1\.1"'):
            await client.publish(f"{broker.url}?version=4", "fine", "x")


@on_uvloop
async def test_tls_refusals_and_ping(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    (tmp_path / "ca").write_bytes(authority.cert_pem.bytes())
    (tmp_path / "cert").write_bytes(certificate.private_key_and_cert_chain_pem.bytes())
    (tmp_path / "acl").write_text("topic readwrite open/#\n")
    with running_mosquitto(_GUARDED.replace("{folder}", str(tmp_path))) as broker:
        url = broker.url.replace("mqtt://", "mqtts://")
        async with user("mqtt", ca_file=str(tmp_path / "ca")) as client:
            assert (await client.publish(url, "open/a", "x")).ok
            refused = await client.publish(url, "closed", "x")
            assert (refused.ok, refused.error) == (False, "refused: Not authorized")
            assert refused.code == 135
        async with user("mqtt") as client:
            assert "certificate verify failed" in await reason_of(client.publish(url, "a", "x"))
        result = await ping(url, ca_file=str(tmp_path / "ca"))
        assert result.ok and "MQTT 5" in result.render()
