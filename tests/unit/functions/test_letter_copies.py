"""Copies of a function's dead letters in a topic: once each, whatever crashes and however workers gather them.

Crashes and other workers are put between any two requests to the broker, as for letters of commits.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.assemble import load_settings
from holdfast.errors import ConfigError, Unavailable
from holdfast.flow.shards import StreamRecord
from holdfast.functions.record_letters import RecordLetters
from holdfast.functions.shard_calls import DeadRecord
from holdfast.sinks.function.config import FunctionSinkConfig
from holdfast.sinks.function.sink import FunctionSink
from holdfast.testing.flows import MemoryBucket
from tests.unit.deadletters.test_letter_topic import Broker, Crash, topic_of

ORIGIN = {"pipeline": "p", "stream": "orders", "label": "0", "generation": 1, "key": "orders|0"}
HEADERS = (("trace", b"1"), ("trace", b"\xff"), ("none", None))
RECORDS = [StreamRecord("orders|0", number, 5, b"key %d" % number, HEADERS, b"%d" % number) for number in range(3)]


def kept(bucket: MemoryBucket, broker: Broker, records: Sequence[StreamRecord] = RECORDS) -> None:
    """What a worker does before it reports these records."""
    letters = RecordLetters(bucket, topic_of(broker))
    letters.keep(ORIGIN, [DeadRecord(record, "ValueError: no", 4) for record in records])


def bodies(broker: Broker) -> list[bytes | None]:
    return [message.value for message in broker.visible()]


def test_a_copy_is_the_record_with_its_key_and_headers_and_the_reason_behind_them() -> None:
    broker = Broker()
    kept(MemoryBucket(), broker, RECORDS[:1])
    (message,) = broker.visible()
    assert (message.key, message.value, tuple(message.headers[:3])) == (b"key 0", b"0", HEADERS)
    headers: dict[str, Any] = dict(message.headers)
    assert headers["holdfast.reason"] == b"failed 4 times: ValueError: no"
    assert (headers["holdfast.pipeline"], headers["holdfast.partition"]) == (b"p", b"orders|0")
    assert headers["holdfast.source"] == b'{"item": 0, "offset": 0, "shard": "orders|0", "timestamp": 5}'


@pytest.mark.parametrize("number", range(1, 7))
def test_letters_are_there_once_after_a_crash_at_any_request_though_they_are_gathered_in_another_way(
    number: int,
) -> None:
    bucket, broker = MemoryBucket(), Broker()

    def crash(call: int) -> None:
        if call == number:
            raise Crash

    broker.at_call = crash
    with pytest.raises(Crash):
        kept(bucket, broker, RECORDS[:2])
    kept(bucket, broker, RECORDS[1:])
    kept(bucket, broker, RECORDS)
    kept(bucket, broker, RECORDS)
    assert sorted(bodies(broker)) == [b"0", b"1", b"2"]  # type: ignore[type-var]


@pytest.mark.parametrize(("first", "second"), list(itertools.product(range(1, 9), repeat=2)))
def test_letters_are_there_once_if_other_workers_send_them_between_any_two_requests(first: int, second: int) -> None:
    bucket, broker = MemoryBucket(), Broker()

    def meanwhile(call: int) -> None:
        if call in {first, first + second}:
            with suppress(Unavailable):
                kept(bucket, broker, RECORDS[call % 2 :])

    broker.at_call = meanwhile
    with suppress(Unavailable):
        kept(bucket, broker)
    broker.at_call = lambda _call: None
    kept(bucket, broker)
    assert sorted(bodies(broker)) == [b"0", b"1", b"2"]  # type: ignore[type-var]


def test_only_the_part_of_the_topic_is_read_in_which_the_letters_may_be() -> None:
    bucket, broker = MemoryBucket(), Broker()
    kept(bucket, broker, RECORDS[:1])
    kept(bucket, broker, RECORDS[1:])
    assert broker.scanned_from == [], "new letters are looked for nowhere"
    kept(bucket, broker, RECORDS[2:])
    assert broker.scanned_from == [1]


def config(folder: Path, **kafka: Any) -> FunctionSinkConfig:
    letters = {"file": str(folder / "letters"), "kafka": {"bootstrap_servers": "127.0.0.1:1", "topic": "dead", **kafka}}
    return FunctionSinkConfig.model_validate({"handler": "orders:handler", "dead_letters": letters})


def test_workers_are_sent_the_topic_that_the_settings_name(tmp_path: Path) -> None:
    sink = FunctionSink("function", config(tmp_path))
    stager = pickle.loads(pickle.dumps(sink.stager_for(())))  # noqa: S301 (our own bytes)
    assert (stager.letters.topic.topic, stager.letters.topic.identity[1]) == ("dead", "function")


FILE = """
pipelines:
  orders:
    source: {{kafka: {{bootstrap_servers: "b:9092", topics: [orders, {read}]}}}}
    sinks:
      - function:
          handler: orders:handler
          dead_letters: {{file: ./letters, kafka: {{bootstrap_servers: "b:9092", topic: dead}}}}
"""


def test_a_topic_of_letters_that_the_function_reads_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(FILE.format(read="others"))
    load_settings(tmp_path / "p.yaml")
    (tmp_path / "p.yaml").write_text(FILE.format(read="dead"))
    with pytest.raises(ConfigError, match="every dead letter would become another one"):
        load_settings(tmp_path / "p.yaml")
