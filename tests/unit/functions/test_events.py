from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from dataclasses import asdict
from datetime import datetime
from importlib.util import find_spec
from typing import Any

import nuclio_sdk
import pytest

from holdfast.flow.shards import StreamRecord
from holdfast.functions.contexts import FunctionContext, FunctionLogger, FunctionPlatform
from holdfast.functions.events import EventBatch, EventOrigin, FunctionEvent, QualifiedOffset, TriggerInfo
from holdfast.functions.nuclio import event_class, provide_nuclio
from tests.unit.functions.rig import Rec

ORIGIN = EventOrigin("users/test", 7, TriggerInfo("v3ioStream", "my trigger"), 12)
JSON = (("Content-Type", b"application/json"),)


@pytest.fixture(params=[FunctionEvent, event_class()], ids=["without the SDK", "with the SDK"])
def kind(request: pytest.FixtureRequest) -> type[FunctionEvent]:
    return request.param  # type: ignore[no-any-return]


def test_attributes_are_those_of_nuclio(kind: type[FunctionEvent]) -> None:
    event = kind(Rec(5, b"abc", (("x", b"1"), ("raw", b"\xff"), ("none", None)), b"k"), ORIGIN)
    assert (event.body, event.offset, event.shard_id, event.size, event.key) == (b"abc", 5, 7, 3, b"k")
    assert event.headers == {"x": "1", "raw": b"\xff", "none": None}
    assert (event.trigger.kind, event.trigger.name, event.num_shards) == ("v3ioStream", "my trigger", 12)
    assert (event.topic, event.path, event.url, event.method) == ("users/test", "users/test", "", "")
    assert event.timestamp == datetime(2026, 1, 1)  # noqa: DTZ001 (Nuclio's have no zone)
    assert event.get_header("X") == "1"
    assert set(vars(nuclio_sdk.Event())) <= {*json.loads(event.to_json())}
    with pytest.raises(AttributeError, match="no_such"):
        _ = event.no_such


@pytest.mark.parametrize(
    ("body", "headers", "expected"),
    [
        (b'{"a": 1}', (), b'{"a": 1}'),
        (b'{"a": 1}', JSON, {"a": 1}),
        (b"[1]", (("content-type", b"application/json; charset=utf-8"),), [1]),
        (b'{"a": 1}', (("content-type", b"text/plain"),), b'{"a": 1}'),
        (b"not json", JSON, b"not json"),
        (None, JSON, None),
    ],
)
def test_the_body_is_bytes_unless_the_content_type_is_json(
    kind: type[FunctionEvent], body: bytes | None, headers: Any, expected: Any
) -> None:
    assert kind(Rec(0, body, headers), ORIGIN).body == expected


def test_attributes_may_be_assigned(kind: type[FunctionEvent]) -> None:
    event = kind(Rec(0, b"abc", JSON), ORIGIN)
    event.body = {"other": 1}
    event.headers["x"] = "2"
    assert (event.body, event.headers["x"]) == ({"other": 1}, "2")


def test_events_can_be_pickled(kind: type[FunctionEvent]) -> None:
    event = kind(Rec(5, b"abc"), ORIGIN)
    copy = pickle.loads(pickle.dumps(event))  # noqa: S301 (made here)
    assert type(copy) is kind
    assert (copy.body, copy.offset, copy.topic) == (b"abc", 5, "users/test")


def test_with_the_sdk_an_event_is_one_of_nuclio() -> None:
    assert isinstance(event_class()(Rec(0), ORIGIN), nuclio_sdk.Event)


@pytest.mark.parametrize("kind_of_offset", [QualifiedOffset, nuclio_sdk.QualifiedOffset])
def test_a_qualified_offset_can_be_kept(kind_of_offset: Any) -> None:
    kept = kind_of_offset.from_event(event_class()(Rec(5), ORIGIN))
    copy = pickle.loads(pickle.dumps(kept))  # noqa: S301 (made here)
    assert (copy.topic, copy.partition, copy.offset) == ("users/test", 7, 5)
    assert copy.compile_explicit_ack_message() == {
        "kind": "streamMessageAck",
        "attributes": {"topic": "users/test", "partition": 7, "offset": 5},
    }


def test_a_qualified_offset_becomes_json_and_back() -> None:
    kept = QualifiedOffset.from_event(FunctionEvent(Rec(5), ORIGIN))
    assert QualifiedOffset(**json.loads(json.dumps(asdict(kept)))) == kept


