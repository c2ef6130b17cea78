"""The sink `function` and the source that it reads: settings, endless plans, and letters in a folder."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic import ValidationError

from holdfast.assemble import audited_letters, build_pipeline, load_settings
from holdfast.buckets.root import bucket_of
from holdfast.config.digest import digest_of
from holdfast.errors import Halt, Refused, UsageError
from holdfast.events import Event
from holdfast.flow.batch import Cut, Limits
from holdfast.flow.shards import StreamRecord
from holdfast.flow.sink import RunsWorkers
from holdfast.flow.source import Source
from holdfast.functions.engine import FunctionEngine, FunctionParts
from holdfast.functions.events import TriggerInfo
from holdfast.functions.record_letters import RecordLetters
from holdfast.functions.shard_calls import DeadRecord
from holdfast.leases.lease import Commit, Lease, Progress
from holdfast.registry import Registry
from holdfast.sinks.function.config import FunctionSinkConfig
from holdfast.sinks.function.sink import FunctionSink, ShardSource
from holdfast.sources.kafka.source import KafkaSource
from holdfast.sources.stream.frames import NewRecord
from holdfast.sources.stream.reader import EmbeddedReaderFactory
from holdfast.sources.stream.stream import Stream, StreamSettings

FILE = """
pipelines:
  hello:
    source: {{stream: {{name: s, folder: {folder}}}}}
    {more}
    sinks:
      - function:
          {{handler: "hello:handler", seek_to: {seek}, on_error: {{after_retries: stop}}, workers: 3}}
