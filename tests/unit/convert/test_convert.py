"""Files of Data Prepper and Secor become files of holdfast that are valid, with notes about the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from holdfast.cli.root import app
from holdfast.config import check
from holdfast.convert.converted_file import ConvertedFile, ForeignSettings
from holdfast.convert.data_prepper_processors import condition
from holdfast.convert.secor import parse_properties
from holdfast.registry import Registry

HERE = Path(__file__).parent


def convert(kind: str, file: Path) -> Result:
    return CliRunner().invoke(app, ["convert", kind, str(file)])


def converted(kind: str, text: str, folder: Path) -> tuple[dict[str, Any], str]:
    """The settings of the new file, which is valid, and its comments."""
    original, new = folder / "original", folder / "holdfast.yaml"
    original.write_text(text)
    done = convert(kind, original)
    assert done.exit_code == 0, done.output
    new.write_text(done.stdout)
    check(new, Registry.installed(), {})
    return yaml.safe_load(done.stdout), "".join(line for line in done.stdout.splitlines(True) if line.startswith("#"))


@pytest.mark.parametrize(
    ("kind", "original", "expected"),
    [("data-prepper", "logs.data-prepper.yaml", "logs.yaml"), ("secor", "clicks.properties", "clicks.yaml")],
)
def test_a_file_with_everything_becomes_a_valid_file(kind: str, original: str, expected: str) -> None:
    done = convert(kind, HERE / "originals" / original)
    assert done.exit_code == 0, done.output
    assert done.stdout == (HERE / "expected" / expected).read_text()
    settings = check(HERE / "expected" / expected, Registry.installed(), {})
    assert settings is None or settings.pipelines
    # Secrets of the original are never copied.
    assert "hunter" not in done.stdout


# --- Data Prepper ----------------------------------------------------------------------------------------------------

PIPELINE = """\
logs:
  source: {s3: {codec: {CODEC}, scan: {buckets: [{bucket: {name: landing}}]}}}
  sink: [{s3: {bucket: lake}}]
