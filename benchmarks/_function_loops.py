"""Programs beside which functions are measured: plain loops, Quix Streams and bytewax, each in a process of its own.

They call the same handlers for the same records, with the same settings of the Kafka client. They have no leases and no
supervision; the plain loops and bytewax commit nothing, Quix Streams commits once per second.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from tests.servers.processes import cache_folder

READ = 500
KAFKA_SETTINGS = {
    "enable.auto.commit": False,
    "fetch.wait.max.ms": 100,
    "fetch.queue.backoff.ms": 1,
    "queued.max.messages.kbytes": 16384,
}
"""Those of our reader: with the defaults a plain loop waits for up to a second while its queue is full."""

HANDLERS = """
import os, time
from pathlib import Path

FOLDER = Path(os.environ["BENCH_FOLDER"])
LAST = int(os.environ["BENCH_RECORDS"]) - 1
lines = None

def note(text):
    global lines
    if lines is None:
        lines = open(FOLDER / f"notes-{os.getpid()}", "a", buffering=1)
    lines.write(text + "\\n")

def edges(context, event):
    offset = event.offset
    if offset == 0 or offset == LAST:
        note(f"{event.shard_id} {offset} {time.process_time()} {time.time()}")

def batch(context, events):
    for event in (events[0], events[-1]):
        edges(context, event)

def delay(context, event):
    note(f"{event.shard_id} {event.offset} {time.time() - float(event.body)} {time.time()}")

def handled(context, event):
    note(f"{event.shard_id} {event.offset} 0 {time.time()}")

def nothing(context, event):
    pass

class Named:
    def __init__(self, shard_id, offset, body):
        self.shard_id, self.offset, self.body = shard_id, offset, body
"""
"""Handlers that note what is measured: shard, offset, a figure, and the time."""

STREAM_LOOP = """
from holdfast.functions.events import EventOrigin
from holdfast.functions.nuclio import event_class
from holdfast.sources.stream.reader import EmbeddedReaderFactory
from holdfast.sources.stream.stream import shard_id

reader = EmbeddedReaderFactory(FOLDER, "s", given["stream"]).open()
origins = {}
for number in range(given["shards"]):
    reader.add(shard_id("s", number), {"offset": 0})
    origins[shard_id("s", number)] = EventOrigin("s", number)
new_event, left, kind = event_class(), given["total"], given["kind"]
(FOLDER / "ready").touch()
while left:
    records = reader.fetch(given["read"], 0.05)
    left -= len(records)
    if kind == "raw":
        for record in records:
            if record.offset == 0 or record.offset == LAST:
                handlers.edges(None, handlers.Named(origins[record.shard].shard_id, record.offset, record.body))
    elif kind == "nuclio":
        trigger = nuclio_sdk.TriggerInfo("stream", "stream")
        for record in records:
            handlers.edges(None, nuclio_event(
                trigger, origins[record.shard].shard_id, record.offset, record.timestamp, record.body,
                dict(record.headers), "s"))
    else:
        call = getattr(handlers, kind)
        for record in records:
            call(None, new_event(record, origins[record.shard]))
"""

KAFKA_LOOP = """
from confluent_kafka import Consumer, TopicPartition
from holdfast.flow.shards import StreamRecord
from holdfast.functions.events import EventOrigin
from holdfast.functions.nuclio import event_class

topic, read, kind = given["topic"], given["read"], given["kind"]
consumer = Consumer({"bootstrap.servers": given["brokers"], "group.id": "plain", **given["settings"]})
consumer.assign([TopicPartition(topic, number, 0) for number in range(given["shards"])])
origins = {number: EventOrigin(topic, number) for number in range(given["shards"])}
names = {number: f"{topic}|{number}" for number in range(given["shards"])}
new_event, left = event_class(), given["total"]
(FOLDER / "ready").touch()

while left:
    first = consumer.poll(0.05)
    if first is None:
        continue
    messages = (first, *consumer.consume(read - 1, 0))
    left -= len(messages)
    if kind == "raw":
        for message in messages:
            if message.error() is not None:
                raise RuntimeError(message.error())
            offset = message.offset()
            if offset == 0 or offset == LAST:
                handlers.edges(None, handlers.Named(message.partition(), offset, None))
    elif kind == "nuclio":
        trigger = nuclio_sdk.TriggerInfo("kafka", "kafka")
        for message in messages:
            if message.error() is not None:
                raise RuntimeError(message.error())
            headers = message.headers()
            handlers.edges(None, nuclio_event(
                trigger, message.partition(), message.offset(), message.timestamp()[1], message.value(),
                dict(headers) if headers else {}, topic))
    else:
        call = getattr(handlers, kind)
        for message in messages:
            if message.error() is not None:
                raise RuntimeError(message.error())
            number, headers = message.partition(), message.headers()
            record = StreamRecord(names[number], message.offset(), message.timestamp()[1], message.key(),
                                  tuple(headers) if headers else (), message.value())
            call(None, new_event(record, origins[number]))
