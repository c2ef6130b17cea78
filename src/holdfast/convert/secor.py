"""Secor's properties as a file of holdfast: the topics of a consumer group become files in a bucket.

The properties are read here, with `include` as Secor has it: libraries for Java's properties do not support `include`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.config.units import format_duration, format_size
from holdfast.convert.converted_file import ConvertedFile, ForeignSettings
from holdfast.convert.secor_parsers import parse_step
from holdfast.errors import UsageError

_FORMATS: dict[str, dict[str, Any]] = {
    "SequenceFileReaderWriterFactory": {"sequencefile": {}},
    "MessagePackSequenceFileReaderWriterFactory": {"sequencefile": {"key": "messagepack"}},
    "DelimitedTextFileReaderWriterFactory": {"text": {}},
    "FlexibleDelimitedFileReaderWriterFactory": {"text": {}},
    "JsonORCFileReaderWriterFactory": {"orc": {}},
    "AvroFileReaderWriterFactory": {"avro": {}},
    "AvroParquetFileReaderWriterFactory": {"parquet": {}},
    "ProtobufParquetFileReaderWriterFactory": {"parquet": {}},
    "ThriftParquetFileReaderWriterFactory": {"parquet": {}},
}
_CODECS = {
    "GzipCodec": "gzip",
    "SnappyCodec": "snappy",
    "Lz4Codec": "lz4",
    "ZStandardCodec": "zstd",
    "DefaultCodec": "zlib",
}
_COLUMNAR = {"orc", "avro", "parquet"}
# Without a meaning here: ZooKeeper, local files, tuning of Secor's consumer, other clouds, its tools.
_WITHOUT_MEANING = re.compile(
    r"include|cloud\.service|zookeeper\..*|secor\.(zookeeper|local|swift|gs|azure|qubole|enable\.qubole|orc|avro|thrift"
    r"|protobuf|topic_partition|max\.message|max\.file\.(count|timestamp)|max\.input|file\.reader|upload\.|consumer\."
    r"|s3\.filesystem|finalizer)\b.*|kafka\.(rebalance|socket|fetch|consumer\.timeout|partition\.assignment|dual|zookeeper"
    r"|client|message|new\.consumer\.(poll|request|max|partition))\b.*|ostrich\..*|swift\..*|qubole\..*|parquet\..*"
    r"|aws\.proxy\..*|monitoring\..*|statsd\..*|tsdb\..*|schema\.registry\.url|secor\.monitoring\..*|message\.timestamp\..*"
    r"|secor\.file\.(age\.youngest|extension|writer\.Delimiter)"
)
_ENTRY = re.compile(r"\s*((?:\\.|[^\s=:\\])+)(?:\s*[=:]\s*|\s+|$)(.*)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_MOST_FILES = 20
# Names only classes of Secor, for a version of Kafka; it is in another folder than the others.
_CLASSES = "kafka.properties"


def convert_secor(path: Path, read: Callable[[str], str]) -> str:
    """Return a file of holdfast for a file of Secor's properties. Raises `UsageError` if it is not one.

    `read` returns the text of a file, also of those that this one includes, or raises `UsageError`.
    """
    made = ConvertedFile(path.name)
    given = read_properties(path, read, made.note)
    settings = ForeignSettings(made, "", {name: text for name, text in given.items() if text})
    if not any(name.startswith("secor.") for name in given):
        raise UsageError(f"{path.name} is not a file of Secor: it has no property that begins with 'secor.'")
    group = settings.take("secor.kafka.group", "secor")
    pipeline: dict[str, Any] = {"source": {"kafka": _source(settings, group)}}
    if step := parse_step(settings):
        pipeline["processors"] = [{"parse": step}]
    pipeline["sinks"] = [{"files": _sink(settings)}]
    if (generation := settings.whole("secor.generation", 1)) != 1:
        pipeline["generation"] = generation
    made.pipelines[re.sub(r"[^A-Za-z0-9_-]", "-", group)[:64]] = pipeline
    _notes(settings)
    return made.text()


# --- source ----------------------------------------------------------------------------------------------------------


def _source(settings: ForeignSettings, group: str) -> dict[str, Any]:
    host, port = settings.take("kafka.seed.broker.host"), settings.take("kafka.seed.broker.port", "9092")
    if host is None:
        settings.note("kafka.seed.broker.host", "must be changed: name the brokers")
    source: dict[str, Any] = {"bootstrap_servers": f"{host or 'localhost'}:{port}"} | _topics(settings)
    resets = [settings.take(f"kafka.{which}.auto.offset.reset") for which in ("new.consumer", "consumer")]
    if resets[0] == "latest" or (resets[0] is None and resets[1] == "largest"):
        source["start"] = "latest"
    if settings.take("kafka.offsets.storage", "zookeeper") == "kafka":
        source |= {"start": "group", "start_group": group}
    else:
        begin = f"`start: group` and `start_group: {group}`"
        settings.note("secor.kafka.group", f"with Secor's offsets in Kafka, {begin} begin where it stopped")
    if isolation := settings.take("kafka.new.consumer.isolation.level"):
        source["isolation"] = isolation
    size, age = settings.whole("secor.max.file.size.bytes"), settings.whole("secor.max.file.age.seconds")
    upload = ({"max_bytes": format_size(size)} if size else {}) | ({"max_age": format_duration(age)} if age else {})
    source |= {"upload": upload} if upload else {}
    return source | _security(settings)


def _topics(settings: ForeignSettings) -> dict[str, Any]:
    topics, pattern = settings.take("kafka.new.consumer.topic.list"), settings.take("secor.kafka.topic_filter")
    exclude = settings.take("secor.kafka.topic_blacklist")
    if topics:
        return {"topics": [topic.strip() for topic in topics.split(",")]}
    return {"topics_pattern": pattern or ".*"} | ({"exclude": exclude} if exclude else {})


def _security(settings: ForeignSettings) -> dict[str, Any]:
    prefix = "kafka.new.consumer"
    protocol = settings.take(f"{prefix}.security.protocol")
    mechanism, login = settings.take(f"{prefix}.sasl.mechanism"), settings.take(f"{prefix}.sasl.jaas.config")
    if protocol is None:
        return {}
    security: dict[str, Any] = {"protocol": protocol}
    if mechanism in {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}:
        security["sasl_mechanism"] = mechanism
    if login:
        security |= {"username": "${env:KAFKA_USERNAME}", "password": "${env:KAFKA_PASSWORD}"}
        settings.note(f"{prefix}.sasl.jaas.config", "put it into the environment, as KAFKA_USERNAME and KAFKA_PASSWORD")
    for name in [name for name in settings if name.startswith(f"{prefix}.ssl.")]:
        settings.drop(name)
        settings.note(name, "not converted: give PEM files, see `security`")
    return {"security": security}


# --- sink ------------------------------------------------------------------------------------------------------------


def _sink(settings: ForeignSettings) -> dict[str, Any]:
    if (cloud := settings.take("cloud.service", "S3")) != "S3":
        settings.note("cloud.service", f"must be changed: {cloud} is not supported; write s3:// or a folder")
    bucket, path = settings.take("secor.s3.bucket"), settings.take("secor.s3.path", "")
    if bucket is None:
        settings.note("secor.s3.bucket", "must be changed: name the bucket")
    root = f"s3://{bucket or 'name-of-the-bucket'}/{path.strip('/')}".rstrip("/")
    settings.note("secor.s3.path", "while Secor runs, use another prefix: a root belongs to one sink alone")
    files: dict[str, Any] = {"root": root} | _s3(settings)
    # The default layout is that of Secor: topic, names of partitions, generation_partition_offset with 20 digits.
    return files | {"format": _format(settings)}


def _s3(settings: ForeignSettings) -> dict[str, Any]:
    s3 = settings.copy({"aws.region": "region", "aws.endpoint": "endpoint_url"})
    if "endpoint_url" in s3 and "://" not in s3["endpoint_url"]:
        s3["endpoint_url"] = f"https://{s3['endpoint_url']}"
    if settings.take("aws.client.pathstyleaccess") == "true":
        s3["path_style"] = True
    for name, setting, variable in (
        ("aws.access.key", "access_key_id", "AWS_ACCESS_KEY_ID"),
        ("aws.secret.key", "secret_access_key", "AWS_SECRET_ACCESS_KEY"),
        ("aws.session.token", "session_token", "AWS_SESSION_TOKEN"),
    ):
        if reference := settings.secret(name, variable):
            s3[setting] = reference
    return {"s3": s3} if s3 else {}


def _format(settings: ForeignSettings) -> Any:
    factory = settings.take("secor.file.reader.writer.factory", "SequenceFileReaderWriterFactory").rpartition(".")[2]
    if factory not in _FORMATS:
        settings.note("secor.file.reader.writer.factory", f"must be changed: there is no format like {factory!r}")
    ((name, options),) = _FORMATS.get(factory, {"raw": {}}).items()
    options = dict(options)
    if name in _COLUMNAR:
        settings.note("secor.file.reader.writer.factory", "name the columns of messages: `columns` of `parse`")
    delimiter = settings.take("secor.file.writer.Delimiter", "\n")
    if factory.startswith("Flexible") and delimiter != "\n":
        options["delimiter"] = delimiter
    options |= _compression(settings, name)
    return {name: options} if options else name


def _compression(settings: ForeignSettings, name: str) -> dict[str, Any]:
    written = settings.take("secor.compression.codec")
    if not written:
        return {}
    codec = _CODECS.get(written.rpartition(".")[2])
    possible = {"sequencefile": {"zlib", "gzip", "snappy", "lz4"}, "text": {"gzip", "snappy", "lz4", "zstd"}}
    if codec not in possible.get(name, {"snappy", "zstd"}):
        settings.note("secor.compression.codec", f"not converted: {name} does not support {written}")
        return {}
    return {"compression": "block", "codec": codec} if name == "sequencefile" else {"compression": codec}


# --- the rest --------------------------------------------------------------------------------------------------------


def _notes(settings: ForeignSettings) -> None:
    if delay := settings.whole("partitioner.finalizer.delay.seconds"):
        added = f"finalize: {{lateness: {format_duration(delay)}}}"
        settings.note("partitioner.finalizer.delay.seconds", f"for _SUCCESS and Hive add `{added}` to files")
    if settings.take("secor.messages.per.second"):
        settings.note("secor.messages.per.second", "not converted: a pipeline has no limit")
    transformer = settings.take("secor.message.transformer.class", "IdentityMessageTransformer")
    if not transformer.endswith("IdentityMessageTransformer"):
        settings.note("secor.message.transformer.class", "not converted: write it as a processor, such as `python`")
    if any(name.startswith(("statsd.", "tsdb.", "monitoring.")) for name in settings):
        settings.note("monitoring", "set `node.metrics_port`: metrics are served for Prometheus")
    settings.drop(*[name for name in settings if _WITHOUT_MEANING.fullmatch(name)])
    for name in list(settings):
        if settings.take(name) not in {"false", "-1", "0"}:
            settings.note(name, "not converted")
    settings.note("source_coordination", "leases are in memory, for a single node; choose a store for several")


def read_properties(path: Path, read: Callable[[str], str], note: Callable[[str, str], None]) -> dict[str, str]:
    """Return the properties of a file and of those that it includes; the including file takes precedence.

    `read` returns the text of a file or raises `UsageError`, which becomes a note if the file is included.
    """
    found: dict[str, str] = {}
    open_files, seen = [path], set[Path]()
    while open_files and len(seen) < _MOST_FILES:
        file = open_files.pop(0)
        if file in seen:
            continue
        seen.add(file)
        try:
            text = read(str(file))
        except UsageError:
            if file == path:
                raise
            if file.name != _CLASSES:
                note("include", f"{file.name} was not found beside the file; its properties are not converted")
            continue
        given = parse_properties(text)
        open_files += [file.parent / name.strip() for name in given.pop("include", "").split(",") if name.strip()]
        found = given | found
    return found


def parse_properties(text: str) -> dict[str, str]:
    """Return the properties of a text by name. Comments begin with # or !, a backslash continues a line."""
    found: dict[str, str] = {}
    lines = iter(text.splitlines())
    for first in lines:
        line = first.lstrip()
        if not line or line[0] in "#!":
            continue
        while re.search(r"(?<!\\)(\\\\)*\\$", line):
            line = line[:-1] + next(lines, "").lstrip()
        if entry := _ENTRY.fullmatch(line):
            found[_unescaped(entry[1])] = _unescaped(entry[2].strip())
    return found


def _unescaped(text: str) -> str:
    text = re.sub(r"\\u([0-9a-fA-F]{4})", lambda found: chr(int(found[1], 16)), text)
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), text)
