"""Dead letters of reindex runs go to the index of their entity when they are sent again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from holdfast.assemble import StoredPipeline
from holdfast.config import load_text
from holdfast.deadletters.source import LettersSource
from holdfast.flow.batch import Batch, Limits
from holdfast.flow.letter import Letter, LetterBox, LetterId
from holdfast.flow.source import ITEM_COLUMN, Rebuilds
from holdfast.flow.staging import staged_batch
from holdfast.flow.tables import TABLE_COLUMNS
from holdfast.leases.lease import new_lease
from holdfast.registry import Registry
from holdfast.runs.letter_selection import Choice, Waiting
from holdfast.sinks.opensearch.bulk_body import RecordNumbers
from holdfast.sinks.opensearch.staged_sink import StagedSink
from holdfast.stores.memory import MemoryStore

FILE = """\
pipelines:
  catalog:
    source:
      database:
        url: sqlite:///{folder}/app.db
        entities:
          users: {{table: users, key: id, index: people}}
    sinks:
      - opensearch: {{hosts: ["http://127.0.0.1:9"], mode: staged}}
"""
ROW = {"entity": "users", "document_id": "7", "document_version": 5, "deleted": False, "document": '{"n":"x"}'}


class Box(LetterBox):
    """Two letters of a partition that only a run has had; one holds what a processor made of the row."""

    def letters(self) -> Iterator[Letter]:
        for item, form in ((3, "columns"), (4, "row")):
            yield Letter(
                LetterId("c", item), "users/0/000001", item, "mapper_parsing_exception", json.dumps(ROW), form=form
            )

    def fetch(self, ids: Sequence[LetterId]) -> list[Letter]:
        return [letter for letter in self.letters() if letter.id in ids]

    def mark(self, ids: Iterable[LetterId], run: str) -> None:
        """Not needed."""


def test_a_row_that_the_mapping_refused_is_sent_to_the_index_of_its_entity(tmp_path: Path) -> None:
    settings = load_text(FILE.format(folder=tmp_path), "catalog.yaml", Registry.installed())
    stored = StoredPipeline(settings, MemoryStore(), "catalog")
    built = stored.build()
    (sink,) = built.sinks.values()
    assert isinstance(built.source, Rebuilds)
    assert isinstance(sink, StagedSink)
    rebuilder = built.source.rebuilder()
    waiting = Waiting(stored, Choice("opensearch"), Box(), rebuilder, built.source, {"opensearch": sink})
    assert sum(waiting.look().refused.values()) == 1
    (partition,) = waiting

    source = LettersSource(Box(), rebuilder)
    lease = new_lease("catalog", partition, "w", run="redrive-1", now=0.0)
    (cut,) = source.plan([lease], Limits())
    batch = Batch("b", lease, source.name(lease), cut)  # type: ignore[arg-type]
    (rows,) = source.read(None, [batch]).rows(0)
    columns = rows.select(list(TABLE_COLUMNS))
    builder = sink.stager_for([batch]).entries
    ((entries, faults),) = builder.entries(staged_batch(batch), RecordNumbers(), rows.column(ITEM_COLUMN), columns)
    action, document = bytes(entries.bytes()).splitlines()
    target = {"_index": "people", "_id": "7", "version": 5, "version_type": "external_gte"}
    assert (json.loads(action), document, faults) == ({"index": target}, b'{"n":"x"}', [])
