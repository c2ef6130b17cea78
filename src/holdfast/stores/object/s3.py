"""Objects in a bucket. A write is a PUT with `If-Match`, or `If-None-Match: *` for a new one; the tag is the ETag."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from uuid import uuid4

from holdfast.errors import AnswerLost, StoreUnavailable, Unavailable
from holdfast.s3.access import SCHEME, S3Access
from holdfast.s3.client import Denied, Exists, Missing, NotSent, Unable, client_of
from holdfast.s3.objects import S3Objects
from holdfast.stores._server_clock import ServerClock
from holdfast.stores.object.objects import Changed, Found, Input, Result, TaggedObjects

PROBES = "probes/"


class S3TaggedObjects(TaggedObjects):
    """Objects below a prefix of a bucket, which must exist."""

    charges_for_reads = True

    def __init__(self, access: S3Access, prefix: str) -> None:
        self._access = access
        self._prefix = prefix
        self._clock = ServerClock()

    @property
    def location(self) -> str:
        return f"{SCHEME}{self._access.bucket}/{self._prefix}"

    @property
    def _objects(self) -> S3Objects:
        return S3Objects(client_of(self._access), self._prefix, self._clock.hear_response)

    def tags(self, prefix: str) -> dict[str, str]:
        with _store_errors():
            return dict(self._objects.etags(prefix))

    def read(self, name: str) -> Found | None:
        with _store_errors():
            found = self._objects.version(name)
        return None if found is None else Found(*found)

    def write(self, name: str, data: bytes, tag: str | None) -> str:
        with _store_errors(lost=AnswerLost):
            try:
                return self._objects.replace(name, data, tag)
            except (Exists, Missing):
                raise Changed(name) from None

    def delete(self, name: str, tag: str) -> None:
        with suppress(Unavailable, Exists, Missing):
            if self._deletes_by_tag:
                self._objects.delete_version(name, tag)

    @cached_property
    def _deletes_by_tag(self) -> bool:
        """Whether the server honours conditions on DELETE. Not all do; a late DELETE must not hit a newer object."""
        name = f"{PROBES}{uuid4().hex}"
        old = self.write(name, b"old", None)
        self.write(name, b"new", old)
        with suppress(Exists, Missing, Unavailable):
            self._objects.delete_version(name, old)
        holds = self.read(name) is not None
        self.discard(name)
        return holds

    def discard(self, name: str) -> None:
        with suppress(Unavailable):
            self._objects.delete([name])

    def each(self, do: Callable[[Input], Result], inputs: Iterable[Input]) -> list[Result]:
        given = list(inputs)
        return [do(item) for item in given] if len(given) < 2 else client_of(self._access).each(do, given)

    def now(self) -> float:
        now = self._clock.now()
        if now is None:
            with _store_errors():
                next(self._objects.etags("clock"), None)
            now = self._clock.now()
        if now is None:
            raise StoreUnavailable(f"{self.location}: the server's responses have no date")
        return now

    def close(self) -> None:
        """The client belongs to the process."""


@contextmanager
def _store_errors(lost: type[StoreUnavailable] = StoreUnavailable) -> Iterator[None]:
    """Turn errors of the client into errors of a store; `lost` is raised if a request may have been applied."""
    try:
        yield
    except (Denied, NotSent, Unable) as refused:
        raise StoreUnavailable(str(refused)) from refused
    except Unavailable as away:
        raise lost(str(away)) from away
