"""A bucket on S3 or a compatible server: files are staged as uploads that are not completed, or as hidden objects.

Needs a server that honours `If-None-Match: *` on PUT, which `probe` tests. What a call has written is as durable as the
server makes it. Several processes may use one root. There are no locks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from holdfast.buckets.bucket import Bucket, Published, StagedFile, StagedWriter, Verdict
from holdfast.buckets.s3_probe import probe
from holdfast.buckets.s3_staged import STAGING, Remembered, S3Staged
from holdfast.buckets.s3_writer import REGISTERED, S3Writer
from holdfast.leases.lease import Json
from holdfast.s3.access import PART_SIZE, S3Access, Staging, Traits
from holdfast.s3.client import client_of
from holdfast.s3.objects import S3Objects

_Result = TypeVar("_Result")


class S3Bucket(Bucket):
    """A prefix of a bucket, which must exist. Copies that are pickled after a probe include its result."""

    def __init__(
        self, access: S3Access, prefix: str = "", staging: Staging = "auto", part_size: int = PART_SIZE
    ) -> None:
        self._access = access
        self._prefix = prefix
        self._wanted = staging
        self._part_size = part_size
        self._traits: Traits | None = None
        self._memory = Remembered()

    def __repr__(self) -> str:
        return f"S3Bucket(s3://{self._access.bucket}/{self._prefix})"

    @property
    def _objects(self) -> S3Objects:
        return S3Objects(client_of(self._access), self._prefix)

    @property
    def _staged(self) -> S3Staged:
        return S3Staged(self._objects, self._memory)

    def warm_up(self) -> None:
        client_of(self._access)

    def probe(self) -> Verdict:
        self._traits, text = probe(self._objects, self._wanted)
        return Verdict(text, self._traits.staging)

    def _probed_traits(self) -> Traits:
        """The result of the probe, which runs now if it did not run before."""
        if self._traits is None:
            self.probe()
        assert self._traits is not None
        return self._traits

    def create(self, key: str, data: bytes) -> bool:
        return self._objects.create(key, data)

    def read(self, key: str) -> bytes | None:
        return self._objects.read(key)

    def read_range(self, key: str, start: int, size: int) -> bytes | None:
        return self._objects.read_range(key, start, size)

    def written_at(self, key: str) -> float | None:
        return self._objects.written_at(key)

    def keys(self, prefix: str) -> Iterator[str]:
        return (key for key in self._objects.keys(prefix) if not key.startswith(STAGING))

    def stage(self, staged_key: str, key: str) -> S3Writer:
        if not staged_key.startswith(STAGING) or staged_key.endswith(REGISTERED):
            raise ValueError(f"{staged_key!r} is not a key of a staged object")
        return S3Writer(
            self._objects, staged_key, key, staging=self._probed_traits().staging, part_size=self._part_size
        )

    def close_all(self, writers: Sequence[StagedWriter]) -> list[tuple[Json, int, str]]:
        return client_of(self._access).each(lambda writer: writer.close(), writers)

    def has_staged(self, files: Sequence[StagedFile]) -> list[bool]:
        return client_of(self._access).each(self._staged.is_there, files)

    def publish(self, files: Sequence[StagedFile]) -> list[Published]:
        staged, traits = self._staged, self._probed_traits()

        def publish(file: StagedFile) -> Published:
            return staged.publish(file, traits)

        return client_of(self._access).each(publish, files)

    def discard(self, handles: Sequence[Json]) -> None:
        self._staged.discard(list(handles))

    def staged_under(self, prefix: str) -> Iterator[tuple[str, Json]]:
        return self._staged.under(prefix)

    def run_all(self, tasks: Sequence[Callable[[], _Result]]) -> list[_Result]:
        return client_of(self._access).run_all(tasks)

    def move(self, key: str, to: str) -> bool:
        return self._objects.move(key, to)
