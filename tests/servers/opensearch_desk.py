"""One task's attempt to index, as Spark would run it, on a server of the test's choice."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from holdfast.flow.batch import Name
from holdfast.flow.staging import StagedBatch
from holdfast.registry import Registry
from holdfast.sinks.opensearch import PLUGIN
from holdfast.sinks.opensearch.sink import OpenSearchSink
from tests.servers.opensearch import OpenSearchServer

BATCH = StagedBatch("b1", "orders", "in|a.jsonl", Name("in", "a"), token=3, generation=1, incarnation="etag")
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Written:
    """What a batch's attempt answered."""

    part: dict[str, Any]
    dead: int


class Desk:
    """A sink with an index of its own."""

    def __init__(self, server: OpenSearchServer, **settings: Any) -> None:
        self.server = server
        self.index = f"orders{next(_numbers)}"
        given = {"hosts": [server.endpoint], "index": self.index, "patience": "120s", **settings}
        self.sink: OpenSearchSink = PLUGIN.build("search", PLUGIN.config(**given), Registry.installed())
        self.verdict = self.sink.open(self.pipeline, durable=True)

    @property
    def pipeline(self) -> str:
        return self.index

    @property
    def batch(self) -> StagedBatch:
        return replace(BATCH, pipeline=self.pipeline)

    def write(
        self, records: Sequence[Any] | Any, first: int = 0, between: Callable[[], None] = lambda: None, **other: Any
    ) -> Written:
        """Stage the records of one batch: dictionaries, texts, or a record batch with columns."""
        batch = replace(self.batch, **other)
        rows = records if isinstance(records, pa.RecordBatch) else texts(records)
        staging = pickle.loads(pickle.dumps(self.sink.stager())).begin()  # noqa: S301 - as Spark sends it
        try:
            items, half = pa.array(range(first, first + rows.num_rows), pa.int64()), rows.num_rows // 2
            dead = staging.write(batch, items.slice(0, half), rows.slice(0, half)) if half else 0
            between()
            dead += staging.write(batch, items.slice(half), rows.slice(half))
            part = staging.finish(batch)
            return Written(part, dead + staging.late_unfit(batch))
        finally:
            staging.close()

    @property
    def documents(self) -> list[Any]:
        return sorted(self.server.documents(self.index).values(), key=str)

    @property
    def letters(self) -> list[Any]:
        found = self.server.documents(f"{self.index}-deadletters").values()
        return sorted(found, key=lambda letter: int(letter["origin"]["item"]))


def texts(records: Sequence[Any]) -> pa.RecordBatch:
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    return pa.RecordBatch.from_pydict({"value": pa.array(lines, pa.string())})
