"""Messages that executors cannot read a second time: their letters keep what Spark has read of them, and say why."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from holdfast.errors import SourceUnavailable
from holdfast.flow.batch import Name
from holdfast.flow.fault import record_fault
from holdfast.flow.letter import new_letters
from holdfast.flow.staging import StagedBatch
from holdfast.sources.kafka import reading
from holdfast.sources.kafka.reading import MessageReader

FAULTS = [(3, record_fault("bad", b"spark's")), (4, record_fault("bad", b"too"))]


def batch_with(reader: MessageReader) -> StagedBatch:
    sent = pickle.loads(pickle.dumps(reader))  # noqa: S301 (our own bytes)
    return StagedBatch("b", "p", "orders|0", Name("orders", "0"), 1, 1, reader=sent)


class Consumer:
    """A consumer that polls these errors, and then nothing."""

    made = 0

    def __init__(self, errors: Sequence[int]) -> None:
        self._errors = list(errors)
        Consumer.made += 1

    def assign(self, _offsets: Any) -> None:
        """Nothing is read."""

    def poll(self, _seconds: float) -> Any:
        if not self._errors:
            return None
        error = KafkaError(self._errors.pop(0))
        return SimpleNamespace(error=lambda: error, offset=lambda: 3)


def test_properties_that_are_not_valid_here_cost_nothing_but_the_rest_of_the_record() -> None:
    properties = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "ssl", "ssl.ca.location": "/nowhere/ca.pem"}
    first, second = new_letters(batch_with(MessageReader(properties)), FAULTS)
    assert (first.fault.raw, second.fault.raw) == ("spark's", "too")
    assert first.more["source"] == {"topic": "orders", "partition": 0, "offset": 3}
    assert str(second.more["missing"]).startswith("executors cannot read messages with librdkafka: ")


def test_a_broker_that_denies_access_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    Consumer.made = 0
    denied = [KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION]
    monkeypatch.setattr("confluent_kafka.Consumer", lambda _properties: Consumer(denied))
    letters = list(new_letters(batch_with(MessageReader({})), FAULTS))
    assert all("cannot read messages" in letter.more["missing"] for letter in letters)
    assert Consumer.made == 1


def test_a_broker_that_does_not_respond_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MESSAGE_PATIENCE", 0.01)
    monkeypatch.setattr("confluent_kafka.Consumer", lambda _properties: Consumer([KafkaError._TRANSPORT]))
    with pytest.raises(SourceUnavailable, match="cannot read messages of orders 0 for dead letters"):
        list(new_letters(batch_with(MessageReader({})), FAULTS))
