"""The IAM policies of `deploy/iam` allow the calls that the code makes, and no others."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import boto3
import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "holdfast"
S3_ACTIONS = {
    "HeadObject": "GetObject",
    "ListObjectsV2": "ListBucket",
    "ListParts": "ListMultipartUploadParts",
    "DeleteObjects": "DeleteObject",
    "CopyObject": "PutObject",
    "CreateMultipartUpload": "PutObject",
    "UploadPart": "PutObject",
    "CompleteMultipartUpload": "PutObject",
}
"""Operations whose permission has another name."""


@lru_cache
def operations(service: str) -> dict[str, str]:
    """The operations of a service by the names of boto3's methods."""
    client = cast("Any", boto3).client(
        service, region_name="eu-west-1", aws_access_key_id="a", aws_secret_access_key="b"
    )
    return dict(client.meta.method_to_api_mapping)


def words(path: str) -> Iterator[str]:
    """Everything in the code of a package or module that may name a method of a client."""
    found = SOURCES / path
    for file in [found] if found.is_file() else sorted(found.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                yield node.func.attr


def called(service: str, *paths: str) -> set[str]:
    names = operations(service)
    made = {names[word] for path in paths for word in words(path) if word in names}
    return {f"{service}:{S3_ACTIONS.get(name, name) if service == 's3' else name}" for name in made}


def allowed(*policies: str) -> set[str]:
    found = set()
    for policy in policies:
        for statement in json.loads((ROOT / "deploy" / "iam" / f"{policy}.json").read_text())["Statement"]:
            assert statement["Effect"] == "Allow"
            assert all("*" not in action for action in statement["Action"])
            found |= {statement["Action"]} if isinstance(statement["Action"], str) else set(statement["Action"])
    return found


@pytest.mark.parametrize(
    ("service", "paths", "policies"),
    [
        ("s3", ("s3", "buckets", "sources/objects", "audit/roots.py"), ("s3-sink", "s3-source")),
        ("dynamodb", ("stores/dynamodb",), ("dynamodb",)),
        ("kinesis", ("sources/kinesis",), ("kinesis",)),
    ],
)
def test_a_policy_allows_what_is_called(service: str, paths: tuple[str, ...], policies: tuple[str, ...]) -> None:
    assert allowed(*policies) == called(service, *paths)


def test_a_sink_may_delete_staged_data_only() -> None:
    statements = json.loads((ROOT / "deploy" / "iam" / "s3-sink.json").read_text())["Statement"]
    (deleting,) = [one for one in statements if "s3:DeleteObject" in one["Action"]]
    assert deleting["Resource"].endswith("/_holdfast/staging/*")


def test_the_docs_show_the_same_policy_of_a_sink() -> None:
    page = (ROOT / "docs" / "how-to" / "store-files-in-s3.md").read_text()
    shown = json.loads(page.partition("```json\n")[2].partition("```")[0])["Statement"]
    actions = {
        action for one in shown for action in ([one["Action"]] if isinstance(one["Action"], str) else one["Action"])
    }
    assert actions == allowed("s3-sink") - {"s3:PutObjectTagging"}