"""


@pytest.mark.parametrize("codec", ["newline:", "ndjson:", "json:", "csv: {header: [a, b]}", "csv:", "parquet:", "ion:"])
def test_each_codec_gives_a_valid_file(codec: str, tmp_path: Path) -> None:
    settings, notes = converted("data-prepper", PIPELINE.replace("CODEC", codec), tmp_path)
    objects = settings["pipelines"]["logs"]["source"]["objects"]
    if codec.startswith("csv: "):
        assert objects["schema"] == "`a` STRING, `b` STRING"
    assert ("must be changed" in notes) == (codec in {"csv:", "parquet:", "ion:"})


def test_the_leases_of_the_servers_file_become_a_file_of_their_own(tmp_path: Path) -> None:
    text = """\
        ssl: false
        source_coordination:
          partition_prefix: cluster
          store: {dynamodb: {table_name: Leases, region: us-east-1, ttl: P3D}}
    """
    settings, notes = converted("data-prepper", text, tmp_path)
    assert settings["source_coordination"]["store"]["dynamodb"]["table_name"] == "Leases"
    assert not settings["pipelines"]
    assert "pipelines: not in this file" in notes
    assert "ssl: not converted" in notes


def test_roles_are_assumed_as_before(tmp_path: Path) -> None:
    role = "arn:aws:iam::123456789012:role/reader"
    aws = f"aws: {{region: eu-west-1, sts_role_arn: '{role}', sts_external_id: outside}}"
    text = f"""\
        logs:
          source: {{s3: {{codec: {{newline: }}, scan: {{buckets: [{{bucket: {{name: landing}}}}]}}, {aws}}}}}
          sink:
            - s3: {{bucket: lake, {aws}}}
            - opensearch:
                {{hosts: https://search, index: logs, dlq: {{s3: {{bucket: dlq, sts_role_arn: '{role}'}}}}, {aws}}}
    """
    settings, notes = converted("data-prepper", text, tmp_path)
    pipeline, whole = (
        settings["pipelines"]["logs"],
        {"region": "eu-west-1", "sts_role_arn": role, "sts_external_id": "outside"},
    )
    assert pipeline["source"]["objects"]["s3"] == pipeline["sinks"][0]["files"]["s3"] == whole
    assert pipeline["sinks"][1]["opensearch"]["aws"] == whole
    assert pipeline["sinks"][1]["opensearch"]["dead_letters"]["s3"] == {"sts_role_arn": role}
    assert "sts" not in notes


def test_notifications_become_a_scan_whose_buckets_must_be_named(tmp_path: Path) -> None:
    text = """\
        logs:
          source: {s3: {notification_type: sqs, sqs: {queue_url: q}, codec: {newline: }, acknowledgments: true}}
          sink: [{opensearch: {hosts: https://search:9200, index: logs, document_id: "${/id}-${/day}"}}]
    """
    settings, notes = converted("data-prepper", text, tmp_path)
    assert settings["pipelines"]["logs"]["source"]["objects"]["scan"] == "follow"
    assert settings["pipelines"]["logs"]["sinks"][0]["opensearch"]["document_id"] == "{id}-{day}"
    assert "must be changed: objects are listed here, name the buckets" in notes


@pytest.mark.parametrize(
    ("written", "sql"),
    [
        ('/status == 404 and /path =~ "^/api"', "status == 404 and path rlike '^/api'"),
        ("not (/user/id in {1, 2})", "not (user.id in (1, 2))"),
        ('/a == null or /b-c != "it\'s"', "a IS NULL or `b-c` != 'it\\'s'"),
        ('length(/message) > 5 or /a == "x"', "false"),
    ],
)
def test_conditions_become_sql_or_never_hold(written: str, sql: str) -> None:
    made = ConvertedFile("p.yaml")
    assert condition(ForeignSettings(made, "p", {}), "when", written) == sql
    assert bool(made.notes) == (sql == "false")


@pytest.mark.parametrize(
    "text",
    ["", "- a", "a: b", "a: [", "logs: {source: {http: }, sink: [{stdout: }]}", "logs: {source: s3, sink: x}"],
)
def test_what_is_not_a_file_of_data_prepper_is_refused_without_a_traceback(text: str, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(text)
    done = convert("data-prepper", tmp_path / "p.yaml")
    assert done.exit_code == 2
    assert "p.yaml" in done.output


@pytest.mark.parametrize("odd", ["1", "text", "[1, {a: b}]", "{a: {b: c}}", "null", "true"])
@pytest.mark.parametrize("where", ["source", "scan", "codec", "processor", "grok", "match", "entries", "route", "sink"])
def test_odd_values_never_end_in_a_traceback(odd: str, where: str, tmp_path: Path) -> None:
    text = (
        "logs: {source: {s3: {codec: {newline: }, scan: {buckets: [{bucket: {name: b}}]}}}, "
        "processor: [{grok: {match: {message: [a]}}}, {rename_keys: {entries: []}}, {date: {match: []}}], "
        "route: [], sink: [{stdout: }]}"
    )
    document = yaml.safe_load(text)
    _put(document, where, yaml.safe_load(odd))
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(document))
    done = convert("data-prepper", tmp_path / "p.yaml")
    assert done.exit_code in {0, 2}, done.output


def _put(value: Any, key: str, odd: Any) -> None:
    if isinstance(value, dict):
        for name in value:
            if name == key:
                value[name] = odd
            else:
                _put(value[name], key, odd)
    for entry in value if isinstance(value, list) else ():
        _put(entry, key, odd)


# --- Secor -----------------------------------------------------------------------------------------------------------

PARSERS = {
    "OffsetMessageParser": {"offsets": {"every": 10_000_000}},
    "JsonMessageParser": {"time": {"json": {"field": ["timestamp"], "unit": "millis"}}},
    "Iso8601MessageParser": {"time": {"json": {"field": ["timestamp"], "unit": "iso8601"}}},
    "ThriftMessageParser": {"time": {"thrift": {"field": [1], "protocol": "binary", "unit": "millis"}}},
    "SplitByFieldMessageParser": {"order": ["type", "time"]},
    "RegexMessageParser": {"granularity": "day"},
    "ProtobufMessageParser": {"granularity": "day"},
    "AvroMessageParser": {"granularity": "day"},
    "DailyOffsetMessageParser": {"offsets": {"every": 10_000_000}, "granularity": "day"},
    "com.example.OwnParser": {"time": "kafka"},
}


@pytest.mark.parametrize("parser", PARSERS)
def test_each_parser_of_secor_gives_a_valid_file(parser: str, tmp_path: Path) -> None:
    text = f"secor.kafka.group=backup\nsecor.s3.bucket=lake\nsecor.message.parser.class={parser}\n"
    settings, notes = converted("secor", text, tmp_path)
    (step,) = settings["pipelines"]["backup"]["processors"]
    assert step["parse"] | PARSERS[parser] == step["parse"]
    assert ("OwnParser has no counterpart" in notes) == (parser == "com.example.OwnParser")


FORMATS = {
    "SequenceFileReaderWriterFactory": {"sequencefile": {"compression": "block", "codec": "gzip"}},
    "MessagePackSequenceFileReaderWriterFactory": {
        "sequencefile": {"key": "messagepack", "compression": "block", "codec": "gzip"}
    },
    "DelimitedTextFileReaderWriterFactory": {"text": {"compression": "gzip"}},
    "FlexibleDelimitedFileReaderWriterFactory": {"text": {"delimiter": "|", "compression": "gzip"}},
    "JsonORCFileReaderWriterFactory": "orc",
    "AvroParquetFileReaderWriterFactory": "parquet",
    "OwnFactory": "raw",
}


@pytest.mark.parametrize("factory", FORMATS)
def test_each_format_of_secor_gives_a_valid_file(factory: str, tmp_path: Path) -> None:
    text = (
        f"secor.s3.bucket=lake\nsecor.file.reader.writer.factory=com.pinterest.secor.io.impl.{factory}\n"
        "secor.compression.codec=org.apache.hadoop.io.compress.GzipCodec\nsecor.file.writer.Delimiter=|\n"
    )
    settings, _ = converted("secor", text, tmp_path)
    assert settings["pipelines"]["secor"]["sinks"][0]["files"]["format"] == FORMATS[factory]


def test_other_names_of_times_become_a_template(tmp_path: Path) -> None:
    text = (
        "secor.s3.bucket=lake\nsecor.message.parser.class=JsonMessageParser\npartitioner.granularity.minute=true\n"
        "partitioner.granularity.date.prefix=day=\npartitioner.granularity.date.format=yyyyMMdd\nsecor.generation=two\n"
    )
    settings, notes = converted("secor", text, tmp_path)
    assert settings["pipelines"]["secor"]["processors"][0]["parse"]["template"] == "day=%Y%m%d/hr=%H/min=%M"
    assert "secor.generation: not converted: 'two' is not a whole number" in notes


def test_properties_are_read_as_java_reads_them() -> None:
    text = "# no\n! no\na=1\nb : 2\nc 3\n d = x \\\n   y\ne\\=f=g\\tz\nh=\n\nu=\\u00e9"
    assert parse_properties(text) == {
        "a": "1",
        "b": "2",
        "c": "3",
        "d": "x y",
        "e=f": "g\tz",
        "h": "",
        "u": "é",
    }


def test_files_that_include_each_other_are_read_once(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("include=original\nsecor.s3.bucket=other\nkafka.seed.broker.host=broker\n")
    settings, _ = converted("secor", "include=b\nsecor.s3.bucket=lake\n", tmp_path)
    pipeline = settings["pipelines"]["secor"]
    assert pipeline["source"]["kafka"]["bootstrap_servers"] == "broker:9092"
    assert pipeline["sinks"][0]["files"]["root"] == "s3://lake"


def test_what_is_not_a_file_of_secor_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log4j.properties").write_text("log4j.rootLogger=INFO\n")
    done = convert("secor", tmp_path / "log4j.properties")
    assert (done.exit_code, "is not a file of Secor" in done.output) == (2, True)
    assert "cannot be read" in convert("secor", tmp_path / "missing").output
