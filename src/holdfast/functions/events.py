"""What a handler is called with: the event of one record, as Nuclio's handlers know it."""

from __future__ import annotations

import base64
import json
import sys
from collections import UserList
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Self, SupportsIndex, overload

from holdfast.flow.shards import StreamRecord

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC).replace(tzinfo=None)


@dataclass(frozen=True, slots=True)
class TriggerInfo:
    """What calls the handler."""

    kind: str = "stream"
    name: str = ""


@dataclass(frozen=True, slots=True)
class EventOrigin:
    """What all events of a shard have in common."""

    stream: str
    shard_id: int
    trigger: TriggerInfo = TriggerInfo()
    num_shards: int | None = None


@dataclass(frozen=True, slots=True)
class QualifiedOffset:
    """Names a record, so that it can be acknowledged later, in another invocation and in another process.

    It can be pickled; `asdict` and the constructor turn it into JSON and back.
    """

    topic: str
    partition: int
    offset: int

    @classmethod
    def from_event(cls, event: Any) -> Self:
        """The offset of an event of holdfast or of Nuclio."""
        return cls(event.topic or event.path, event.shard_id, event.offset)

    def compile_explicit_ack_message(self) -> dict[str, Any]:
        """Return the message with which Nuclio acknowledges."""
        return {"kind": "streamMessageAck", "attributes": asdict(self)}


class FunctionEvent:
    """One record with the attributes of Nuclio's events.

    Attributes are computed when they are first read, and may be assigned. `body` is bytes, or the decoded JSON if the
    record's header `content-type` is `application/json` (bytes if it cannot be decoded); None if the record has no
    body. `timestamp` is in UTC without a time zone, as in Nuclio.
    """

    body: Any
    offset: int
    shard_id: int
    content_type: str
    fields: dict[str, Any]
    headers: dict[str, Any]
    id: str
    key: bytes | None
    last_in_batch: bool
    method: str
    num_shards: int | None
    path: str
    size: int
    timestamp: datetime
    topic: str
    trigger: TriggerInfo
    type: str
    type_version: str
    url: str
    version: str

    def __init__(self, record: StreamRecord, origin: EventOrigin) -> None:
        self._record = record
        self._origin = origin
        self.offset = record.offset
        self.shard_id = origin.shard_id
        if not record.headers:
            self.body = record.body

    def __getattr__(self, name: str) -> Any:
        compute = _COMPUTED.get(name)
        if compute is None:
            raise AttributeError(f"an event has no attribute {name!r}")
        value = compute(self._record, self._origin)
        setattr(self, name, value)
        return value

    def get_header(self, name: str) -> Any:
        """Return the header of this name in any case, or None."""
        return next((value for key, value in self.headers.items() if key.lower() == name.lower()), None)

    def to_json(self) -> str:
        """Return all attributes as JSON; a body of bytes is in base64."""
        values = {name: getattr(self, name) for name in _NAMES}
        values |= {"trigger": asdict(self.trigger), "timestamp": str(self.timestamp)}
        for name in ("body", "key"):
            if isinstance(values[name], bytes):
                values[name] = base64.b64encode(values[name]).decode("ascii")
        return json.dumps(values, default=str)

    def compile_explicit_ack_message(self) -> dict[str, Any]:
        """Return the message with which Nuclio acknowledges this event."""
        return QualifiedOffset.from_event(self).compile_explicit_ack_message()

    def __repr__(self) -> str:
        return self.to_json()