"""


def source_of(folder: Path, *, seek: str = "earliest", more: str = "") -> tuple[ShardSource, RunsWorkers]:
    (folder / "file.yaml").write_text(FILE.format(folder=folder, seek=seek, more=more))
    settings = load_settings(folder / "file.yaml")
    built = build_pipeline(settings.pipelines["hello"], Registry.installed())
    (sink,) = built.sinks.values()
    assert isinstance(built.source, ShardSource)
    assert isinstance(sink, RunsWorkers)
    return built.source, sink


def lease(source: ShardSource, position: Any = None, incarnation: str | None = None) -> Lease:
    (partition,) = source.discover({})
    assert partition is not None
    commit = Commit(incarnation=partition.incarnation if incarnation is None else incarnation)
    return Lease("hello", partition.key, spec=partition.spec, progress=Progress(position), commit=commit)


@pytest.mark.parametrize(("seek", "start"), [("earliest", 0), ("latest", 2), ('{time: "2001-01-01T00:00:00Z"}', 0)])
def test_a_shard_begins_where_the_function_says_and_goes_on_for_ever(tmp_path: Path, seek: str, start: int) -> None:
    stream = Stream.create(tmp_path, "s", StreamSettings(1))
    stream.append(0, [NewRecord(b"1"), NewRecord(b"2")])
    source, sink = source_of(tmp_path, seek=seek)
    assert source.plan([lease(source)], Limits()) == [Cut({"offset": start}, None)]
    assert source.plan([lease(source, {"offset": 1})], Limits()) == [Cut({"offset": 1}, None)]
    assert source.lives_long
    assert sink.workers == 3
    assert sink.session_timing == (10.0, 3.0)


def test_what_the_stream_refuses_is_refused(tmp_path: Path) -> None:
    Stream.create(tmp_path, "s", StreamSettings(1))
    source, _ = source_of(tmp_path)
    (plan,) = source.plan([lease(source, incarnation="another")], Limits())
    assert isinstance(plan, Halt)


URL = "http://v3io-webapi:8081/users/test-stream-0@cg0"


def built_with(folder: Path, source: str, url: str = URL) -> Source:
    function = f'{{handler: "hello:handler", url: "{url}", on_error: {{after_retries: stop}}}}'
    (folder / "file.yaml").write_text(f"pipelines: {{hello: {{source: {source}, sinks: [function: {function}]}}}}")
    return build_pipeline(load_settings(folder / "file.yaml").pipelines["hello"], Registry.installed()).source


@pytest.mark.parametrize(
    "source",
    [
        "{stream: {name: users.test-stream-0}}",
        "{stream: {name: test-stream-0}}",
        "{kafka: {bootstrap_servers: 'b:1', topics: [test-stream-0]}}",
        "{kinesis: {stream: test-stream-0, region: r}}",
    ],
)
def test_the_url_of_a_trigger_names_the_stream_that_the_source_reads(tmp_path: Path, source: str) -> None:
    assert isinstance(built_with(tmp_path, source), ShardSource)
    with pytest.raises(UsageError, match=r"names the stream users\.other, which the source does not read"):
        built_with(tmp_path, source, URL.replace("test-stream-0", "other"))


@pytest.mark.parametrize(("given", "group"), [("", "cg0"), (", group: mine", "mine")])
def test_the_group_of_the_url_is_that_of_kafka(tmp_path: Path, given: str, group: str) -> None:
    source = built_with(tmp_path, f"{{kafka: {{bootstrap_servers: 'b:1', topics: [test-stream-0]{given}}}}}")
    assert isinstance(source, ShardSource)
    assert isinstance(source._source, KafkaSource)
    assert source._source._config.group == group


def test_a_source_without_shards_is_refused() -> None:
    with pytest.raises(UsageError, match="must have shards"):
        ShardSource(cast("Source", object()))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "dead_letters: {file"),
        ({"dead_letter_folder": "letters"}, "is now `dead_letters"),
        ({"dead_letters": {"file": "letters"}, "certificate": "c.pem"}, "belong together"),
    ],
)
def test_settings_that_would_lose_records_or_protection_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        FunctionSinkConfig.model_validate({"handler": "hello:handler", **given})


def test_workers_of_another_host_do_not_connect_without_encryption_unless_that_is_allowed(tmp_path: Path) -> None:
    config = FunctionSinkConfig.model_validate({"handler": "h:h", "on_error": {"after_retries": "stop"}})
    parts = FunctionParts(EmbeddedReaderFactory(tmp_path, "s", "id"), config, host="127.0.0.2")
    with pytest.raises(Refused, match=r"connect to 127.0.0.2 without encryption"):
        FunctionEngine(cast("Any", None), parts, lambda: 1.0)


def test_a_node_whose_workers_do_not_come_up_says_so_and_joins(tmp_path: Path) -> None:
    over, events = threading.Event(), list[Event]()
    jobs = SimpleNamespace(mapPartitions=lambda _work: SimpleNamespace(collect=over.wait))
    context = SimpleNamespace(setJobGroup=lambda *_, **__: None, parallelize=lambda *_: jobs)
    config = FunctionSinkConfig.model_validate({"handler": "h:h", "on_error": {"after_retries": "stop"}})
    parts = FunctionParts(EmbeddedReaderFactory(tmp_path, "s", "id"), config, trigger=TriggerInfo(name="hello"))
    engine = FunctionEngine(cast("Any", SimpleNamespace(sparkContext=context)), parts, lambda: 1.0, events.append)
    engine.wait_until_up(0.0)
    assert [str(event) for event in events if "hello: workers are not up" in str(event)] != []
    over.set()
    engine.close()


def test_a_letter_is_the_whole_record_and_exists_once_however_often_it_is_written(tmp_path: Path) -> None:
    record = StreamRecord("s/0", 7, 1_700_000_000_000, b"key", (("h", b"\xff"), ("n", None)), b"\x00body")
    large = StreamRecord("s/0", 9, 1_700_000_000_000, None, (), b"x" * 2_000_000)
    sink = FunctionSink(
        "f", FunctionSinkConfig.model_validate({"handler": "h:h", "dead_letters": {"file": str(tmp_path)}})
    )
    bucket = bucket_of(str(tmp_path), None)
    origin = {"pipeline": "hello", "stream": "s", "label": "0", "generation": 1, "key": "s/0"}
    RecordLetters(bucket).keep(origin, [DeadRecord(record, "ValueError: no\nTraceback", 4)])
    RecordLetters(bucket).keep(origin, [DeadRecord(record, "ValueError: again", 1), DeadRecord(large, "E: e", 1)])
    box = sink.letter_box("hello")
    small, big = box.letters()
    assert (small.key, small.item, small.reason) == ("s/0", 7, "failed 4 times: ValueError: no")
    assert small.record() == b"\x00body"
    assert small.source is not None
    assert (small.source["key"], small.source["headers"][0]["value"]) == ("key", "/w==")
    assert box.whole(big).record() == large.body


def test_new_code_of_a_handler_runs_beside_the_old_one_under_the_same_generation(tmp_path: Path) -> None:
    (tmp_path / "old.yaml").write_text(FILE.format(folder=tmp_path, seek="earliest", more=""))
    (tmp_path / "new.yaml").write_text((tmp_path / "old.yaml").read_text().replace("hello:handler", "later:handler"))
    old, new = (load_settings(tmp_path / name).pipelines["hello"] for name in ("old.yaml", "new.yaml"))
    assert digest_of(old) == digest_of(new)
    assert digest_of(old) != digest_of(new.model_copy(update={"generation": 2})), "another generation ends that"


def test_verify_looks_for_no_letters_where_a_shard_stops_at_a_record_that_fails(tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text(FILE.format(folder=tmp_path, seek="earliest", more=""))
    assert audited_letters(load_settings(tmp_path / "file.yaml"), "hello") == []
