"""Generations: one parsing is current, only nodes that have it run it, and the way back is a step forward."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

import pytest

from holdfast.errors import Refused, StoreUnavailable, UsageError
from holdfast.flow.generations import CURRENT, FollowedGeneration, Generation, Generations, follow, generations_of
from holdfast.leases.columns import OutlineRow
from holdfast.leases.lease import Commit, Json, Key, Lease
from holdfast.leases.store import Outcome, Swap
from holdfast.leases.transitions import stamped
from holdfast.leases.writes import until_answered
from holdfast.stores.memory import MemoryStore
from holdfast.testing.worlds import make_world

FIRST = Generation(1, "aaa", {"format": "text"}, "replica1")
EDITED = Generation(1, "ccc", {"format": "jsonl"}, "replica1")
SECOND = Generation(2, "bbb", {"format": "parquet"}, "replica2")


class CountingStore(MemoryStore):
    """Counts the calls that read and write rows."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def get(self, keys: Sequence[Key]) -> list[Lease | None]:
        self.calls["get"] += 1
        return super().get(keys)

    def swap(self, swaps: Sequence[Swap]) -> list[Outcome]:
        self.calls["swap"] += 1
        return super().swap(swaps)


@pytest.fixture
def generations() -> Generations:
    store = MemoryStore()
    store.open()
    ids = map(str, itertools.count())
    return Generations(store, lambda: next(ids), "orders")


def test_the_first_that_is_registered_is_current(generations: Generations) -> None:
    generations.register(FIRST, switch=False)
    generations.register(FIRST, switch=False)
    assert generations.current() == (1, "aaa")
    assert [generation.number for generation in generations.list()] == [1]
    assert generations.show(1).settings == {"format": "text"}


def test_a_later_one_waits_until_it_is_switched_to(generations: Generations) -> None:
    generations.register(FIRST, switch=False)
    generations.register(SECOND, switch=False)
    assert generations.current() == (1, "aaa")
    generations.switch(2)
    assert generations.current() == (2, "bbb")


def test_a_later_one_becomes_current_by_itself_if_the_setting_says_so(generations: Generations) -> None:
    generations.register(FIRST, switch=True)
    generations.register(SECOND, switch=True)
    generations.register(FIRST, switch=True)
    assert generations.current() == (2, "bbb")


def test_changed_parsing_under_an_old_number_is_refused(generations: Generations) -> None:
    generations.register(FIRST, switch=True)
    assert generations.seal(FIRST)
    with pytest.raises(Refused, match="Raise `generation`"):
        generations.register(EDITED, switch=True)
    assert generations.current() == (1, "aaa")


def test_a_generation_in_which_nothing_was_committed_can_be_changed(generations: Generations) -> None:
    generations.register(FIRST, switch=True)
    assert generations.register(EDITED, switch=False) == (1, "ccc")
    assert generations.current() == (1, "ccc")
    assert generations.show(1).settings == {"format": "jsonl"}
    assert not generations.seal(FIRST), "the node with the former file must not commit"
    assert generations.seal(EDITED)
    with pytest.raises(Refused, match="Raise `generation`"):
        generations.register(FIRST, switch=True)


def test_a_node_whose_file_was_replaced_stops_and_the_other_works_also_the_other_way_round() -> None:
    store, world = MemoryStore(), make_world("a")
    store.open()
    generations = Generations(store, world.new_id, "orders")
    former = follow(generations, generations, FIRST, world, switch=True, patience=0.0)
    latter = follow(generations, generations, EDITED, world, switch=True, patience=0.0)
    assert (former.current(), latter.current()) == (None, 1)
    assert not former.seal(1)
    generations.register(FIRST, switch=True)
    assert (former.current(), latter.current()) == (1, None)
    assert (latter.seal(1), former.seal(1), former.seal(1)) == (False, True, True)


def test_a_generation_is_sealed_with_one_write_and_read_no_more_by_the_node_that_sealed_it() -> None:
    store, world = CountingStore(), make_world("a")
    store.open()
    generations = Generations(store, world.new_id, "orders")
    followed = follow(generations, generations, FIRST, world, switch=True, patience=0.0)
    other = follow(generations, generations, FIRST, world, switch=True, patience=0.0)
    store.calls.clear()
    assert all(followed.seal(1) for _ in range(100))
    assert store.calls["swap"] == 1
    assert other.seal(1)
    assert store.calls["swap"] == 1, "the second node only looks"
    store.calls.clear()
    assert [followed.current() for _ in range(10)] == [1] * 10
    assert store.calls == {"get": 10}, "one row per pass, as before"


