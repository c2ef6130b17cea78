"""Objects in a bucket. A write is a PUT with `If-Match`, or `If-None-Match: *` for a new one; the tag is the ETag."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any
from uuid import uuid4

from holdfast.errors import AnswerLost, StoreUnavailable, Unavailable
from holdfast.s3.access import SCHEME, S3Access
from holdfast.s3.client import Denied, Exists, Missing, S3Client, Unable, client_of
from holdfast.stores._server_clock import ServerClock
from holdfast.stores.object.objects import Changed, Found, Input, Objects, Result

PROBES = "probes/"


class S3Objects(Objects):
    """Objects below a prefix of a bucket, which must exist."""

    def __init__(self, access: S3Access, prefix: str) -> None:
        self._access = access
        self._prefix = prefix
        self._clock = ServerClock()

    @property
    def place(self) -> str:
        return f"{SCHEME}{self._access.bucket}/{self._prefix}"

    @property
    def _client(self) -> S3Client:
        return client_of(self._access)

    def tags(self, prefix: str) -> dict[str, str]:
        found: dict[str, str] = {}
        more: dict[str, Any] = {}
        while True:
            page = self._call("list_objects_v2", Prefix=self._prefix + prefix, **more)
            for entry in page.get("Contents", ()):
                found[entry["Key"].removeprefix(self._prefix)] = entry["ETag"]
            if not page.get("IsTruncated"):
                return found
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def read(self, name: str) -> Found | None:
        try:
            found: Found = self._call("get_object", _found, Key=self._prefix + name)
        except Missing:
            return None
        return found

    def write(self, name: str, data: bytes, tag: str | None) -> str:
        condition = {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}
        try:
            return str(self._call("put_object", Key=self._prefix + name, Body=data, **condition)["ETag"])
        except (Exists, Missing):
            raise Changed(name) from None

    def delete(self, name: str, tag: str) -> None:
        with suppress(StoreUnavailable, Exists, Missing):
            if self._deletes_by_tag:
                self._call("delete_object", Key=self._prefix + name, IfMatch=tag)

    @cached_property
    def _deletes_by_tag(self) -> bool:
        """Whether the server heeds a condition on DELETE. Not all do, and a late DELETE must not hit a newer object."""
        name = f"{PROBES}{uuid4().hex}"
        old = self.write(name, b"old", None)
        self.write(name, b"new", old)
        with suppress(Exists, Missing, StoreUnavailable):
            self._call("delete_object", Key=self._prefix + name, IfMatch=old)
        holds = self.read(name) is not None
        self.discard(name)
        return holds

    def discard(self, name: str) -> None:
        with suppress(StoreUnavailable, Missing):
            self._call("delete_object", Key=self._prefix + name)

    def each(self, do: Callable[[Input], Result], inputs: Iterable[Input]) -> list[Result]:
        given = list(inputs)
        return [do(one) for one in given] if len(given) < 2 else self._client.each(do, given)

    def now(self) -> float:
        now = self._clock.now()
        if now is None:
            self._call("list_objects_v2", Prefix=self._prefix, MaxKeys=1)
            now = self._clock.now()
        if now is None:
            raise StoreUnavailable(f"{self.place}: its responses do not tell the time")
        return now

    def close(self) -> None:
        """The client belongs to the process."""

    def _call(self, verb: str, take: Callable[[Any], Any] | None = None, /, **arguments: Any) -> Any:
        def heard(answer: Any) -> Any:
            self._clock.hear_response(answer)
            return answer if take is None else take(answer)

        try:
            return self._client.call(verb, heard, **arguments)
        except (Denied, Unable) as refused:
            raise StoreUnavailable(str(refused)) from refused
        except Unavailable as away:
            kind = AnswerLost if verb == "put_object" else StoreUnavailable
            raise kind(str(away)) from away


def _found(answer: Mapping[str, Any]) -> Found:
    return Found(bytes(answer["Body"].read()), str(answer["ETag"]))
