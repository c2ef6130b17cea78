"""What becomes of objects on S3 that have been read: deleted or tagged, when all sinks have all of their records.

All of it may be repeated: a node that dies before a partition is noted as complete is followed by one that does it
again. An object that was overwritten since is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.errors import Unavailable
from holdfast.events import Event, Notice
from holdfast.s3.client import Exists, Missing, Unable, client_of
from holdfast.sources.objects.config import ObjectsConfig
from holdfast.sources.objects.places import S3Place


class Aftermath:
    """Deletes or tags objects as the settings say."""

    def __init__(self, config: ObjectsConfig) -> None:
        self._deletes = config.deletes
        self._tags = config.tags
        self._notices: list[Event] = []

    @property
    def needed(self) -> bool:
        return self._deletes or bool(self._tags)

    def after_publish(self, read: Sequence[tuple[S3Place, int]]) -> list[Unavailable | None]:
        """Each object that was read to its end, and how many of its records became dead letters.

        Several at a time. Answers what kept it from being done.
        """
        if not read or not self.needed:
            return [None] * len(read)
        away: list[Unavailable] = []

        def tidy(one: tuple[S3Place, int]) -> Unavailable | None:
            # A server that does not answer one request is not asked a hundred times: the node has other things to do.
            if not away and (told := self._tidied(*one)) is not None:
                away.append(told)
            return away[0] if away else None

        return client_of(read[0][0].access).each(tidy, read)

    def noticed(self) -> list[Event]:
        told, self._notices = self._notices, []
        return told

    def _tidied(self, place: S3Place, dead: int) -> Unavailable | None:
        if dead and self._deletes:
            self._notices.append(Notice(f"{place.path} is not deleted: {dead} of its records are dead letters"))
            return None
        try:
            self._end(place)
        except Missing:
            return None
        except Exists:
            self._notices.append(Notice(f"{place.path} was overwritten since it was read; it is left as it is"))
        except Unavailable as away:
            return away
        return None

    def _end(self, place: S3Place) -> None:
        if client_of(place.access).call("head_object", Key=place.key)["ETag"] != place.etag:
            raise Exists(perhaps_ours=False)
        if self._deletes:
            self._delete(place)
        else:
            self._tag(place)

    def _delete(self, place: S3Place) -> None:
        client = client_of(place.access)
        try:
            client.call("delete_object", Key=place.key, IfMatch=place.etag)
        except Unable:
            # Not every server knows the condition; what was looked at a moment ago must do.
            client.call("delete_object", Key=place.key)

    def _tag(self, place: S3Place) -> None:
        client = client_of(place.access)
        present: list[dict[str, Any]] = client.call("get_object_tagging", Key=place.key)["TagSet"]
        tags = {tag["Key"]: tag["Value"] for tag in present} | self._tags
        wanted = {"TagSet": [{"Key": name, "Value": value} for name, value in tags.items()]}
        client.call("put_object_tagging", Key=place.key, Tagging=wanted)
