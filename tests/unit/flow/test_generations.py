"""Generations: one parsing is current, only nodes that have it run it, and the way back is a step forward."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from holdfast.errors import Refused, UsageError
from holdfast.flow.generations import CURRENT, FollowedGeneration, Generation, Generations, follow, generations_of
from holdfast.leases.lease import Json, Key
from holdfast.stores.memory import MemoryStore
from holdfast.testing.worlds import make_world

FIRST = Generation(1, "aaa", {"format": "text"}, "replica1")
SECOND = Generation(2, "bbb", {"format": "parquet"}, "replica2")


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
    with pytest.raises(Refused, match="Raise `generation`"):
        generations.register(replace(FIRST, digest="ccc"), switch=True)


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
        def _added(self, key: str, state: dict[str, Json]) -> dict[str, Json]:
            stored = super()._added(key, state)
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