class EventBatch(UserList[FunctionEvent]):
    """The events of a batch, each made when it is first used: most of the cost of a large batch is that of its events.

    It has all methods and operators of a list, and compares with lists, but is not an instance of `list`. What is
    changed in it stays: an event is the same object each time.
    """

    @classmethod
    def of(cls, records: Sequence[StreamRecord], make: Callable[[StreamRecord], FunctionEvent]) -> Self:
        """The events that `make` makes from these records, which must not change."""
        batch = cls.__new__(cls)
        vars(batch).update(_records=records, _make=make, _made={})
        return batch

    _records: Sequence[StreamRecord]
    _make: Callable[[StreamRecord], FunctionEvent]
    _made: dict[int, FunctionEvent]
    """By index, the events that were used."""
    _all: Sequence[FunctionEvent] = ()
    """All events, once all were made: the handler may take some out of the list."""

    @cached_property
    def data(self) -> list[FunctionEvent]:  # type: ignore[override]
        """All events: what the methods of a list work on."""
        self._all = self.originals()
        self._made = {}
        return [*self._all]

    def originals(self) -> Sequence[FunctionEvent]:
        """The event of each record in their order, regardless of what was changed in the list."""
        if self._all or not self._made:
            return self._all or [*map(self._make, self._records)]
        return [self._made.get(index) or self._make(record) for index, record in enumerate(self._records)]

    @property
    def _is_lazy(self) -> bool:
        return "data" not in self.__dict__

    def __len__(self) -> int:
        return len(self._records if self._is_lazy else self.data)

    def __iter__(self) -> Iterator[FunctionEvent]:
        return iter(self.data)

    @overload
    def __getitem__(self, index: SupportsIndex) -> FunctionEvent: ...

    @overload
    def __getitem__(self, index: slice) -> Self: ...

    def __getitem__(self, index: SupportsIndex | slice) -> FunctionEvent | Self:
        if isinstance(index, slice) or not self._is_lazy:
            return super().__getitem__(index)
        at = range(len(self._records))[index]
        if at not in self._made:
            self._made[at] = self._make(self._records[at])
        return self._made[at]

    def __copy__(self) -> Self:
        return self.copy()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.data,)


def record_names(event: FunctionEvent) -> tuple[str, str]:
    """Id and offset of the event's record, regardless of what the handler has assigned to the event."""
    record, origin = event._record, event._origin  # noqa: SLF001 - not for handlers
    return _COMPUTED["id"](record, origin), str(record.offset)


def _header_value(value: bytes | None) -> str | bytes | None:
    try:
        return None if value is None else value.decode("utf-8")
    except UnicodeDecodeError:
        return value


def _headers(record: StreamRecord) -> dict[str, Any]:
    return {name: _header_value(value) for name, value in record.headers}


def _content_type(record: StreamRecord) -> str:
    values = (value for name, value in record.headers if name.lower() == "content-type" and value is not None)
    return next(values, b"").decode("utf-8", "replace")


def _body(record: StreamRecord) -> Any:
    if record.body is None or _content_type(record).partition(";")[0].strip().lower() != "application/json":
        return record.body
    try:
        return json.loads(record.body)
    except (ValueError, RecursionError) as error:
        print(f"the body of the record at offset {record.offset} is not JSON: {error}", file=sys.stderr)  # noqa: T201
        return record.body


_COMPUTED: Mapping[str, Callable[[StreamRecord, EventOrigin], Any]] = {
    "body": lambda record, _: _body(record),
    "content_type": lambda record, _: _content_type(record),
    "fields": lambda _, __: {},
    "headers": lambda record, _: _headers(record),
    "id": lambda record, origin: f"{origin.stream}/{origin.shard_id}/{record.offset}",
    "key": lambda record, _: record.key,
    "last_in_batch": lambda _, __: False,
    "method": lambda _, __: "",
    "num_shards": lambda _, origin: origin.num_shards,
    "path": lambda _, origin: origin.stream,
    "size": lambda record, _: len(record.body or b""),
    "timestamp": lambda record, _: _EPOCH + timedelta(milliseconds=record.timestamp),
    "topic": lambda _, origin: origin.stream,
    "trigger": lambda _, origin: origin.trigger,
    "type": lambda _, __: "",
    "type_version": lambda _, __: "",
    "url": lambda _, __: "",
    "version": lambda _, __: "",
}
_NAMES = (*_COMPUTED, "offset", "shard_id")
