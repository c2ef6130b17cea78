"""Sinks of Data Prepper in the words of holdfast."""

from __future__ import annotations

import posixpath
import re
from typing import Any

from holdfast.convert.converted_file import ForeignSettings
from holdfast.convert.data_prepper_processors import column, with_fields

_SAME = ("username", "action", "pipeline", "routing", "document_id")
# Letters of Java's patterns of dates, longest first.
_DATES = {"yyyy": "%Y", "uuuu": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}
_FORMATS = {"ndjson": "jsonl", "json": "jsonl", "parquet": "parquet", "avro": "avro"}


def sink(entry: ForeignSettings) -> dict[str, Any] | None:
    """Return a sink of holdfast; None, and a note, if there is no equivalent."""
    name = next(iter(entry), "")
    settings = entry.group(name)
    convert = {"opensearch": _opensearch, "s3": _s3, "file": _file, "stdout": _file}.get(name)
    if convert is None:
        settings.made.note(settings.path, f"not converted: there is no sink like {name!r}")
        return None
    routes = settings.take("routes")
    converted = convert(settings)
    settings.rest()
    return converted | ({"routes": routes} if routes else {})


def aws_settings(aws: ForeignSettings) -> dict[str, Any]:
    """Return region and role of a client of AWS; the rest gets a note."""
    found = aws.copy({name: name for name in ("region", "sts_role_arn", "sts_external_id")})
    aws.rest("not converted: give the node a role, or a profile")
    return found


def _opensearch(settings: ForeignSettings) -> dict[str, Any]:
    settings.drop("index_type", "flush_timeout", "distribution_version", "disable_authentication", "max_retries")
    index = settings.take("index")
    if index is None:
        settings.note("index", "must be changed: name the index")
    search: dict[str, Any] = {"hosts": settings.texts("hosts") or ["https://localhost:9200"]}
    search["index"] = _index(str(index or "name-of-the-index"))
    if password := settings.secret("password", "OPENSEARCH_PASSWORD"):
        search["password"] = password
    same = settings.copy({name: name for name in _SAME})
    search |= {name: with_fields(str(value)) for name, value in same.items()}
    for field, setting in (("document_id_field", "document_id"), ("routing_field", "routing")):
        if name := settings.take(field):
            search[setting] = f"{{{column(name)}}}"
    search |= _connection(settings)
    search |= _bulk(settings)
    shards = settings.copy({"number_of_shards": "number_of_shards", "number_of_replicas": "number_of_replicas"})
    if shards:
        search["settings"] = shards
    if letters := _letters(settings):
        search["dead_letters"] = letters
    return {"opensearch": search}


def _connection(settings: ForeignSettings) -> dict[str, Any]:
    tls: dict[str, Any] = settings.copy({"cert": "ca_file"})
    if settings.take("insecure"):
        tls["verify"] = False
    aws = settings.group("aws")
    service = {"service": "aoss"} if aws.take("serverless") else {}
    reach = {"region": settings.take("aws_region")} | aws_settings(aws)
    settings.drop("aws_sigv4")
    signed = {"aws": reach | service} if reach["region"] else {}
    return ({"tls": tls} if tls else {}) | signed


def _bulk(settings: ForeignSettings) -> dict[str, Any]:
    bulk: dict[str, Any] = {}
    if mebibytes := settings.take("bulk_size"):
        bulk["max_bulk_bytes"] = f"{mebibytes}MiB"
    if milliseconds := settings.take("socket_timeout"):
        bulk["request_timeout"] = f"{milliseconds}ms"
    if settings.take("enable_request_compression"):
        bulk["gzip"] = True
    return bulk


def _letters(settings: ForeignSettings) -> dict[str, Any]:
    if path := settings.take("dlq_file"):
        return {"file": posixpath.dirname(str(path)) or "./dead-letters"}
    s3 = settings.group("dlq").group("s3")
    bucket = s3.take("bucket")
    if bucket is None:
        return {}
    root = f"s3://{bucket}/{_constant(s3, 'key_path_prefix') or 'dead-letters'}".rstrip("/")
    reach = aws_settings(s3)
    return {"file": root} | ({"s3": reach} if reach else {})


def _s3(settings: ForeignSettings) -> dict[str, Any]:
    settings.drop("buffer_type", "max_retries")
    keys = settings.group("object_key")
    root = f"s3://{settings.take('bucket', 'name-of-the-bucket')}/{_constant(keys, 'path_prefix')}".rstrip("/")
    keys.rest("not converted: see `layout`")
    codec = next(iter(settings.group("codec")), "ndjson")
    files: dict[str, Any] = {"root": root, "format": _FORMATS.get(codec, "jsonl")}
    if codec not in _FORMATS:
        settings.note("codec", f"must be changed: there is no format like {codec!r}")
    compression = settings.take("compression", "none")
    if compression != "none":
        files["format"] = {files["format"]: {"compression": compression}}
    if reach := aws_settings(settings.group("aws")):
        files["s3"] = reach
    settings.group("threshold").rest("not converted: files are as large as batches, see `batch`")
    return {"files": files}


def _constant(settings: ForeignSettings, name: str) -> str:
    """Return the part of a path that is the same for all records."""
    path = str(settings.take(name, ""))
    constant = re.split(r"\$\$?\{|%\{", path)[0]
    if constant != path:
        settings.note(name, f"not converted: {path!r} depends on records; see the processor `parse`")
    return constant.strip("/")


def _file(settings: ForeignSettings) -> dict[str, Any]:
    root = posixpath.dirname(str(settings.take("path", ""))) or f"./output/{settings.path.partition('.')[0]}"
    settings.made.note(settings.path, f"files are below the folder {root}")
    return {"files": {"root": root, "format": "jsonl"}}


def _index(index: str) -> str:
    """Return the name of an index with `%{yyyy.MM.dd}` and `${/field}` as a template of holdfast."""
    dated = re.split(r"%\{([^}]+)\}", index)
    parts = [_dated(part) if number % 2 else with_fields(part) for number, part in enumerate(dated)]
    return "".join(parts)


def _dated(pattern: str) -> str:
    for letters, directive in _DATES.items():
        pattern = pattern.replace(letters, directive)
    return f"{{@timestamp:{pattern}}}"