class CrowdedStore(CountingStore):
    """Before a swap arrives, another node has written the row, that many times."""

    others = 0

    def __init__(self, change: Callable[[Lease], Lease]) -> None:
        super().__init__()
        self._change = change

    def swap(self, swaps: Sequence[Swap]) -> list[Outcome]:
        if self.others:
            self.others -= 1
            for swap in swaps:
                (row,) = MemoryStore.get(self, [swap.lease.id])
                assert row is not None
                super().swap([Swap(row.version, stamped(row, self._change(row), f"other {self.others}"))])
        return super().swap(swaps)


def test_a_node_that_another_one_was_faster_than_finds_the_seal_and_writes_nothing() -> None:
    store = CrowdedStore(lambda row: replace(row, progress=replace(row.progress, position=None)))
    store.open()
    generations = Generations(store, map(str, itertools.count()).__next__, "orders")
    generations.register(FIRST, switch=True)
    store.others = 1
    version = _version(store)
    assert generations.seal(FIRST)
    assert _version(store) == version + 1, "the other node's write"


def test_a_node_that_cannot_seal_among_many_others_waits_and_goes_on() -> None:
    store, world = CrowdedStore(lambda row: row), make_world("a")
    store.open()
    generations = Generations(store, world.new_id, "orders")
    followed = follow(generations, generations, FIRST, world, switch=True, patience=0.0)
    store.others = 50
    with pytest.raises(StoreUnavailable, match="other writers changed the row every time"):
        followed.seal(1)
    assert until_answered(world, "store", lambda: followed.seal(1))
    assert store.others == 0


def _version(store: MemoryStore) -> int:
    (row,) = store.get([Key(generations_of("orders"), "", "0000000001")])
    assert row is not None
    return row.version


def test_the_generation_of_an_earlier_version_counts_as_sealed(generations: Generations) -> None:
    generations._added("0000000001", asdict(FIRST))
    with pytest.raises(Refused, match="Raise `generation`"):
        generations.register(EDITED, switch=True)


class FormerNode:
    """A node of the version before: it does not seal, and follows the digest in the row of the current generation."""

    def __init__(self, generations: Generations, mine: Generation) -> None:
        self.digest = mine.digest
        self._generations = generations
        assert generations._added(f"{mine.number:010d}", asdict(mine))["digest"] == mine.digest
        generations._added(CURRENT, {"number": mine.number, "digest": mine.digest})

    @property
    def works(self) -> bool:
        return bool(self._generations._rows.show(CURRENT).progress.state["digest"] == self.digest)


def a_row(commit: Commit, run: str = "") -> Lease:
    return Lease("orders", "p1", run, commit=commit)


@pytest.mark.parametrize("run", ["", "rewind-1"])
def test_what_a_node_of_the_version_before_has_committed_keeps_the_parsing(generations: Generations, run: str) -> None:
    generations.register(FIRST, switch=True)
    former = FormerNode(generations, FIRST)
    generations._store.add([a_row(Commit(1, 1, "", "c1"), run)])
    with pytest.raises(Refused, match="Raise `generation`"):
        generations.register(EDITED, switch=True)
    assert former.works
    assert generations.current() == (1, "aaa")
    assert generations.seal(FIRST)


def test_a_node_of_the_version_before_lets_go_of_a_generation_that_is_replaced(generations: Generations) -> None:
    generations.register(FIRST, switch=True)
    former = FormerNode(generations, FIRST)
    generations._store.add([a_row(Commit(7, 1, "", "c7", switched_at=7))])
    generations.register(EDITED, switch=True)
    assert not former.works


def test_commits_are_looked_for_when_no_node_of_the_version_before_works_any_more() -> None:
    class Watched(MemoryStore):
        def outline(self, pipeline: str, run: str | None = "") -> list[OutlineRow]:
            seen.append(former.works)
            return super().outline(pipeline, run)

    store, seen = Watched(), list[bool]()
    store.open()
    generations = Generations(store, map(str, itertools.count()).__next__, "orders")
    generations.register(FIRST, switch=True)
    former = FormerNode(generations, FIRST)
    generations.register(EDITED, switch=True)
    assert seen == [False]


