"""The model of a search cluster behaves as a real one does."""

from __future__ import annotations

from typing import cast

import pytest

from holdfast.flow.search_index import SearchIndexes
from tests.servers.index_behaviour import IndexBehaviour
from tests.simulation.index_server import IndexServer


class TestIndexServer(IndexBehaviour):
    @pytest.fixture
    def indexes(self) -> SearchIndexes:
        return IndexServer()

    def write(
        self, indexes: SearchIndexes, index: str, document_id: str, version: int | None, text: str | None
    ) -> None:
        cast("IndexServer", indexes).write(index, document_id, version, text)
