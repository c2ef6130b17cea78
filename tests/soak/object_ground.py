"""Leases as objects of a real S3 server, whose own versioning keeps the history; it is read from the server's files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Server
from tests.soak import history
from tests.soak.grounds import ServerGround

BUCKET = "soak"
STORE = "_holdfast/store/leases"
GONE = "GONE"


class VersioningS3(S3Server):
    """Keeps every version of every object."""

    def initialise(self) -> None:
        super().initialise()
        (self.folder / "versions").mkdir()

    def command(self) -> Sequence[str]:
        *words, objects = super().command()
        return (*words, "--versioning-dir", str(self.folder / "versions"), objects)


class ObjectGround(ServerGround):
    plugin = "object"

    def settings(self) -> dict[str, Any]:
        keys = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY, "region": REGION, "path_style": True}
        address = {"endpoint_url": f"http://127.0.0.1:{self.network.port}"}
        return {"root": f"s3://{BUCKET}", "s3": {**keys, **address}, "request_timeout": "2s"}

    def connect(self) -> Any:
        raise AssertionError("there is no SQL here")

    def make_bucket(self) -> None:
        assert isinstance(self.server, S3Server)
        self.server.create_bucket(BUCKET)
        self.server.client().put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})

    def prepare(self) -> None:
        """The bucket keeps versions from its first object on."""

    def open_rows(self) -> tuple[int, int]:
        rows = [kept.row for kept in self._objects() if kept.row.pipeline in {"pull", "share"}]
        return len(rows), sum(row.status != "COMPLETED" for row in rows)

    def history(self) -> list[history.Version]:
        # A server that is killed in a write may have kept the version before it twice.
        written = {kept.nonce: kept for kept in (*self._objects(), *self._earlier())}
        return [kept.row for kept in sorted(written.values(), key=lambda kept: kept.version_id)]

    def _objects(self) -> Iterator[_Kept]:
        return _kept(self.server.folder / "objects" / BUCKET / STORE)

    def _earlier(self) -> Iterator[_Kept]:
        return _kept(self.server.folder / "versions" / BUCKET)


class _Kept(NamedTuple):
    nonce: str
    version_id: str
    row: history.Version


def _kept(folder: Path) -> Iterator[_Kept]:
    for at, _, names in os.walk(folder):
        for name in names:
            path = Path(at) / name
            try:
                data, version_id = path.read_bytes(), os.getxattr(path, "user.version-id").decode()
            except FileNotFoundError:
                continue  # replaced just now
            line, _, body = data.partition(b"\n")
            if line.startswith(b'{"format"'):
                yield _version(json.loads(line), body, version_id)


def _version(document: dict[str, Any], body: bytes, version_id: str) -> _Kept:
    pipeline, _, key, _, status, owner, token, version, due_at, *_ = document["row"]
    # A removed row has no body.
    parts = json.loads(body) if body else {}
    kept = (pipeline, key, status, owner, token, version, due_at, parts)
    return _Kept(document["nonce"], version_id, history.Version(_milliseconds(version_id) / 1e3, status == GONE, *kept))


def _milliseconds(version_id: str) -> int:
    """When the server began to write it: the first ten characters of its id count milliseconds."""
    number = 0
    for letter in version_id[:10]:
        number = number * 32 + "0123456789ABCDEFGHJKMNPQRSTVWXYZ".index(letter)
    return number