def test_import_nuclio_works_with_and_without_the_sdk() -> None:
    provide_nuclio()
    import nuclio  # type: ignore[import-not-found]

    assert nuclio.QualifiedOffset is nuclio_sdk.QualifiedOffset
    assert find_spec("nuclio") is not None
    code = (
        "import sys\nimport importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'nuclio_sdk' else find(name, *rest)\n"
        "from holdfast.functions import nuclio as ours, events\nours.find_spec = u.find_spec\nours.provide_nuclio()\n"
        "import nuclio\nassert nuclio.QualifiedOffset is events.QualifiedOffset\n"
        "assert ours.event_class() is events.FunctionEvent\nassert 'nuclio_sdk' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_logger_writes_variables_as_nuclio_shows_them() -> None:
    lines: list[Any] = []
    logger = FunctionLogger(lines.append, worker_id=3)
    logger.debug_with("Got event", shard_id=1, body="shard-1-record-2")
    logger.warning("took %d ms", 5)
    logger.debug_with("Analyzing ", "sentence", "abc")
    assert lines == [
        {"level": "debug", "message": "Got event", "more": "shard_id=1 || body=shard-1-record-2 || worker_id=3"},
        {"level": "warn", "message": "took 5 ms", "more": "worker_id=3"},
        {"level": "debug", "message": "Analyzing  sentence abc", "more": "worker_id=3"},
    ]


def test_the_logger_prints_one_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    FunctionLogger(worker_id=0).info_with("Got event", text="a\nb")
    (line,) = capsys.readouterr().err.splitlines()
    assert '"message":"Got event","more":"text=a\\nb || worker_id=0"' in line


def test_a_context_has_what_nuclio_says() -> None:
    context = FunctionContext(platform=FunctionPlatform(), worker_id=4, trigger=TriggerInfo("stream", "t"))
    context.user_data.connection = "db"
    assert (context.worker_id, context.trigger.name, context.trigger_name) == (4, "t", "t")
    assert set(vars(nuclio_sdk.Context(trigger=TriggerInfo()))) - {"_logger", "_logger_per_async_tasks"} <= {
        *vars(context),
        "_shared_logger",
    }


# --- batches ---------------------------------------------------------------------------------------------------------


def batch_of(number: int, made: list[int] | None = None) -> EventBatch:
    def make(record: StreamRecord) -> FunctionEvent:
        if made is not None:
            made.append(record.offset)
        return event_class()(record, ORIGIN)

    return EventBatch.of([Rec(offset) for offset in range(number)], make)


def test_events_of_a_batch_are_made_when_they_are_used_and_once() -> None:
    made: list[int] = []
    batch = batch_of(5, made)
    assert (len(batch), bool(batch), made) == (5, True, [])
    batch[-1].last_in_batch = True
    assert (batch[4].last_in_batch, batch[-2].offset, made) == (True, 3, [4, 3])
    assert [event.offset for event in batch] == [0, 1, 2, 3, 4]
    assert [event.last_in_batch for event in batch] == [False, False, False, False, True]
    assert (batch[0] is next(iter(batch)), sorted(made)) == (True, [0, 1, 2, 3, 4])


def test_a_batch_is_used_as_a_list_is() -> None:
    batch = batch_of(4)
    first, *rest = batch
    events = [first, *rest]
    assert batch == events
    assert batch[1:3] == events[1:3]
    assert list(reversed(batch)) == events[::-1]
    assert batch + [first] == [*events, first]  # noqa: RUF005 - the operators are what is tested
    assert [first] + batch == [first, *events]  # noqa: RUF005
    assert (first in batch, batch.index(rest[1]), batch_of(0) == []) == (True, 2, True)
    with pytest.raises(IndexError):
        _ = batch_of(4)[4]
    assert batch.pop() is events[3]
    batch.sort(key=lambda event: -event.offset)
    assert [event.offset for event in batch] == [2, 1, 0]
    assert len(batch) == 3


def _pickled(batch: EventBatch) -> Any:
    return pickle.loads(pickle.dumps(batch))  # noqa: S301


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, _pickled])
def test_a_batch_can_be_copied_and_pickled(copied: Any) -> None:
    assert [event.offset for event in copied(batch_of(3))] == [0, 1, 2]
