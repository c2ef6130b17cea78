"""Data Prepper's pipelines.yaml, or the leases of its data-prepper-config.yaml, as a file of holdfast."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from holdfast.convert.converted_file import ConvertedFile, ForeignSettings
from holdfast.convert.data_prepper_processors import condition, processor
from holdfast.convert.data_prepper_sinks import aws_settings, sink
from holdfast.errors import UsageError

_CODECS = {
    "newline": "newline",
    "ndjson": "jsonl",
    "event_json": "jsonl",
    "json": "json",
    "csv": "csv",
    "parquet": "parquet",
    "avro": "avro",
}
_NEED_SCHEMA = {"csv", "parquet", "avro"}
_TIMES = {"start_time": "start_time", "end_time": "end_time", "range": "range"}
_LINE = {"rename_keys": {"entries": [{"from_key": "value", "to_key": "message"}]}}
_MESSAGE = {"sql": {"select": ["CAST(value AS STRING) AS message"]}}
_SCRAM = {"scram-sha-256": "SCRAM-SHA-256", "scram-sha-512": "SCRAM-SHA-512", "plaintext": "PLAIN", "plain": "PLAIN"}


def convert_data_prepper(text: str, file_name: str) -> str:
    """Return a file of holdfast for pipelines or source_coordination. Raises `UsageError` if the text has neither."""
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{file_name} is not YAML: {error}") from None
    made = ConvertedFile(file_name)
    top = ForeignSettings(made, "", document)
    top.drop("version")
    pipelines = document if isinstance(document, Mapping) else {}
    named = [name for name, given in pipelines.items() if isinstance(given, Mapping) and "source" in given]
    coordination = top.take("source_coordination")
    made.coordination = coordination if isinstance(coordination, dict) else {}
    if not named and not made.coordination:
        raise UsageError(f"{file_name} has no pipelines of Data Prepper: a name with `source` and `sink` below it")
    if not named:
        made.note("pipelines", "not in this file: convert the file of the pipelines, too, and put them below this key")
    if not made.coordination:
        made.note("source_coordination", "leases are in memory, for a single node; choose a store for several")
    for name in named:
        top.drop(name)
        _pipeline(made, str(name), pipelines[name])
    top.rest()
    if named and not made.pipelines:
        raise UsageError(f"no pipeline of {file_name} can be converted: {'; '.join(made.notes)}")
    return made.text()


def _pipeline(made: ConvertedFile, name: str, given: Mapping[str, Any]) -> None:
    settings = ForeignSettings(made, name, given)
    settings.drop("delay", "buffer")
    if settings.take("workers") is not None:
        settings.note("workers", "not needed: Spark's tasks do the work, see `spark.master`")
    plugin, source = _only(settings, "source")
    convert = {"s3": _objects, "kafka": _kafka}.get(plugin)
    if convert is None:
        settings.note("source", f"the pipeline is not converted: there is no source like {plugin!r}")
        return
    converted, first = convert(source)
    source.rest()
    pipeline: dict[str, Any] = {"source": converted}
    processors = [*first, *_processors(settings)]
    if processors:
        pipeline["processors"] = processors
    if routes := _routes(settings):
        pipeline["routes"] = routes
    sinks = [sink(entry) for entry in settings.groups("sink")]
    settings.rest()
    pipeline["sinks"] = [converted for converted in sinks if converted]
    if not pipeline["sinks"]:
        settings.note("sink", "the pipeline is not converted: none of its sinks can be")
        return
    made.pipelines[re.sub(r"[^A-Za-z0-9_-]", "-", name)[:64]] = pipeline


def _processors(settings: ForeignSettings) -> list[dict[str, Any]]:
    found = [processor(name, entry.group(name)) for entry in settings.groups("processor") for name in list(entry)]
    return [converted for converted in found if converted]


def _routes(settings: ForeignSettings) -> dict[str, str]:
    groups = [*settings.groups("route"), *settings.groups("routes")]
    return {name: condition(group, name, group.take(name)) for group in groups for name in list(group)}


# --- sources ---------------------------------------------------------------------------------------------------------


def _objects(source: ForeignSettings) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    source.drop("acknowledgments", "workers", "records_to_accumulate", "buffer_timeout")
    scan = source.group("scan")
    buckets = [_bucket(entry.group("bucket")) for entry in scan.groups("buckets")]
    objects: dict[str, Any] = {"buckets": buckets}
    if not buckets:
        source.note("notification_type", "must be changed: objects are listed here, name the buckets")
        objects = {"buckets": [{"bucket": "name-of-the-bucket"}], "scan": "follow"}
        source.drop("notification_type", "notification_source", "sqs")
    objects |= _codec(source)
    compression = source.take("compression")
    if compression is not None:
        objects["compression"] = "auto" if compression == "automatic" else compression
    objects |= scan.copy(_TIMES)
    if schedule := scan.group("scheduling").copy({"interval": "interval", "count": "count"}):
        objects["scan"] = {"interval": "1h"} | schedule
    if reach := aws_settings(source.group("aws")):
        objects["s3"] = reach
    objects |= source.copy({"delete_s3_objects_on_read": "delete_s3_objects_on_read"})
    depth = scan.group("folder_partitions")
    if objects.get("delete_s3_objects_on_read") and (folders := depth.take("depth")):
        objects |= {"partition_by": "prefix", "prefix_depth": folders}
    depth.rest()
    scan.rest()
    return {"objects": objects}, [_LINE] if objects["codec"] == "newline" else []


def _bucket(given: ForeignSettings) -> dict[str, Any]:
    keys = given.group("filter")
    names = {"include_prefix": "include_prefix", "exclude_suffix": "exclude_suffix"}
    bucket = {"bucket": given.take("name", "name-of-the-bucket")} | keys.copy(names) | given.copy(_TIMES)
    keys.rest()
    given.rest()
    return bucket


def _codec(source: ForeignSettings) -> dict[str, Any]:
    name, settings = _only(source, "codec")
    codec = _CODECS.get(name)
    if codec is None:
        source.note("codec", f"must be changed: there is no codec like {name!r}")
        codec = "newline"
    header = settings.texts("header")
    settings.drop("detect_header")
    settings.rest()
    if codec in {"jsonl", "json"}:
        source.note("codec", "with processors, name the columns: `schema: id BIGINT, note STRING`")
    if codec not in _NEED_SCHEMA:
        return {"codec": codec}
    if not header:
        source.note("codec", f"must be changed: {codec} needs the columns, `schema: id BIGINT, note STRING`")
    return {"codec": codec, "schema": ", ".join(f"`{name}` STRING" for name in header or ["name"])}


def _kafka(source: ForeignSettings) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    source.drop("acknowledgments")
    topics = source.groups("topics")
    kafka: dict[str, Any] = {
        "bootstrap_servers": ",".join(source.texts("bootstrap_servers")),
        "topics": [topic.take("name") for topic in topics],
    }
    groups = {topic.take("group_id") for topic in topics} - {None}
    if groups:
        names = ", ".join(sorted(map(str, groups)))
        source.note("topics", f"to begin where {names} stopped, write `start: group` and `start_group`")
    formats = {topic.take("serde_format", "plaintext") for topic in topics}
    if formats != {"plaintext"}:
        source.note("topics", "with processors, make columns of JSON first: `parse_json` with a schema")
    for topic in topics:
        topic.rest("not converted; see `source.kafka` and `upload`")
    if security := _security(source):
        kafka["security"] = security
    return {"kafka": kafka}, [_MESSAGE] if formats == {"plaintext"} else []


def _security(source: ForeignSettings) -> dict[str, Any]:
    encrypted = source.group("encryption").take("type", "none") == "ssl"
    sasl = source.group("authentication").group("sasl")
    mechanism = next((name for name in _SCRAM if sasl.take(name)), None)
    sasl.rest()
    if mechanism is None:
        return {"protocol": "SSL"} if encrypted else {}
    source.note("authentication", "put user and password into the environment, as KAFKA_USERNAME and KAFKA_PASSWORD")
    return {
        "protocol": "SASL_SSL" if encrypted else "SASL_PLAINTEXT",
        "sasl_mechanism": _SCRAM[mechanism],
        "username": "${env:KAFKA_USERNAME}",
        "password": "${env:KAFKA_PASSWORD}",
    }


def _only(settings: ForeignSettings, key: str) -> tuple[str, ForeignSettings]:
    given = settings.group(key)
    name = next(iter(given), "")
    return name, given.group(name)
