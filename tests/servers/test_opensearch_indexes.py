"""Indexes and aliases of a real OpenSearch."""

from __future__ import annotations

import pytest

from holdfast.flow.search_index import WRITE_ALIAS, AliasState, SearchIndexes
from holdfast.sinks.opensearch.access import Access
from holdfast.sinks.opensearch.staged_index import OpenSearchIndexes
from tests.servers.index_behaviour import PLAN, IndexBehaviour
from tests.servers.opensearch import OpenSearchServer


class TestOpenSearchIndexes(IndexBehaviour):
    @pytest.fixture
    def indexes(self, opensearch_server: OpenSearchServer) -> SearchIndexes:
        self.server = opensearch_server
        return OpenSearchIndexes(Access((opensearch_server.endpoint,)))

    def write(
        self, indexes: SearchIndexes, index: str, document_id: str, version: int | None, text: str | None
    ) -> None:
        options = {} if version is None else {"version": version, "version_type": "external_gte"}
        client = self.server.client()
        if text is None:
            client.delete(index, document_id, params={**options, "ignore": [404, 409]})
        elif index.endswith(WRITE_ALIAS):
            client.index(index, text, document_id, params={**options, "require_alias": "true", "ignore": [404]})
        else:
            client.index(index, text, document_id, params={**options, "ignore": [409]})

    def test_settings_for_filling_are_replaced_by_those_of_the_plan(self, indexes: SearchIndexes) -> None:
        index = self.staged(indexes)
        settings = self.server.client().indices.get_settings(index)[index]["settings"]["index"]
        assert (settings["refresh_interval"], settings["number_of_replicas"], settings["gc_deletes"]) == (
            "-1",
            "0",
            "30d",
        )
        indexes.restore(index, PLAN)
        indexes.finish(index, PLAN)
        settings = self.server.client().indices.get_settings(index)[index]["settings"]["index"]
        assert settings["number_of_replicas"] == "0"
        assert not {"refresh_interval", "gc_deletes"} & set(settings)

    def test_the_options_of_an_alias_stay_when_it_is_swapped(self, indexes: SearchIndexes) -> None:
        first, second = self.staged(indexes), self.staged(indexes)
        indexes.swap("filtered", AliasState(), first)
        action = {"index": first, "alias": "filtered", "filter": {"term": {"n": 1}}}
        self.server.client().indices.update_aliases({"actions": [{"add": action}]})
        assert indexes.swap("filtered", indexes.alias("filtered"), second)
        assert indexes.alias("filtered").options["filter"] == {"term": {"n": 1}}
