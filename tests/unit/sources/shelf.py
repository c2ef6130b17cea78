"""A bucket in memory that stands for `S3Client`: listed in pages, read in ranges, with ETags and tags."""

from __future__ import annotations

import hashlib
import io
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from holdfast.errors import HoldfastError, Unavailable
from holdfast.s3 import client as s3_client
from holdfast.s3.access import S3Access
from holdfast.s3.client import Exists, Missing, Unable
from holdfast.sources.objects import PLUGIN
from holdfast.sources.objects.listing import RESPONSE_TIMEOUT
from holdfast.sources.objects.source import ObjectsSource


@dataclass
class Item:
    data: bytes
    modified: datetime
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.data).hexdigest()}"'  # noqa: S324 - as S3 does it


class Shelf:
    """`away`: verbs that are not answered. `without`: verbs whose conditions the server does not know."""

    def __init__(self, bucket: str = "landing", reach: dict[str, str] | None = None) -> None:
        # A region of its own, so that every test has a client of its own.
        self.reach = reach or {"region": uuid.uuid4().hex}
        self.access = S3Access(bucket, region=self.reach["region"], patience=RESPONSE_TIMEOUT)
        self.items: dict[str, Item] = {}
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.away: set[str] = set()
        self.without: set[str] = set()
        self.page = 1000
        self.body: Callable[[bytes], Any] = io.BytesIO
        s3_client._clients[self.access] = self  # type: ignore[assignment]

    @property
    def verbs(self) -> Counter[str]:
        return Counter(verb for verb, _ in self.requests)

    def put(self, *keys: str, data: bytes = b"x\n", at: float = 1_000_000.0) -> None:
        for key in keys:
            self.items[key] = Item(data, datetime.fromtimestamp(at, UTC))

    def source(self, *, bucket: dict[str, Any] | None = None, **settings: Any) -> ObjectsSource:
        buckets = [{"bucket": self.access.bucket, **(bucket or {})}]
        built = PLUGIN.build(PLUGIN.config(buckets=buckets, s3=self.reach, **settings))
        assert isinstance(built, ObjectsSource)
        return built

    # --- what S3Client has -------------------------------------------------------------------------------------

    def call(self, verb: str, take: Callable[[Any], Any] | None = None, /, **arguments: Any) -> Any:
        self.requests.append((verb, arguments))
        if verb in self.away:
            raise Unavailable(f"cannot {verb}: the server is down")
        answer = getattr(self, verb)(**arguments)
        return answer if take is None else take(answer)

    def small_object(self, key: str, etag: str) -> bytes | None:
        return None

    def each(self, do: Callable[[Any], Any], inputs: Iterable[Any]) -> list[Any]:
        return [do(given) for given in inputs]

    def submit(self, do: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(do())
        except HoldfastError as error:
            future.set_exception(error)
        return future

    def pages(self, verb: str, items: str, **arguments: Any) -> Iterator[dict[str, Any]]:
        more: dict[str, Any] = {}
        while True:
            page = self.call(verb, **arguments, **more)
            yield from page[items]
            if not page["IsTruncated"]:
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    # --- what boto3 calls them ---------------------------------------------------------------------------------

    def list_objects_v2(
        self,
        Prefix: str = "",  # noqa: N803
        Delimiter: str = "",  # noqa: N803
        MaxKeys: int = 0,  # noqa: N803
        ContinuationToken: str = "",  # noqa: N803
    ) -> dict[str, Any]:
        below = [key for key in sorted(self.items, key=str.encode) if key.startswith(Prefix)]
        folders = {
            Prefix + key[len(Prefix) :].split("/")[0] + "/" for key in below if Delimiter and "/" in key[len(Prefix) :]
        }
        direct = [key for key in below if not any(key.startswith(folder) for folder in folders)]
        rest = [key for key in direct if key > ContinuationToken]
        some = rest[: MaxKeys or self.page]
        return {
            "Contents": [self._entry(key) for key in some],
            "CommonPrefixes": [{"Prefix": folder} for folder in sorted(folders)],
            "IsTruncated": len(some) < len(rest),
            "NextContinuationToken": some[-1] if some else "",
        }

    def _entry(self, key: str) -> dict[str, Any]:
        item = self.items[key]
        return {"Key": key, "Size": len(item.data), "ETag": item.etag, "LastModified": item.modified}

    def head_object(self, Key: str) -> dict[str, Any]:  # noqa: N803
        item = self._there(Key)
        return {"ETag": item.etag, "ContentLength": len(item.data)}

    def get_object(self, Key: str, IfMatch: str, Range: str) -> dict[str, Any]:  # noqa: N803
        item = self._there(Key, IfMatch)
        start, end = Range.removeprefix("bytes=").split("-")
        part = item.data[int(start) : int(end) + 1]
        return {"Body": self.body(part), "ContentLength": len(part)}

    def delete_object(self, Key: str, IfMatch: str | None = None) -> None:  # noqa: N803
        if IfMatch is not None and "delete_object" in self.without:
            raise Unable("delete_object: NotImplemented")
        self._there(Key, IfMatch)
        del self.items[Key]

    def get_object_tagging(self, Key: str) -> dict[str, Any]:  # noqa: N803
        return {"TagSet": [{"Key": name, "Value": value} for name, value in self._there(Key).tags.items()]}

    def put_object_tagging(self, Key: str, Tagging: dict[str, Any]) -> None:  # noqa: N803
        self._there(Key).tags = {tag["Key"]: tag["Value"] for tag in Tagging["TagSet"]}

    def _there(self, key: str, etag: str | None = None) -> Item:
        if key not in self.items:
            raise Missing(key)
        if etag is not None and self.items[key].etag != etag:
            raise Exists(perhaps_ours=False)
        return self.items[key]
