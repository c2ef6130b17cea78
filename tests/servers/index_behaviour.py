"""What a reindex run relies on, of a real server and of the model in `tests/simulation/index_server.py`."""

from __future__ import annotations

import itertools
import json
from abc import ABC, abstractmethod
from typing import Any, cast

import pytest

from holdfast.errors import Refused
from holdfast.flow.search_index import WRITE_ALIAS, AliasState, IndexOwner, IndexPlan, NewDocument, SearchIndexes

OWNER = IndexOwner("catalog", "run1")
PLAN = IndexPlan({"properties": {"n": {"type": "long"}}}, {"number_of_replicas": 0})
_numbers = itertools.count(1)


class IndexBehaviour(ABC):
    @pytest.fixture
    @abstractmethod
    def indexes(self) -> SearchIndexes: ...

    @abstractmethod
    def write(
        self, indexes: SearchIndexes, index: str, document_id: str, version: int | None, text: str | None
    ) -> None:
        """Write a document with this external version (`external_gte`), or delete it if it has no text."""

    def staged(self, indexes: SearchIndexes, *documents: tuple[str, int]) -> str:
        index = f"staged_{next(_numbers)}"
        indexes.create(index, OWNER, PLAN)
        for document_id, version in documents:
            self.write(indexes, index, document_id, version, json.dumps({"n": version}))
        return index

    def test_an_index_is_created_once_and_belongs_to_its_run(self, indexes: SearchIndexes) -> None:
        index = self.staged(indexes, ("a", 1))
        indexes.create(index, OWNER, PLAN)
        indexes.restore(index, PLAN)
        assert (indexes.owner(index), indexes.count(index)) == (OWNER, 1)
        with pytest.raises(Refused):
            indexes.create(index, IndexOwner("catalog", "run2"), PLAN)
        assert indexes.owner("missing") is None

    def test_documents_are_found_after_the_refresh_that_restores_the_settings(self, indexes: SearchIndexes) -> None:
        index = self.staged(indexes, ("a", 1), ("b", 2))
        assert indexes.count(index) == 0
        indexes.restore(index, PLAN)
        assert indexes.count(index) == 2
        found = {document.id: document for page in indexes.pages(index, texts=True) for document in page}
        assert {name: (document.version, document.text) for name, document in found.items()} == {
            "a": (1, '{"n": 1}'),
            "b": (2, '{"n": 2}'),
        }
        assert indexes.find(index, ["b", "c"]) == {"b": found["b"]}

    def test_an_older_version_never_replaces_a_newer_one_nor_a_deleted_one(self, indexes: SearchIndexes) -> None:
        index = self.staged(indexes, ("a", 5), ("b", 5))
        self.write(indexes, index, "a", 4, '{"n": 4}')
        self.write(indexes, index, "b", 6, None)
        self.write(indexes, index, "b", 5, '{"n": 5}')
        self.write(indexes, index, "c", 9, None)
        self.write(indexes, index, "c", 8, '{"n": 8}')
        assert {name: found.version for name, found in indexes.find(index, ["a", "b", "c"]).items()} == {"a": 5}

    def test_an_alias_is_swapped_only_from_the_state_that_was_seen(self, indexes: SearchIndexes) -> None:
        alias, first, second = f"alias{next(_numbers)}", self.staged(indexes), self.staged(indexes)
        assert indexes.alias(alias) == AliasState()
        assert indexes.swap(alias, AliasState(), first)
        seen = indexes.alias(alias)
        assert (seen.indexes, seen.concrete) == ((first,), False)
        assert indexes.swap(alias, seen, second)
        assert not indexes.swap(alias, seen, second)
        assert not indexes.swap(alias, seen, first)
        assert indexes.alias(alias).indexes == (second,)

    def test_an_alias_keeps_pointing_to_its_index_if_the_new_one_is_gone(self, indexes: SearchIndexes) -> None:
        alias, first = f"alias{next(_numbers)}", self.staged(indexes)
        indexes.swap(alias, AliasState(), first)
        assert not indexes.swap(alias, indexes.alias(alias), "missing")
        assert indexes.alias(alias).indexes == (first,)

    def test_an_index_of_the_alias_name_is_replaced_in_one_action(self, indexes: SearchIndexes) -> None:
        name, staged = f"plain{next(_numbers)}", self.staged(indexes, ("a", 1))
        self.write(indexes, name, "old", 1, "{}")
        seen = indexes.alias(name)
        assert seen == AliasState((name,), concrete=True)
        assert indexes.swap(name, seen, staged)
        assert indexes.alias(name).indexes == (staged,)
        assert not indexes.swap(name, seen, staged)
        indexes.refresh(name)
        assert indexes.count(name) == 1

    def test_a_document_that_was_written_since_it_was_found_is_not_deleted(self, indexes: SearchIndexes) -> None:
        index = self.staged(indexes, ("a", 1), ("b", 1), ("c", 1))
        found = indexes.find(index, ["a", "b", "c"])
        self.write(indexes, index, "b", 1, '{"n": 9}')
        self.write(indexes, index, "c", 2, None)
        assert indexes.delete(index, list(found.values())) == 1
        assert list(indexes.find(index, ["a", "b", "c"])) == ["b"]
        assert indexes.delete(index, []) == 0
        # A late write of the version that was deleted does not bring the document back.
        self.write(indexes, index, "a", 1, '{"n": 1}')
        assert list(indexes.find(index, ["a"])) == []

    def test_documents_are_put_unless_the_index_has_a_later_version(self, indexes: SearchIndexes) -> None:
        index = self.staged(indexes, ("a", 5), ("b", 5))
        given = [("a", 5, '{"n":\n 50}'), ("b", 4, '{"n": 4}'), ("c", None, '{"n": 1}')]
        assert indexes.put(index, [NewDocument(*each) for each in given]) == 2
        found = indexes.find(index, ["a", "b", "c"])
        assert {name: document.text for name, document in found.items()} == {
            "a": '{"n": 50}',
            "b": '{"n": 5}',
            "c": '{"n": 1}',
        }
        assert indexes.put(index, []) == 0

    def test_a_document_without_a_version_is_put_only_if_it_is_as_it_was_found(self, indexes: SearchIndexes) -> None:
        index = self.staged(indexes, ("a", 5), ("b", 5), ("c", 5))
        found = indexes.find(index, ["a", "b"])
        self.write(indexes, index, "b", 6, '{"n": 6}')
        wanted = [NewDocument(name, None, '{"n": 0}', found.get(name)) for name in ("a", "b", "c", "d")]
        assert indexes.put(index, wanted) == 2
        texts = {name: document.text for name, document in indexes.find(index, ["a", "b", "c", "d"]).items()}
        assert texts == {"a": '{"n": 0}', "b": '{"n": 6}', "c": '{"n": 5}', "d": '{"n": 0}'}

    def test_writes_are_accepted_until_they_are_closed_and_do_not_keep_an_index(self, indexes: SearchIndexes) -> None:
        index = self.staged(indexes)
        alias = f"{index}{WRITE_ALIAS}"
        for _ in range(2):
            indexes.open_writes(index, alias)
        self.write(indexes, alias, "a", 1, "{}")
        for _ in range(2):
            indexes.close_writes(alias)
        self.write(indexes, alias, "b", 1, "{}")
        assert list(indexes.find(index, ["a", "b"])) == ["a"]
        assert indexes.alias(alias) == AliasState()
        indexes.open_writes(index, alias)
        assert indexes.remove(index, OWNER)
        self.write(indexes, alias, "c", 1, "{}")
        assert indexes.alias(alias) == AliasState()
        with pytest.raises(Refused):
            indexes.open_writes(index, alias)

    def test_writes_that_are_suspended_are_reopened_and_those_that_are_closed_are_not(
        self, indexes: SearchIndexes
    ) -> None:
        index = self.staged(indexes)
        alias = f"{index}{WRITE_ALIAS}"
        indexes.open_writes(index, alias)
        assert indexes.writes(alias) == (index,)
        for _ in range(2):
            indexes.suspend_writes(alias)
        self.write(indexes, alias, "a", 1, "{}")
        assert (indexes.writes(alias), list(indexes.find(index, ["a"]))) == ((index,), [])
        for _ in range(2):
            assert indexes.reopen_writes(alias)
        self.write(indexes, alias, "b", 1, "{}")
        assert (indexes.writes(alias), list(indexes.find(index, ["b"]))) == ((index,), ["b"])
        indexes.suspend_writes(alias)
        indexes.close_writes(alias)
        indexes.suspend_writes(alias)
        assert not indexes.reopen_writes(alias)
        self.write(indexes, alias, "c", 1, "{}")
        assert (indexes.writes(alias), list(indexes.find(index, ["c"]))) == ((), [])

    def test_an_index_with_suspended_writes_is_removed(self, indexes: SearchIndexes) -> None:
        index = self.staged(indexes)
        indexes.open_writes(index, f"{index}{WRITE_ALIAS}")
        indexes.suspend_writes(f"{index}{WRITE_ALIAS}")
        assert indexes.remove(index, OWNER)

    def test_only_an_index_of_the_run_without_an_alias_is_removed(self, indexes: SearchIndexes) -> None:
        alias, index, plain = f"alias{next(_numbers)}", self.staged(indexes), f"plain{next(_numbers)}"
        self.write(indexes, plain, "a", 1, "{}")
        indexes.swap(alias, AliasState(), index)
        assert not indexes.remove(index, OWNER)
        assert not indexes.remove(plain, OWNER)
        other = self.staged(indexes)
        assert not indexes.remove(other, IndexOwner("catalog", "run2"))
        assert indexes.remove(other, OWNER)
        assert not indexes.remove(other, OWNER)
        assert (indexes.owner(index), indexes.owner(other)) == (OWNER, None)

    def test_an_index_that_somebody_has_begun_to_remove_is_not_promoted(self, indexes: SearchIndexes) -> None:
        alias, index, steps = f"alias{next(_numbers)}", self.staged(indexes), cast("Any", indexes)
        assert steps._retired(index)
        assert not indexes.swap(alias, AliasState(), index)
        assert steps._retired(index)  # whoever finds it so may finish the removal
        assert indexes.remove(index, OWNER)
        assert not steps._retired(self.live(indexes, alias))

    def test_a_former_index_can_be_promoted_again_until_it_is_removed(self, indexes: SearchIndexes) -> None:
        alias, second = f"alias{next(_numbers)}", self.staged(indexes)
        first = self.live(indexes, alias)
        assert indexes.swap(alias, indexes.alias(alias), second)
        assert indexes.swap(alias, indexes.alias(alias), first)
        assert not indexes.remove(first, OWNER)
        assert indexes.remove(second, OWNER)
        assert indexes.alias(alias).indexes == (first,)

    def live(self, indexes: SearchIndexes, alias: str) -> str:
        """A new index under that alias."""
        index = self.staged(indexes)
        assert indexes.swap(alias, AliasState(), index)
        return index

    def test_versions_of_deleted_documents_are_forgotten_only_when_the_run_has_finished(
        self, indexes: SearchIndexes
    ) -> None:
        index = self.staged(indexes, ("a", 1))
        indexes.restore(index, PLAN)
        indexes.finish(index, PLAN)
        assert indexes.count(index) == 1
