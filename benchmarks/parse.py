"""What parsing costs for each message, beside a loop in plain Python: CPU time, on messages of about 145 bytes.

The peer does what a first version would, row by row: json.loads or re, the field, and the name of its day, which it
looks up in a dictionary. For columns it makes Arrow columns of what json.loads gave.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import Comparison, compare, interleaved
from holdfast.processors.parse import PLUGIN
from holdfast.processors.parse.rule import Schemas
from holdfast.processors.parse.step import ParseStep

MESSAGES = 50_000
REPEATED = 15
EPOCH = date(1970, 1, 1).toordinal()
DDL = "id BIGINT, ts BIGINT, user STRING, action STRING, amount DOUBLE, note STRING"
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("ts", pa.int64()),
        ("user", pa.string()),
        ("action", pa.string()),
        ("amount", pa.float64()),
        ("note", pa.string()),
    ]
)
BY_FIELD = {"json": {"field": "ts", "unit": "millis"}}
BY_REGEX = {"regex": {"pattern": '"ts": (?P<ts>[0-9]+)', "unit": "millis"}}
BY_HAND = re.compile(rb'"ts": ([0-9]+)')
DAY_MS = 86_400_000


@dataclass(frozen=True)
class Case:
    """One way to parse; `bar` is what our time must not exceed, as a part of the peer's."""

    name: str
    settings: dict[str, Any]
    peer: Callable[[pa.RecordBatch], object]
    bar: str


def run() -> list[Comparison]:
    rows, found = _rows(), list[Comparison]()
    for case in _cases():
        step = ParseStep(PLUGIN.config(**case.settings), Schemas(by_ddl={DDL: SCHEMA}))
        ours, peer = interleaved(
            [_timed(partial(step.of_topic, "t", rows)), _timed(partial(case.peer, rows))], REPEATED
        )
        found.append(compare("parse", case.name, ours, peer, "ns/message", case.bar))
    return found


def _cases() -> list[Case]:
    berlin = {"time": BY_FIELD, "granularity": "hour", "zone": "Europe/Berlin"}
    both = {"time": BY_FIELD, "names": {"user": {"json": {"field": "user"}}}}
    return [
        Case("day of a JSON field, in millis", {"time": BY_FIELD}, _loaded, "<= 0.4"),
        Case("hour of a JSON field, in Berlin", berlin, _loaded, "<= 0.4"),
        Case(
            "day of a JSON field, ISO 8601", {"time": {"json": {"field": "at", "unit": "iso8601"}}}, _loaded, "<= 0.5"
        ),
        Case("day and user, two JSON fields", both, _loaded, "<= 0.6"),
        Case("day by a regular expression", {"time": BY_REGEX}, _searched, "<= 1.0"),
        Case("day of the Kafka timestamp", {"time": "kafka"}, _looked_up, "<= 0.2"),
        Case("six columns by schema", {"columns": {"json": {"schema": DDL}}}, _columns, "<= 0.4"),
    ]


def _loaded(rows: pa.RecordBatch) -> list[str]:
    days = _Days()
    return [days[json.loads(value)["ts"] // DAY_MS] for value in rows.column("value").to_pylist()]


def _searched(rows: pa.RecordBatch) -> list[str]:
    days = _Days()
    matches = map(BY_HAND.search, rows.column("value").to_pylist())
    return [days[int(match[1]) // DAY_MS] for match in matches if match is not None]


def _looked_up(rows: pa.RecordBatch) -> list[str]:
    days = _Days()
    return [days[moment.toordinal() - EPOCH] for moment in rows.column("timestamp").to_pylist()]


def _columns(rows: pa.RecordBatch) -> pa.Array:
    return pa.array(list(map(json.loads, rows.column("value").to_pylist())), pa.struct(list(SCHEMA)))


class _Days(dict[int, str]):
    """Names of days, made when they are first asked for."""

    def __missing__(self, day: int) -> str:
        self[day] = name = date.fromordinal(EPOCH + day).strftime("dt=%Y-%m-%d")
        return name


def _timed(work: Callable[[], object]) -> Callable[[], float]:
    def measured() -> float:
        started = time.process_time_ns()
        work()
        return (time.process_time_ns() - started) / MESSAGES

    return measured


def _rows() -> pa.RecordBatch:
    dice = random.Random(5)
    first = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())
    moments = [first + dice.randrange(3 * 86400) for _ in range(MESSAGES)]
    return pa.RecordBatch.from_pydict(
        {
            "_batch": pa.array(np.zeros(MESSAGES, np.int32)),
            "_item": pa.array(np.arange(MESSAGES)),
            "_fault": pa.nulls(MESSAGES, pa.string()),
            "timestamp": pa.array([moment * 10**6 for moment in moments], pa.timestamp("us", "UTC")),
            "value": pa.array([_message(number, moment, dice) for number, moment in enumerate(moments)], pa.binary()),
        }
    )


def _message(number: int, moment: int, dice: random.Random) -> bytes:
    settings = {
        "id": number,
        "ts": moment * 1000 + dice.randrange(1000),
        "at": datetime.fromtimestamp(moment, UTC).isoformat(),
        "user": f"user{number % 1000}",
        "action": "click",
        "amount": round(dice.random() * 100, 2),
        "note": "x" * 11,
    }
    return json.dumps(settings).encode()
