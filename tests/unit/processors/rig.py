"""Messages in, folders and faults out, as in a staging task but without Spark."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.flow.batch import Name
from holdfast.flow.staging import StagedBatch
from holdfast.processors.parse import PLUGIN
from holdfast.processors.parse.config import ParseConfig
from holdfast.processors.parse.rule import Schemas, read_files
from holdfast.processors.parse.step import ParseStep

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
COLUMNS = {"id": pa.int64(), "note": pa.string()}


def message_rows(
    values: Sequence[bytes | None], *, stamps: Sequence[datetime | None] | None = None, first: int = 0
) -> pa.RecordBatch:
    """Rows as the source kafka gives them."""
    count = len(values)
    return pa.RecordBatch.from_pydict(
        {
            "_batch": pa.array(np.zeros(count, np.int32)),
            "_item": pa.array(np.arange(first, first + count, dtype=np.int64)),
            "_fault": pa.nulls(count, pa.string()),
            "partition": pa.array([3] * count, pa.int32()),
            "timestamp": pa.array(stamps or [NOON] * count, pa.timestamp("us", "UTC")),
            "key": pa.array([b"k"] * count, pa.binary()),
            "value": pa.array(values, pa.binary()),
        }
    )


def step(schema: dict[str, Any] | None = None, **settings: Any) -> ParseStep:
    """The step as a task has it: pickled on the node."""
    config: ParseConfig = PLUGIN.config(**settings)
    rules = [rule for _, rule in config.rules()]
    schemas = {rule.columns.chosen.schema_: pa.schema(schema or COLUMNS) for rule in rules if rule.columns is not None}
    made = ParseStep(config, Schemas(read_files(rules), schemas))
    sent: ParseStep = pickle.loads(pickle.dumps(made))  # noqa: S301 - our own bytes
    return sent


def parsed(rows: Any, topic: str = "orders", schema: dict[str, Any] | None = None, **settings: Any) -> Any:
    batch = StagedBatch("b", "p", "k", Name(topic, "3"), 1, 1)
    result = step(schema, **settings).apply(batch, rows)
    result.validate(full=True)
    return result


def folders(values: Sequence[bytes | None], topic: str = "orders", **settings: Any) -> list[str]:
    """The folder of each message; for one with a fault its reason, in angle brackets."""
    return folders_of(parsed(message_rows(values), topic, **settings))


def folders_of(rows: Any) -> list[str]:
    faults = rows.column("_fault").to_pylist()
    names = rows.column("_place").to_pylist() if "_place" in rows.schema.names else [""] * rows.num_rows
    return [f"<{json.loads(fault)['reason']}>" if fault else name for fault, name in zip(faults, names, strict=True)]


def as_json(*objects: Any) -> list[bytes]:
    return [json.dumps(value).encode() for value in objects]