def test_what_a_node_of_the_version_before_commits_while_another_one_begins_to_replace_it_is_seen() -> None:
    """A replacement that was interrupted is undone by one that finds a commit, and must not be completed afterwards."""

    class Interrupted(MemoryStore):
        held_up = True

        def outline(self, pipeline: str, run: str | None = "") -> list[OutlineRow]:
            found = super().outline(pipeline, run)
            if self.held_up:
                self.held_up = False
                self.add([a_row(Commit(1, 1, "", "c1"))])
                with pytest.raises(Refused):
                    generations.register(EDITED, switch=True)
                assert former.works
            return found

    store = Interrupted()
    store.open()
    generations = Generations(store, map(str, itertools.count()).__next__, "orders")
    generations.register(FIRST, switch=True)
    former = FormerNode(generations, FIRST)
    with pytest.raises(Refused):
        generations.register(EDITED, switch=True)
    assert generations.show(1).digest == "aaa"


def test_a_replacement_that_was_cut_short_is_completed_by_the_next_node_with_that_file() -> None:
    store = CountingStore()
    store.open()
    generations = Generations(store, map(str, itertools.count()).__next__, "orders")
    generations.register(FIRST, switch=True)
    former = FormerNode(generations, FIRST)
    generations._name_current(1, "ccc")
    assert generations.current() == (1, "aaa"), "nodes of this version go on"
    assert not former.works
    generations.register(EDITED, switch=True)
    assert generations.current() == (1, "ccc")


def test_a_replacement_that_was_cut_short_is_taken_back_by_the_next_node_with_the_parsing_that_was_sealed(
    generations: Generations,
) -> None:
    generations.register(FIRST, switch=True)
    former = FormerNode(generations, FIRST)
    generations._name_current(1, "ccc")
    assert generations.seal(FIRST)
    generations.register(FIRST, switch=True)
    assert former.works


def test_a_generation_before_the_current_one_keeps_its_parsing(generations: Generations) -> None:
    for generation in (FIRST, SECOND):
        generations.register(generation, switch=True)
    with pytest.raises(Refused, match="Raise `generation`"):
        generations.register(EDITED, switch=True)


def test_the_way_back_is_the_old_parsing_under_the_next_number(generations: Generations) -> None:
    for generation in (FIRST, SECOND):
        generations.register(generation, switch=True)
    restored = generations.back("me")
    assert (restored.number, restored.digest) == (3, "aaa")
    assert generations.current() == (3, "aaa")
    forth = generations.back("me")
    assert (forth.number, forth.digest) == (4, "bbb")


def test_there_is_no_way_back_from_the_first(generations: Generations) -> None:
    generations.register(FIRST, switch=True)
    with pytest.raises(UsageError, match="no other parsing"):
        generations.back("me")


def test_nothing_goes_back_to_a_lower_number_or_to_one_that_does_not_exist(generations: Generations) -> None:
    for generation in (FIRST, SECOND):
        generations.register(generation, switch=True)
    with pytest.raises(UsageError, match="generation back"):
        generations.switch(1)
    with pytest.raises(UsageError, match="no generation 9"):
        generations.switch(9)


def test_a_node_makes_known_again_what_the_store_has_lost() -> None:
    store, world = MemoryStore(), make_world("a")
    store.open()
    generations = Generations(store, world.new_id, "orders")
    generations.register(FIRST, switch=False)
    followed = follow(generations, generations, SECOND, world, switch=True, patience=0.0)
    assert followed.current() == 2
    lost = store.get([Key(generations_of("orders"), "", key) for key in (CURRENT, "0000000002")])
    store.remove([row for row in lost if row is not None])
    assert followed.current() == 2
    assert generations.current() == (2, "bbb")
    assert generations.show(2).digest == "bbb"


def test_a_node_that_starts_while_a_later_generation_becomes_current_does_not_go_back() -> None:
    store = MemoryStore()
    store.open()
    ids = map(str, itertools.count())

    class Raced(Generations):
        def _added(self, key: str, state: dict[str, Json], position: Json = None) -> dict[str, Json]:
            stored = super()._added(key, state, position)
            if key == CURRENT and stored["number"] == 1:
                shared.switch(3)
            return stored

    shared = Generations(store, lambda: next(ids), "orders")
    for generation in (FIRST, Generation(3, "ccc")):
        shared.register(generation, switch=False)
    assert Raced(store, lambda: next(ids), "orders").register(SECOND, switch=True) == (3, "ccc")
    assert shared.current() == (3, "ccc")


def test_a_parsing_is_known_again_under_any_number_that_it_has(generations: Generations) -> None:
    for generation in (FIRST, SECOND):
        generations.register(generation, switch=True)
    followed = FollowedGeneration(generations, generations, FIRST, generations.current())
    assert followed.current() is None
    restored = generations.back("me")
    assert followed.current() == restored.number
    assert [followed.has_parsing_of(number) for number in (1, 2, restored.number, 9)] == [True, False, True, False]
