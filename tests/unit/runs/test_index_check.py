"""Rows compared with documents."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from holdfast.flow.tables import TableRow
from holdfast.runs.index_check import IndexCheck
from holdfast.runs.promotion import Promotion
from tests.simulation.live_tables import document
from tests.simulation.promotion import Arena, StagedSink


def indexed(*, has_versions: bool = True) -> tuple[Arena, Promotion]:
    arena = Arena(random.Random(0), has_versions=has_versions)
    arena.finish()
    arena.stop_writing()
    promotion = Promotion("catalog", arena.tables, StagedSink(arena.server), arena.server)
    return arena, promotion


def test_an_index_that_agrees_with_its_table() -> None:
    arena, promotion = indexed()
    found = IndexCheck(promotion).compare("users")
    assert (found.rows, found.documents, found.compared) == (len(arena.tables.rows),) * 3
    assert found.agrees


def test_what_is_missing_different_or_extra_is_found_and_mended() -> None:
    arena, promotion = indexed()
    arena.server.write("people", "stable1", arena.tables.rows["stable1"] + 9, None)
    arena.server.write("people", "stable2", arena.tables.rows["stable2"], '{"key": "other"}')
    # The time of the last change has gone back: the index refuses the row's own version for ever.
    arena.server.write("people", "stable3", arena.tables.rows["stable3"] + 9, '{"key": "future"}')
    arena.server.write("people", "nobody", 5, "{}")
    found = IndexCheck(promotion).compare("users")
    assert (found.missing, found.different, found.extra, found.mended) == (1, 2, 1, 0)
    assert sorted(found.examples) == ["nobody", "stable1", "stable2", "stable3"]

    IndexCheck(promotion, repair=True).compare("users")
    found = IndexCheck(promotion).compare("users")
    assert found.agrees
    assert found.documents == found.rows
    texts = {key: text for key, (_, text) in arena.found().items()}
    assert texts == {key: document(key, version) for key, version in arena.tables.rows.items()}


def test_a_document_that_changes_while_it_is_mended_stays_where_rows_have_no_versions() -> None:
    arena, promotion = indexed(has_versions=False)
    arena.server.write("people", "stable1", None, '{"key": "wrong"}')
    arena.server.write("people", "stable2", None, '{"key": "wrong"}')
    find, newer = arena.tables.find, document("stable2", 99)

    def changing(entity: str, document_ids: Sequence[str]) -> Mapping[str, TableRow]:
        found = find(entity, document_ids)
        if "stable2" in found:
            # An application changes the row, and then the document.
            arena.tables.rows["stable2"] = 99
            arena.server.write("people", "stable2", None, newer)
        return found

    arena.tables.find = changing  # type: ignore[method-assign]
    found = IndexCheck(promotion, repair=True).compare("users")
    assert (found.different, found.mended) == (2, 1)
    assert arena.found()["stable2"][1] == newer
    arena.tables.find = find  # type: ignore[method-assign]
    assert IndexCheck(promotion).compare("users").agrees


def test_a_row_that_changes_while_it_is_compared_is_left_out_where_rows_have_no_versions() -> None:
    arena, promotion = indexed(has_versions=False)
    find = arena.tables.find
    arena.server.write("people", "stable1", None, document("stable1", 99))

    def changing(entity: str, document_ids: Sequence[str]) -> Mapping[str, TableRow]:
        arena.tables.rows["stable1"] = 99
        return find(entity, document_ids)

    arena.tables.find = changing  # type: ignore[method-assign]
    assert IndexCheck(promotion, repair=True).compare("users").agrees
    assert arena.found()["stable1"][1] == document("stable1", 99)


def test_a_share_of_the_rows_is_compared_always_the_same() -> None:
    _, promotion = indexed()
    compared = [IndexCheck(promotion, share=0.5).compare("users").compared for _ in range(2)]
    assert compared[0] == compared[1]
    assert 0 < compared[0] < promotion.tables.counts(["users"])["users"]
