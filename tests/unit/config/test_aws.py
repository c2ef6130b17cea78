"""Every client of Amazon's services can take a profile and a role; what is sent to S3 is recorded, nothing is sent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders
from pydantic import ValidationError

from holdfast.buckets.root import S3Options, access_of
from holdfast.config.aws import AwsIdentity
from holdfast.config.secrets import Secret
from holdfast.errors import SinkUnavailable, SourceUnavailable, Unavailable
from holdfast.s3 import client as s3_client
from holdfast.s3.access import S3Access
from holdfast.s3.client import fetch_small
from holdfast.sinks.opensearch.access import Access, AwsAccess
from holdfast.sources.kinesis.client import KinesisClient, StreamAccess
from holdfast.stores.dynamodb import DynamodbConfig
from holdfast.stores.dynamodb.client import connect

ROLE = "arn:aws:iam::123456789012:role/archive"
ASSUMED = """<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>
<AccessKeyId>ASSUMED</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>TOKEN</SessionToken>
<Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"""


class Body:
    """The body of a response, as urllib3 gives it."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def stream(self, **_: Any) -> list[bytes]:
        return [self._content]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The requests that botocore would send; STS gives credentials, everything else an empty success."""
    requests: list[Any] = []

    def send(_self: Any, request: Any) -> AWSResponse:
        requests.append(request)
        is_sts = urlsplit(request.url).netloc.startswith("sts.")
        empty = b"{}" if "amz-json" in str(request.headers.get("Content-Type")) else b""
        return AWSResponse(request.url, 200, HTTPHeaders(), Body(ASSUMED.encode() if is_sts else empty))

    monkeypatch.setattr("botocore.httpsession.URLLib3Session.send", send)
    for name, value in {"AWS_ACCESS_KEY_ID": "OWN", "AWS_SECRET_ACCESS_KEY": "x"}.items():
        monkeypatch.setenv(name, value)
    return requests


def header(request: Any, name: str) -> str:
    value = request.headers.get(name)
    return value.decode() if isinstance(value, bytes) else str(value)


def s3(**options: Any) -> Any:
    access, _ = access_of("s3://lake/raw", S3Options.model_validate({"region": "eu-west-1", **options}))
    return s3_client._connect(access)


def list_s3(**role: Any) -> None:
    s3(**role).list_objects_v2(Bucket="lake")


def list_shards(**role: Any) -> None:
    identity = AwsIdentity(role_arn=role["sts_role_arn"], external_id=role["sts_external_id"])
    KinesisClient(StreamAccess("s", "eu-west-1", None, identity))._client.list_shards(StreamName="s")


def describe_table(**role: Any) -> None:
    config = DynamodbConfig.model_validate({"table_name": "leases", "region": "eu-west-1", **role})
    connect(config, 1).describe_table(TableName="leases")


@pytest.mark.parametrize("call", [list_s3, list_shards, describe_table])
def test_a_role_is_assumed_with_its_external_id(sent: list[Any], call: Callable[..., None]) -> None:
    call(sts_role_arn=ROLE, sts_external_id="tenant-7")
    assume, request = sent
    asked = parse_qs(assume.body if isinstance(assume.body, str) else assume.body.decode())
    assert (asked["RoleArn"], asked["ExternalId"], asked["RoleSessionName"]) == ([ROLE], ["tenant-7"], ["holdfast"])
    assert "Credential=OWN/" in header(assume, "Authorization")
    assert "Credential=ASSUMED/" in header(request, "Authorization")
    assert header(request, "X-Amz-Security-Token") == "TOKEN"


def test_requests_to_opensearch_are_signed_with_the_role(sent: list[Any]) -> None:
    signer = AwsAccess("eu-west-1", identity=AwsIdentity(role_arn=ROLE)).signer()
    headers = signer("GET", "https://search.example.com/", None)
    assert "Credential=ASSUMED/" in headers["Authorization"]
    assert "ExternalId" not in parse_qs(sent[0].body if isinstance(sent[0].body, str) else sent[0].body.decode())


def test_keys_of_the_settings_assume_the_role(sent: list[Any]) -> None:
    identity = AwsIdentity(Secret("GIVEN"), Secret("s"), role_arn=ROLE)
    identity.session("eu-west-1").client("s3").list_buckets()
    first, second = (header(request, "Authorization") for request in sent)
    assert ("Credential=GIVEN/" in first, "Credential=ASSUMED/" in second) == (True, True)


@pytest.fixture
def without_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment whose usual chain finds nothing."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "missing"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.mark.usefixtures("sent", "without_credentials")
def test_missing_credentials_for_a_role_are_waited_for_as_a_server_is(monkeypatch: pytest.MonkeyPatch) -> None:
    identity = AwsIdentity(role_arn=ROLE)
    shards = KinesisClient(StreamAccess("s", "eu-west-1", None, identity))
    objects = s3_client.client_of(S3Access("lake", region="eu-west-1", identity=identity))
    search = Access(("http://127.0.0.1:9",), aws=AwsAccess("eu-west-1", identity=identity))
    documents = search.connect()
    with pytest.raises(SourceUnavailable, match="Unable to locate credentials"):
        shards.shards()
    with pytest.raises(Unavailable, match="Unable to locate credentials"):
        objects.call("list_objects_v2")
    with pytest.raises(SinkUnavailable, match="Unable to locate credentials"):
        search.call(documents.info)
    assert fetch_small(objects.access, "a", '"etag"') is None
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "found")
    objects.call("list_objects_v2")


@pytest.mark.usefixtures("without_credentials")
def test_small_objects_are_left_to_the_client_if_there_are_no_credentials() -> None:
    assert fetch_small(S3Access("lake", region="nowhere"), "a", '"etag"') is None


def test_settings_without_an_identity_share_the_client_of_the_usual_chain() -> None:
    assert access_of("s3://lake", S3Options())[0] == S3Access("lake")


def test_a_profile_is_that_of_the_shared_files(
    sent: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "credentials").write_text("[lake]\naws_access_key_id = PROFILE\naws_secret_access_key = x\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    s3(profile="lake").list_objects_v2(Bucket="lake")
    assert "Credential=PROFILE/" in header(sent[0], "Authorization")


def test_the_owner_of_the_bucket_is_checked_with_every_request(sent: list[Any]) -> None:
    client = s3(expected_bucket_owner="123456789012")
    client.head_object(Bucket="lake", Key="a")
    client.put_object(Bucket="lake", Key="a", Body=b"")
    client.copy_object(Bucket="lake", Key="a", CopySource={"Bucket": "lake", "Key": "b"})
    assert {header(request, "x-amz-expected-bucket-owner") for request in sent} == {"123456789012"}
    assert header(sent[2], "x-amz-source-expected-bucket-owner") == "123456789012"


def test_written_objects_have_class_encryption_and_tags_and_reads_send_none_of_it(sent: list[Any]) -> None:
    options = {"storage_class": "STANDARD_IA", "server_side_encryption": "aws:kms", "kms_key_id": "key-1"}
    client = s3(**options, tags={"team": "data & more"})
    client.put_object(Bucket="lake", Key="a", Body=b"")
    client.create_multipart_upload(Bucket="lake", Key="a")
    client.copy_object(Bucket="lake", Key="a", CopySource={"Bucket": "lake", "Key": "b"})
    client.upload_part(Bucket="lake", Key="a", UploadId="u", PartNumber=1, Body=b"")
    client.get_object(Bucket="lake", Key="a")
    expected = {
        "x-amz-storage-class": "STANDARD_IA",
        "x-amz-server-side-encryption": "aws:kms",
        "x-amz-server-side-encryption-aws-kms-key-id": "key-1",
        "x-amz-tagging": "team=data+%26+more",
    }
    for request in sent[:3]:
        assert {name: header(request, name) for name in expected} == expected
    assert header(sent[2], "x-amz-tagging-directive") == "REPLACE"
    for request in sent[3:]:
        assert not [name for name in expected if name in request.headers]


@pytest.mark.parametrize("prefix", ["", "raw/"])
def test_objects_of_holdfast_have_encryption_and_tags_but_no_storage_class(sent: list[Any], prefix: str) -> None:
    client = s3(storage_class="ONEZONE_IA", server_side_encryption="AES256", tags={"team": "data"})
    hidden, visible = prefix + "_holdfast/staging/orders/0", prefix + "orders/not_holdfast/0"
    client.put_object(Bucket="lake", Key=hidden, Body=b"")
    client.create_multipart_upload(Bucket="lake", Key=hidden)
    client.copy_object(Bucket="lake", Key=hidden, CopySource={"Bucket": "lake", "Key": visible})
    client.copy_object(Bucket="lake", Key=visible, CopySource={"Bucket": "lake", "Key": hidden})
    assert [request.headers.get("x-amz-storage-class") for request in sent] == [None, None, None, b"ONEZONE_IA"]
    for request in sent:
        assert header(request, "x-amz-server-side-encryption") == "AES256"
        assert header(request, "x-amz-tagging") == "team=data"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sts_external_id": "tenant"}, "sts_external_id needs sts_role_arn"),
        ({"kms_key_id": "k"}, "kms_key_id needs server_side_encryption"),
        ({"expected_bucket_owner": "me"}, "should match pattern"),
        ({"sts_role_arn": "archive"}, "should match pattern"),
        ({"storage_class": "GLACIER"}, "should be 'STANDARD'"),
        ({"storage_class": "DEEP_ARCHIVE"}, "should be 'STANDARD'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        S3Options.model_validate(options)
