"""Deletes or tags objects on S3 when all sinks have all of their records.

Every step may be repeated: if a node dies before a partition is recorded as complete, the next one repeats them. An
object that has been overwritten since it was read is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.errors import Unavailable
from holdfast.events import Event, Notice
from holdfast.s3.client import Exists, Missing, Unable, client_of
from holdfast.sources.objects.config import ObjectsConfig
from holdfast.sources.objects.object_ref import S3Ref


class ObjectCleanup:
    """Deletes or tags objects as the settings say."""

    def __init__(self, config: ObjectsConfig) -> None:
        self._deletes = config.deletes
        self._tags = config.tags
        self._notices: list[Event] = []

    def after_publish(self, read: Sequence[tuple[S3Ref, int]]) -> list[Unavailable | None]:
        """Delete or tag objects that were read to their end, each given with its number of dead letters.

        Several requests run at a time. Returns for each object why it is not done yet, or None.
        """
        if not read:
            return []
        unavailable: list[Unavailable] = []

        def clean(entry: tuple[S3Ref, int]) -> Unavailable | None:
            # If the server does not respond to one request, the others are not sent: the node has other work to do.
            if not unavailable and (error := self._cleaned(*entry)) is not None:
                unavailable.append(error)
            return unavailable[0] if unavailable else None

        return client_of(read[0][0].access).each(clean, read)

    def noticed(self) -> list[Event]:
        noticed, self._notices = self._notices, []
        return noticed

    def _cleaned(self, ref: S3Ref, dead: int) -> Unavailable | None:
        if dead and self._deletes:
            self._notices.append(Notice(f"{ref.path} is not deleted: {dead} of its records are dead letters"))
            return None
        try:
            self._clean(ref)
        except Missing:
            return None
        except Exists:
            self._notices.append(Notice(f"{ref.path} was overwritten since it was read; it is left as it is"))
        except Unavailable as error:
            return error
        return None

    def _clean(self, ref: S3Ref) -> None:
        if client_of(ref.access).call("head_object", Key=ref.key)["ETag"] != ref.etag:
            raise Exists(perhaps_ours=False)
        if self._deletes:
            self._delete(ref)
        else:
            self._tag(ref)

    def _delete(self, ref: S3Ref) -> None:
        client = client_of(ref.access)
        try:
            client.call("delete_object", Key=ref.key, IfMatch=ref.etag)
        except Unable:
            # Not every server supports the condition; the ETag that was checked a moment ago must do.
            client.call("delete_object", Key=ref.key)

    def _tag(self, ref: S3Ref) -> None:
        client = client_of(ref.access)
        present: list[dict[str, Any]] = client.call("get_object_tagging", Key=ref.key)["TagSet"]
        tags = {tag["Key"]: tag["Value"] for tag in present} | self._tags
        tag_set = {"TagSet": [{"Key": name, "Value": value} for name, value in tags.items()]}
        client.call("put_object_tagging", Key=ref.key, Tagging=tag_set)
