"""What the runtime of functions costs for each record, beside a loop in plain Python that calls the same handler.

Both get the same records from a list and make the event that the handler gets; nothing is read from a stream. The
worker also keeps the order per shard, acks, counts and the time until which it may begin records. Peers make holdfast's
event, or that of Nuclio's SDK as Nuclio's own wrapper does.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import nuclio_sdk

from benchmarks.harness import Comparison, compare, interleaved
from holdfast.flow.shards import StreamRecord
from holdfast.functions.acks import ShardAcks
from holdfast.functions.events import EventOrigin
from holdfast.functions.nuclio import event_class
from holdfast.functions.settings import FunctionConfig
from holdfast.functions.worker import FunctionWorker

RECORDS = 50_000
READ = 500
SHARDS = 8
REPEATED = 9
CODE = """
def handler(context, event): pass

def batch(context, events): pass
"""
ORIGIN = EventOrigin("stream", 0)


def runtime() -> list[Comparison]:
    reads = [
        [StreamRecord("0", offset, 1_767_225_600_000, None, (), b"x" * 150) for offset in range(first, first + READ)]
        for first in range(0, RECORDS, READ)
    ]
    found: list[Comparison] = []
    static = {"worker_allocation": "static"}
    cases: list[tuple[str, dict[str, Any], Callable[..., float], float | str]] = [
        ("implicit ack, to a loop with the same event", {}, _same_event, "<= 2"),
        ("implicit ack, to a loop with nuclio_sdk.Event", {}, _nuclio_event, "<= 0.4"),
        ("implicit ack with a timeout, to the same event", {"timeout": 30}, _same_event, "<= 2.5"),
        ("ack: enable, to a loop with nuclio_sdk.Event", {"ack": "enable", **static}, _nuclio_event, "<= 1"),
        ("batches of 500, to a loop with the same event", {"batch": {"size": READ}}, _same_event, "<= 1.5"),
    ]
    with _folder() as folder:
        for name, settings, peer, bar in cases:
            handler = f"{folder}/handlers.py:{'batch' if 'batch' in settings else 'handler'}"
            config = FunctionConfig.model_validate({"handler": handler, "read_batch_size": READ, **settings})
            ours, theirs = interleaved([partial(_worker, config, reads), partial(peer, reads)], REPEATED)
            found.append(compare("functions", name, ours, theirs, "ns/record", bar))
    event, limit = interleaved([partial(_events, reads), lambda: 500.0], REPEATED)
    found.append(compare("functions", "an event, to 500 ns", event, limit, "ns", "<= 1"))
    acks, limit = interleaved([_acks, lambda: 500.0], REPEATED)
    found.append(compare("functions", "deliver and ack out of order, to 500 ns", acks, limit, "ns", "<= 2"))
    return found


@contextmanager
def _folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "handlers.py").write_text(CODE)
        yield folder


def _worker(config: FunctionConfig, reads: list[list[StreamRecord]]) -> float:
    worker = FunctionWorker(config)
    for shard in range(SHARDS):
        worker.assign(str(shard), EventOrigin("stream", shard), 0)
    start = time.process_time()
    for number, records in enumerate(reads):
        worker.feed(str(number % SHARDS), records)
        worker.step(float("inf"))
    spent = time.process_time() - start
    assert sum(shard.counts.succeeded for shard in worker.shards.values()) == RECORDS
    worker.close()
    return spent / RECORDS * 1e9


def _handler(context: Any, event: Any) -> None:
    pass


def _same_event(reads: list[list[StreamRecord]]) -> float:
    new_event, context = event_class(), object()
    start = time.process_time()
    for records in reads:
        for record in records:
            _handler(context, new_event(record, ORIGIN))
    return (time.process_time() - start) / RECORDS * 1e9


def _nuclio_event(reads: list[list[StreamRecord]]) -> float:
    context, trigger = object(), nuclio_sdk.TriggerInfo("stream", "stream")
    start = time.process_time()
    for records in reads:
        for record in records:
            event = nuclio_sdk.Event(
                body=record.body,
                content_type="",
                trigger=trigger,
                fields={},
                headers=dict(record.headers),
                _id="",
                method="",
                path="stream",
                size=len(record.body or b""),
                timestamp=datetime.fromtimestamp(record.timestamp / 1000, UTC),
                url="",
                shard_id=0,
                num_shards=SHARDS,
                _type="",
                type_version="",
                version="",
                offset=record.offset,
                topic="stream",
            )
            _handler(context, event)
    return (time.process_time() - start) / RECORDS * 1e9


def _events(reads: list[list[StreamRecord]]) -> float:
    new_event = event_class()
    start = time.process_time()
    for records in reads:
        for record in records:
            new_event(record, ORIGIN)
    return (time.process_time() - start) / RECORDS * 1e9


def _acks() -> float:
    """Acks that come a window later, in pairs that are out of order."""
    acks, behind = ShardAcks(window=4096), 1000
    for offset in range(behind):
        acks.deliver(offset)
    start = time.process_time()
    for offset in range(behind, RECORDS, 2):
        acks.deliver(offset)
        acks.deliver(offset + 1)
        acks.ack(offset - behind + 1)
        acks.ack(offset - behind)
    return (time.process_time() - start) / (RECORDS - behind) * 1e9
