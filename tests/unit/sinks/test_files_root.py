"""Where the sink `files` keeps its files: settings, and the bucket that they name."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from holdfast.buckets.local import LocalBucket
from holdfast.buckets.root import S3Options, bucket_of
from holdfast.buckets.s3 import S3Bucket
from holdfast.sinks.files import PLUGIN

KEYS = {"access_key_id": "AKIA", "secret_access_key": "hush"}


def test_a_path_is_a_folder_and_an_address_is_a_bucket(tmp_path: Path) -> None:
    config = PLUGIN.config(root=tmp_path)
    assert isinstance(bucket_of(config.root, config.s3), LocalBucket)
    config = PLUGIN.config(root="s3://lake/raw/")
    assert repr(bucket_of(config.root, config.s3)) == "S3Bucket(s3://lake/raw/)"


def test_what_the_settings_say_reaches_the_client() -> None:
    given: dict[str, Any] = {
        "endpoint_url": "http://127.0.0.1:9000",
        "region": "eu",
        "path_style": True,
        "session_token": "t",
        **KEYS,
    }
    bucket = bucket_of("s3://lake", S3Options(**given, staging="copy", part_size=16 << 20))
    assert isinstance(bucket, S3Bucket)
    access = bucket._access
    assert (access.bucket, access.endpoint_url, access.region, access.path_style) == ("lake", *list(given.values())[:3])
    identity = access.identity
    keys = (identity.access_key_id, identity.secret_access_key, identity.session_token)
    revealed = [secret.reveal() for secret in keys if secret]
    assert revealed == ["AKIA", "hush", "t"]
    assert (bucket._wanted, bucket._part_size) == ("copy", 16 << 20)


def test_secrets_are_shown_nowhere_and_still_reach_tasks() -> None:
    config = PLUGIN.config(root="s3://lake", s3=KEYS)
    bucket = bucket_of(config.root, config.s3)
    shown = f"{config!r} {config.model_dump()} {bucket!r} {bucket.__dict__}"
    assert "hush" not in shown
    assert "AKIA" not in shown
    reopened = pickle.loads(pickle.dumps(bucket))  # noqa: S301 - our own bytes
    assert reopened._access.identity.secret_access_key.reveal() == "hush"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"root": "s3://"}, "names no bucket"),
        ({"root": "gs://lake/x"}, "the scheme 'gs' is not supported"),
        ({"root": "s3://lake/../x"}, "prefix"),
        ({"root": ""}, "not a folder"),
        ({"root": "/data", "s3": {}}, "begins with s3://"),
        ({"root": "s3://lake", "s3": {"access_key_id": "a"}}, "must be given both"),
        ({"root": "s3://lake", "s3": {"session_token": "a"}}, "session_token needs"),
        ({"root": "s3://lake", "s3": {"endpoint_url": "ftp://host"}}, "not an endpoint"),
        ({"root": "s3://lake", "s3": {"endpoint_url": "http://user:hush@host"}}, "not an endpoint"),
        ({"root": "s3://lake", "s3": {"part_size": "1MB"}}, "greater than or equal"),
        ({"root": "s3://lake", "s3": {"staging": "hope"}}, "staging"),
    ],
)
def test_settings_that_cannot_be_are_told(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason) as caught:
        PLUGIN.config(**settings)
    assert "hush" not in str(caught.value)
