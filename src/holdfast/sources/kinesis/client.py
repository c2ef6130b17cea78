"""Requests to Kinesis for one stream, with readable errors. botocore's own retries are off: readers pace themselves.

A position is JSON: `{"at": number}`, `{"after": number}`, `{"time": milliseconds}` or `{"earliest": true}`. A number is
a sequence number as text.
"""

from __future__ import annotations

import email.utils
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.config.aws import AwsIdentity, aws_client
from holdfast.errors import BatchError, SourceUnavailable
from holdfast.leases.lease import Json

CONNECT_TIMEOUT, READ_TIMEOUT = 2.0, 10.0
LARGEST_READ = 10_000
"""Records that Kinesis returns at once at most."""
TIP = 5
"""Seconds before now from which on records are read to find the newest one."""

_THROTTLED = {
    "ProvisionedThroughputExceededException",
    "LimitExceededException",
    "ThrottlingException",
    "KMSThrottlingException",
    "RequestLimitExceeded",
}

_WRONG = {"InvalidArgumentException", "ValidationException"}


class Throttled(SourceUnavailable):
    """Kinesis has refused a request because there were too many."""


class IteratorExpired(Exception):
    """The iterator was not used for five minutes; another one must be made from the position."""


@dataclass(frozen=True)
class StreamAccess:
    """How to reach a stream. Picklable: credentials are looked up where a client is made."""

    stream: str
    region: str
    endpoint_url: str | None = None
    identity: AwsIdentity = AwsIdentity()


@dataclass(frozen=True, slots=True)
class StreamSummary:
    """A stream as it is now."""

    id: str
    """When it was created: one that was deleted and created again has another id."""
    retention: float
    """Seconds for which records are kept."""
    now: float
    """Seconds since 1970 by the clock of Kinesis, without fractions."""


class KinesisClient:
    """A client of one stream. Thread-safe; a forked process must make its own."""

    def __init__(self, access: StreamAccess, connections: int = 10) -> None:
        self._access = access
        self._client: Any = aws_client(
            access.identity.session(access.region),
            "kinesis",
            endpoint_url=access.endpoint_url,
            connect_timeout=CONNECT_TIMEOUT,
            read_timeout=READ_TIMEOUT,
            connections=connections,
        )

    def summary(self) -> StreamSummary:
        """Describe the stream. Raises `SourceUnavailable`, also if there is no such stream."""
        response = self._call("describe_stream_summary", StreamName=self._access.stream)
        found = response["StreamDescriptionSummary"]
        created, hours = found["StreamCreationTimestamp"], found["RetentionPeriodHours"]
        return StreamSummary(f"{created.timestamp():.3f}", hours * 3600.0, _server_time(response))

    def shards(self) -> list[Mapping[str, Any]]:
        """All shards as Kinesis lists them. Raises `SourceUnavailable`."""
        page = self._call("list_shards", StreamName=self._access.stream)
        found = list(page["Shards"])
        while token := page.get("NextToken"):
            page = self._call("list_shards", NextToken=token)
            found += page["Shards"]
        return found

    def iterator(self, shard: str, position: Json) -> str:
        """An iterator at a position. Raises `SourceUnavailable`, and `BatchError` if there is no such position."""
        given = dict(position) if isinstance(position, dict) and len(position) == 1 else {}
        kinds: dict[str, Mapping[str, Any]] = {
            "at": {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "StartingSequenceNumber": given.get("at")},
            "after": {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": given.get("after")},
            "time": {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": int(given.get("time") or 0) / 1000},
            "earliest": {"ShardIteratorType": "TRIM_HORIZON"},
        }
        kind = next(iter(given), "")
        if kind not in kinds:
            raise BatchError(f"{position!r} is not a position of a shard of Kinesis")
        found = self._call("get_shard_iterator", StreamName=self._access.stream, ShardId=shard, **kinds[kind])
        return str(found["ShardIterator"])

    def records(self, iterator: str, limit: int = LARGEST_READ) -> Mapping[str, Any]:
        """The next records. Raises `Throttled`, `IteratorExpired`, `SourceUnavailable` and `BatchError`."""
        return self._call("get_records", ShardIterator=iterator, Limit=limit)

    def near_end(self, shard: str, now: float, time: int | None = None) -> Json:
        """The position of the first record at or after `time`, which is about now; if there is none, after the newest.

        `now` is that of Kinesis, which refuses a time in the future. An iterator of the type LATEST cannot be stored.
        """
        position: Json = {"time": int((now - TIP) * 1000)}
        iterator: str | None = self.iterator(shard, position)
        while iterator is not None:
            page = self.records(iterator)
            for record in page["Records"]:
                if time is not None and milliseconds(record) >= time:
                    return {"at": record["SequenceNumber"]}
                position = {"after": record["SequenceNumber"]}
            if not page.get("MillisBehindLatest"):
                break
            iterator = page.get("NextShardIterator")
        return position

    def close(self) -> None:
        self._client.close()

    def _call(self, verb: str, **arguments: Any) -> Mapping[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            response: Mapping[str, Any] = getattr(self._client, verb)(**arguments)
        except ClientError as error:
            raise _translated(verb, error.response) from error
        except BotoCoreError as error:
            raise SourceUnavailable(f"kinesis does not respond to {verb}: {error}") from error
        return response


def milliseconds(record: Mapping[str, Any]) -> int:
    """When a record arrived, in milliseconds since 1970."""
    return int(record["ApproximateArrivalTimestamp"].timestamp() * 1000)


def _translated(verb: str, response: Any) -> Exception:
    error = response.get("Error", {})
    code, message = error.get("Code", ""), error.get("Message") or "without a message"
    if code in _THROTTLED:
        return Throttled(f"kinesis throttles {verb}: {message}")
    if code == "ExpiredIteratorException":
        return IteratorExpired(message)
    if code in _WRONG or (code == "ResourceNotFoundException" and verb == "get_shard_iterator"):
        return BatchError(f"kinesis refuses {verb}: {message}")
    return SourceUnavailable(f"kinesis cannot {verb}: {code}: {message}")


def _server_time(response: Mapping[str, Any]) -> float:
    date = response["ResponseMetadata"]["HTTPHeaders"]["date"]
    return email.utils.parsedate_to_datetime(date).timestamp()
