"""Packaging: what a wheel brings, and that a missing client is named with the extra that brings it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import tomllib
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
DEVELOPMENT = {"dev", "bench", "all"}

CLIENTS = ("confluent_kafka", "boto3", "botocore", "opensearchpy", "psycopg", "pymysql")
BUILD = """
import json, sys
for client in {clients}:
    sys.modules[client] = None
from holdfast.assemble import build_pipeline
from holdfast.errors import HoldfastError
from holdfast.configured_store import load_settings, open_store
from holdfast.registry import Registry
said = []
for file in sys.argv[1:]:
    try:
        settings = load_settings(file)
        open_store(settings)
        build_pipeline(settings.pipelines["p"], Registry.installed())
        said.append("")
    except HoldfastError as error:
        said.append(str(error))
print(json.dumps(said))
"""
FOLDER = "objects: {folder: /nowhere/in, codec: newline, scan: once}"
BUCKET = "objects: {buckets: [{bucket: abc}], codec: newline, scan: once}"
KAFKA = 'kafka: {bootstrap_servers: "localhost:1", topics: [a]}'
FILES = "files: {root: /nowhere/out, format: jsonl}"
ON_S3 = "files: {root: s3://bucket/out, format: jsonl}"
TOPIC = 'kafka: {bootstrap_servers: "localhost:1", topic: b, root: /nowhere/marks}'
INDEX = 'opensearch: {hosts: ["http://h:9200"], index: i}'
FUNCTION = 'function: {handler: "hello:handler", on_error: {after_retries: stop}}'
SQL = "{host: h, database: d, user: u, password: '${file:/etc/hostname}'}"
CASES = [
    ("kafka", "in_memory:", KAFKA, FILES),
    ("kafka", "in_memory:", FOLDER, TOPIC),
    ("s3", "in_memory:", FOLDER, ON_S3),
    ("s3", "in_memory:", BUCKET, FILES),
    ("s3", "object: {root: s3://bucket/leases}", FOLDER, FILES),
    ("kinesis", "in_memory:", "kinesis: {stream: s, region: eu-west-1}", FUNCTION),
    ("dynamodb", "dynamodb: {region: eu-west-1, table_name: leases}", FOLDER, FILES),
    ("opensearch", "in_memory:", FOLDER, INDEX),
    ("postgresql", f"postgresql: {SQL}", FOLDER, FILES),
    ("mysql", f"mysql: {SQL}", FOLDER, FILES),
]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What is said of each case in one process that has no client at all."""
    folder = tmp_path_factory.mktemp("extras")
    files = [folder / f"{number}.yaml" for number in range(len(CASES))]
    for file, (_, store, source, sink) in zip(files, CASES, strict=True):
        file.write_text(
            f"source_coordination:\n  store:\n    {store}\n"
            f"pipelines:\n  p:\n    source:\n      {source}\n    sinks:\n      - {sink}\n"
        )
    words = [sys.executable, "-c", BUILD.format(clients=CLIENTS), *map(str, files)]
    found: list[str] = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    return found


@pytest.mark.parametrize("number", range(len(CASES)), ids=[" ".join(case[:2]) for case in CASES])
def test_a_missing_client_is_named_with_the_extra(said: list[str], number: int) -> None:
    extra = CASES[number][0]
    assert f"pip install 'holdfast[{extra}]'" in said[number]
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


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with wheel and sdist."""
    folder = tmp_path_factory.mktemp("built")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", folder], cwd=ROOT, check=True, capture_output=True
    )
    return folder


def test_the_wheel_has_readme_licence_commands_and_every_file_of_the_package(built: Path) -> None:
    with ZipFile(next(built.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
        (info,) = {name.partition("/")[0] for name in names if ".dist-info/" in name}
        metadata = message_from_bytes(wheel.read(f"{info}/METADATA"))
        commands = wheel.read(f"{info}/entry_points.txt").decode()
    assert metadata["Description-Content-Type"] == "text/markdown"
    text = metadata.get_payload(decode=True)
    assert isinstance(text, bytes)
    assert text.decode().strip() == (ROOT / "README.md").read_text().strip()
    assert set(metadata.get_all("Provides-Extra", [])) == set(EXTRAS)
    assert f"{info}/licenses/LICENSE" in names
    assert "holdfast = holdfast.cli:main" in commands
    listed = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert {name.removeprefix("src/") for name in listed.splitlines()} <= names


def test_the_sdist_has_what_the_readme_needs(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    page = (ROOT / "README.md").read_text()
    assert {"Makefile", "requirements.lock", "pyproject.toml", "scripts/fetch_jars.sh"} <= names
    linked = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page) + re.findall(r'srcset="([^"]+)"|src="([^"]+)"', page)
    paths = {path for found in linked for path in ([found] if isinstance(found, str) else found) if path}
    assert len(paths) > 20
    assert paths <= names
