"""Packaging: what a wheel brings, and that a missing client is named with the extra that brings it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
DEVELOPMENT = {"dev", "bench", "all"}

BUILD = """
import sys
for client in {clients}:
    sys.modules[client] = None
from pathlib import Path
from holdfast.errors import HoldfastError
from holdfast.open_store import load_settings, open_store
from holdfast.registry import Registry
try:
    settings = load_settings(Path(sys.argv[1]))
    from holdfast.assemble import build_pipeline
    for pipeline in settings.pipelines.values():
        build_pipeline(pipeline, Registry.installed())
    open_store(settings)
except HoldfastError as error:
    print(error)
"""
KAFKA = 'kafka: {bootstrap_servers: "localhost:1", topics: [a]}'
FILES = "files: {root: /tmp/out, format: jsonl}"
ON_S3 = "files: {root: s3://bucket/out, format: jsonl}"
FUNCTION = 'function: {handler: "hello:handler", on_error: {after_retries: stop}}'
FOLDER = "objects: {folder: /tmp, codec: newline, scan: once}"
BUCKET = "objects: {buckets: [{bucket: abc}], codec: newline, scan: once}"
TOPIC = 'kafka: {bootstrap_servers: "localhost:1", topic: b, root: /tmp/marks}'
SQL = "host: h, database: d, user: u, password: '${file:/etc/hostname}'"


@pytest.mark.parametrize(
    ("clients", "extra", "store", "source", "sink"),
    [
        (["confluent_kafka"], "kafka", "in_memory:", KAFKA, FILES),
        (["confluent_kafka"], "kafka", "in_memory:", FOLDER, TOPIC),
        (["boto3", "botocore"], "s3", "in_memory:", KAFKA, ON_S3),
        (["boto3", "botocore"], "s3", "in_memory:", BUCKET, FILES),
        (["boto3", "botocore"], "s3", "object: {root: s3://bucket/leases}", KAFKA, FILES),
        (["boto3", "botocore"], "kinesis", "in_memory:", "kinesis: {stream: s, region: eu-west-1}", FUNCTION),
        (["boto3", "botocore"], "dynamodb", "dynamodb: {region: eu-west-1, table_name: t}", KAFKA, FILES),
        (["opensearchpy"], "opensearch", "in_memory:", KAFKA, 'opensearch: {hosts: ["http://h:9200"], index: i}'),
        (["psycopg"], "postgresql", f"postgresql: {{{SQL}}}", KAFKA, FILES),
        (["pymysql"], "mysql", f"mysql: {{{SQL}}}", KAFKA, FILES),
    ],
)  # fmt: skip
def test_a_missing_client_is_named_with_the_extra(
    tmp_path: Path, clients: list[str], extra: str, store: str, source: str, sink: str
) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        f"source_coordination:\n  store:\n    {store}\n"
        f"pipelines:\n  p:\n    source:\n      {source}\n    sinks:\n      - {sink}\n"
    )
    words = [sys.executable, "-c", BUILD.format(clients=clients), str(file)]
    said = subprocess.run(words, check=False, capture_output=True, text=True)
    assert f"pip install 'holdfast[{extra}]'" in said.stdout, said.stdout + said.stderr
    assert extra in EXTRAS


def test_the_extra_all_has_what_every_other_extra_has() -> None:
    every = {requirement for name, brought in EXTRAS.items() if name not in DEVELOPMENT for requirement in brought}
    assert set(EXTRAS["all"]) == every


def test_the_classifiers_name_the_python_of_the_tests_only() -> None:
    versions = [re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", name) for name in PROJECT["classifiers"]]
    assert [found.group(1) for found in versions if found] == ["3.11"]
    assert PROJECT["readme"] == "README.md"


def test_the_readme_and_the_docs_name_only_extras_that_exist() -> None:
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        named = {
            extra
            for brackets in re.findall(r"holdfast\[([a-z0-9,]+)\]", page.read_text())
            for extra in brackets.split(",")
        }
        assert named <= set(EXTRAS), page
