"""Brokers that take seconds to start are shared by all tests here, which use names of their own."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.lab.brokers import Broker, rabbitmq, running_kafka


@pytest.fixture(scope="session")
def amqp_url() -> Generator[str]:
    with rabbitmq() as url:
        yield url


@pytest.fixture(scope="session")
def kafka_broker() -> Generator[Broker]:
    with running_kafka() as broker:
        yield broker
