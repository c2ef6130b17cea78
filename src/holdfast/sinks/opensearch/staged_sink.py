"""The sink `opensearch` in the mode `staged`: rows of live tables go to the staged index of their entity in a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.buckets.bucket import Bucket
from holdfast.deadletters.letter_topic import LetterTopic
from holdfast.errors import Refused
from holdfast.flow.batch import Batch
from holdfast.flow.search_index import IndexPlan, SearchIndexes
from holdfast.flow.sink import StagesIndexes
from holdfast.flow.tables import TABLE_COLUMNS
from holdfast.leases.lease import Lease
from holdfast.sinks.opensearch.bulk_request import BulkTarget
from holdfast.sinks.opensearch.config import OpenSearchConfig
from holdfast.sinks.opensearch.index_setup import IndexSetup
from holdfast.sinks.opensearch.sink import LettersTarget, OpenSearchSink, cluster_access, send_limits
from holdfast.sinks.opensearch.staged_entries import StagedEntryBuilder
from holdfast.sinks.opensearch.staged_index import OpenSearchIndexes
from holdfast.sinks.opensearch.staging import OpenSearchStager

INDEX = "index"
"""Member of a partition's spec: the index of its rows."""


@dataclass(frozen=True)
class StagedStager(OpenSearchStager):
    """Takes the columns of live tables as they are."""

    def columns(self, fields: Any) -> Mapping[str, Any]:
        missing = [name for name in TABLE_COLUMNS if name not in fields.names]
        if missing:
            raise Refused(f"mode: staged needs the columns of the source `database`, and {missing[0]} is missing")
        return dict.fromkeys(TABLE_COLUMNS)

    def plain_columns(self, fields: Any) -> Mapping[str, Any]:
        return self.columns(fields)


class StagedSink(OpenSearchSink, StagesIndexes):
    """Documents in staged indexes."""

    def __init__(
        self,
        name: str,
        stager: StagedStager,
        setup: IndexSetup,
        bucket: Bucket | None,
        letter_topic: LetterTopic | None,
        *,
        config: OpenSearchConfig,
    ) -> None:
        super().__init__(name, stager, setup, bucket, None, letter_topic)
        self._config = config
        self._aliases: dict[str, str] = {}

    @property
    def prefix(self) -> str:
        return self._config.staged_index_prefix

    @property
    def keep_previous(self) -> int:
        return self._config.keep_previous

    def plan(self, mappings: Mapping[str, Any], settings: Mapping[str, Any]) -> IndexPlan:
        return IndexPlan({**self._config.mappings, **mappings}, {**self._config.settings, **settings})

    def indexes(self) -> SearchIndexes:
        return OpenSearchIndexes(self._setup.access)

    def use_aliases(self, aliases: Mapping[str, str]) -> None:
        self._aliases = dict(aliases)

    def stager_for(self, batches: Sequence[Batch]) -> OpenSearchStager:
        found = {batch.id: index for batch in batches if (index := _index(batch.lease)) is not None}
        return replace(super().stager_for(batches), entries=StagedEntryBuilder(found, self._aliases))


def _index(lease: Lease) -> str | None:
    return lease.spec.get(INDEX) if isinstance(lease.spec, dict) else None


def build_staged_sink(name: str, config: OpenSearchConfig) -> StagedSink:
    """The sink of that name, not yet connected."""
    access, letters = cluster_access(config), LettersTarget.of(name, config)
    target = BulkTarget(access, None, config.pipeline, conflict_is_done=True)
    stager = StagedStager(target, StagedEntryBuilder(), letters.kept, send_limits(config))
    setup = IndexSetup(access, None, "", pipeline=config.pipeline)
    return StagedSink(name, stager, setup, letters.bucket, letters.topic, config=config)