"""

QUIX = """
from quixstreams import Application, message_context

settings = {name: value for name, value in given["settings"].items() if name != "enable.auto.commit"}
application = Application(
    given["brokers"], consumer_group=given["group"], auto_offset_reset="earliest", commit_interval=1.0,
    consumer_extra_config=settings, auto_create_topics=False, loglevel="ERROR")
topic = application.topic(given["topic"], value_deserializer="bytes", key_deserializer="bytes")
call = getattr(handlers, given["kind"])

def handle(value):
    at = message_context()
    call(None, handlers.Named(at.partition, at.offset, value))

application.dataframe(topic).update(handle)
(FOLDER / "ready").touch()
application.run()
"""

BYTEWAX = """
from bytewax import operators
from bytewax.connectors.kafka import KafkaSource
from bytewax.connectors.stdio import StdOutSink
from bytewax.dataflow import Dataflow
from bytewax.testing import run_main

call = getattr(handlers, given["kind"])

def handle(message):
    call(None, handlers.Named(message.partition, message.offset, message.value))
    return False

flow = Dataflow("bench")
source = KafkaSource([given["brokers"]], [given["topic"]], batch_size=given["read"], add_config=given["settings"])
operators.output("out", operators.filter("handle", operators.input("in", flow, source), handle), StdOutSink())
(FOLDER / "ready").touch()
run_main(flow)
"""

PRODUCER = """
import json, sys, time
from pathlib import Path

given, flushed = json.loads(sys.argv[1]), []

def appender(folder=None, topic=None, brokers=None):
    if folder is not None:
        from holdfast.sources.stream.frames import NewRecord
        from holdfast.sources.stream.stream import Stream

        stream = Stream.open(Path(folder), "s")
        return lambda shard, body: stream.append(shard, [NewRecord(body)])
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": brokers, "enable.idempotence": True, "linger.ms": 0})

    def append(shard, body):
        producer.produce(topic, body, partition=shard)
        producer.poll(0)

    flushed.append(producer.flush)
    return append

appenders, rate, shards = [appender(**target) for target in given["targets"]], given["rate"], given["shards"]
for turn in range(given["turns"]):
    for append in appenders:
        start = time.monotonic()
        for count in range(rate):
            time.sleep(max(0.0, start + count / rate - time.monotonic()))
            append(count % shards, str(time.time()).encode())
for flush in flushed:
    flush()
"""
"""Appends records for a second to each target in turn, so that all of them have the same minutes of the machine."""

_BEGIN = """
import json, sys
from pathlib import Path

given = json.loads(sys.argv[1])
FOLDER = Path(given["folder"])
sys.path.insert(0, str(FOLDER))
import handlers

LAST = handlers.LAST

if given["kind"] == "nuclio":
    from datetime import datetime, timezone
    import nuclio_sdk

def nuclio_event(trigger, shard_id, offset, timestamp, body, headers, topic):
    # All attributes, as Nuclio's own wrapper gives them.
    return nuclio_sdk.Event(
        body=body, content_type="", trigger=trigger, fields={}, headers=headers, _id="", method="", path=topic,
        size=len(body or b""), timestamp=datetime.fromtimestamp(timestamp / 1000, timezone.utc), url="",
        shard_id=shard_id, num_shards=8, _type="", type_version="", version="", offset=offset, topic=topic)
"""
_PACKAGES = {"quix": (QUIX, "quixstreams==3.28.1"), "bytewax": (BYTEWAX, "bytewax==0.21.1", "confluent-kafka==2.12.2")}


def program(name: str, **given: object) -> list[str] | None:
    """The command of a program; None for a peer that cannot be installed."""
    if name in _PACKAGES:
        code, *packages = _PACKAGES[name]
        python = peer_python(name, tuple(packages))
    else:
        code, python = {"stream": STREAM_LOOP, "kafka": KAFKA_LOOP}[name], Path(sys.executable)
    return None if python is None else [str(python), "-c", _BEGIN + code, json.dumps({"read": READ, **given})]


def producer(targets: Sequence[Mapping[str, str]], *, rate: int, turns: int, shards: int) -> list[str]:
    """The command of a process that appends so many records per second, in so many turns of a second for each."""
    given = {"targets": targets, "rate": rate, "turns": turns, "shards": shards}
    return [sys.executable, "-c", PRODUCER, json.dumps(given)]


@cache
def peer_python(name: str, packages: tuple[str, ...]) -> Path | None:
    """The interpreter of an environment with these packages, which is made once and kept."""
    folder = cache_folder() / "peers" / name
    python, ready = folder / "bin" / "python", folder / ".ready"
    if ready.exists() and ready.read_text() == repr(packages):
        return python
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, capture_output=True)
        install = [str(python), "-m", "pip", "install", "--quiet", *packages]
        subprocess.run(install, check=True, capture_output=True, timeout=300)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"SKIPPED: {name} cannot be installed ({error}); nothing is compared with it", file=sys.stderr)
        return None
    ready.write_text(repr(packages))
    return python
