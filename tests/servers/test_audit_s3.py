"""`verify` and `locate` on a root that lies on a real S3 server."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.audit.locate import locate_offset
from holdfast.audit.proof import PartitionProof
from holdfast.audit.roots import S3Root
from holdfast.audit.sink import AuditedSink
from holdfast.audit.verify import verify
from holdfast.buckets.root import S3Options
from holdfast.config.secrets import Secret
from holdfast.errors import Unavailable
from tests.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Server
from tests.unit.audit.archive import Archive

BUCKET = "audited"


class OnS3:
    """An archive made by hand in a folder, and the same objects below a prefix of a bucket."""

    def __init__(self, server: S3Server, folder: Path) -> None:
        self.archive = Archive(folder)
        self.prefix = folder.name
        self._server = server
        self._client = server.client()

    def upload(self) -> None:
        for path, _, files in os.walk(self.archive.root):
            for name in files:
                file = Path(path, name)
                self.put(str(file.relative_to(self.archive.root)), file.read_bytes())

    def put(self, key: str, data: bytes) -> None:
        self._client.put_object(Bucket=BUCKET, Key=f"{self.prefix}/{key}", Body=data)

    def delete(self, key: str) -> None:
        self._client.delete_object(Bucket=BUCKET, Key=f"{self.prefix}/{key}")

    def audited(self, bucket: str = BUCKET, secret: str = SECRET_KEY) -> AuditedSink:
        options = S3Options(
            endpoint_url=self._server.endpoint,
            region=REGION,
            access_key_id=Secret(ACCESS_KEY),
            secret_access_key=Secret(secret),
            path_style=True,
        )
        by_hand = self.archive.audited()
        return AuditedSink(
            by_hand.pipeline, by_hand.sink, S3Root(f"s3://{bucket}/{self.prefix}", options), by_hand.format_of
        )

    def doubts(self, *, deep: bool = False) -> list[str]:
        proofs = verify(self.audited(), self.archive.store, deep=deep)
        return [sentence for proof in proofs for sentence in proof.doubts.sentences()]


@pytest.fixture(scope="module")
def bucket(s3_server: S3Server) -> S3Server:
    s3_server.create_bucket(BUCKET)
    return s3_server


@pytest.fixture
def on_s3(bucket: S3Server, tmp_path: Path) -> OnS3:
    made = OnS3(bucket, tmp_path)
    for start in range(0, 50, 10):
        made.archive.commit(start, start + 10)
    made.archive.commit(50, 60, files=[made.archive.data_file([50, 52]), made.archive.dead_letters([51])])
    made.upload()
    return made


def test_a_root_on_s3_is_proven_by_the_offsets_in_its_files(on_s3: OnS3) -> None:
    proof, root = verify(on_s3.audited(), on_s3.archive.store, deep=True)
    assert isinstance(proof, PartitionProof)
    assert (proof.verdict, proof.exact, root.verdict) == ("proven", True, "proven")
    assert (proof.files, proof.rows, proof.dead_letters, proof.absent) == (7, 52, 1, 7)


def test_a_listing_of_several_pages_is_read_to_its_end(on_s3: OnS3) -> None:
    for number in range(1010):
        on_s3.put(f"orders/_{number:04d}", b"")
    on_s3.put("orders/stray", b"")
    assert on_s3.doubts() == ["orders/stray is named by no manifest"]


def test_what_is_missing_or_changed_is_a_doubt(on_s3: OnS3) -> None:
    kept = "orders/1_0_00000000000000000010.parquet"
    data = on_s3.archive.path(kept).read_bytes()
    on_s3.put(kept, data[:100] + bytes([data[100] ^ 1]) + data[101:])
    on_s3.delete("orders/1_0_00000000000000000020.parquet")
    assert on_s3.doubts() == ["orders/1_0_00000000000000000020.parquet is missing; manifest 3 names it"]
    assert on_s3.doubts(deep=True)[0].startswith(f"{kept} has other bytes than the committed ones")


def test_a_message_is_found(on_s3: OnS3) -> None:
    (found,) = locate_offset(on_s3.audited(), on_s3.archive.store, "orders", "0", 34)
    assert found.file == "orders/1_0_00000000000000000030.parquet"


def test_a_bucket_that_is_not_there_or_lets_nobody_in_cannot_be_reached(on_s3: OnS3) -> None:
    for audited in (on_s3.audited(bucket="missing"), on_s3.audited(secret="wrong-secret")):
        with pytest.raises(Unavailable, match="cannot read s3://"):
            list(verify(audited, on_s3.archive.store))
