"""Scans that are repeated offer the store only what is new, and lose nothing by it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.sources.objects import listing
from holdfast.sources.objects.source import ObjectsSource
from tests.unit.sources.shelf import Shelf


def scan(source: ObjectsSource, state: dict[str, Any]) -> list[str]:
    """What a scan offers to the store. The state is kept, as after a scan that ended well."""
    return [found.key for found in source.discover(state) if found is not None]


def put(shelf: Shelf, count: int, name: str = "{:05}") -> None:
    shelf.put(*(name.format(number) for number in range(count)))


def test_what_was_found_is_not_offered_again_and_a_new_object_is() -> None:
    shelf, state = Shelf(), dict[str, Any]()
    put(shelf, 5_000)
    source = shelf.source(scan="follow")
    assert len(scan(source, state)) == 5_000
    assert scan(source, state) == []
    shelf.put("02500x")
    offered = scan(source, state)
    assert "landing|02500x" in offered
    assert len(offered) <= listing.LONGEST_RUN
    assert scan(source, state) == []


def test_a_scan_that_failed_is_repeated_in_full() -> None:
    shelf, state = Shelf(), dict[str, Any]()
    put(shelf, 1_000)
    source = shelf.source(scan="follow")
    before = copy.deepcopy(state)
    scan(source, state)
    assert len(scan(source, before)) == 1_000, "the state of a run that fails is not kept"


def test_a_node_that_was_not_the_last_to_scan_skips_nothing() -> None:
    shelf, state = Shelf(), dict[str, Any]()
    put(shelf, 1_000)
    a, b = shelf.source(scan="follow"), shelf.source(scan="follow")
    scan(a, state)
    assert len(scan(b, state)) == 1_000
    assert len(scan(a, state)) == 1_000


def test_an_overwritten_object_is_new_where_versions_are_read() -> None:
    shelf, state = Shelf(), dict[str, Any]()
    shelf.put("a", data=b"1")
    source = shelf.source(scan="follow", reread=True)
    scan(source, state)
    shelf.put("a", data=b"2")
    assert len(scan(source, state)) == 1


@given(
    scans=st.lists(st.sets(st.integers(0, 40)), min_size=1, max_size=6),
    fails=st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_whatever_comes_and_goes_every_object_was_offered_in_a_scan_that_ended_well(
    scans: list[set[int]], fails: list[bool]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "RUN", 4)
        patch.setattr(listing, "LONGEST_RUN", 6)
        shelf, state, offered = Shelf(), dict[str, Any](), set[str]()
        source = shelf.source(scan="follow")
        for there, failed in zip(scans, fails, strict=False):
            shelf.items.clear()
            shelf.put(*map(str, there))
            kept = copy.deepcopy(state)
            listed = scan(source, state)
            if failed:
                state = kept
            else:
                offered |= set(listed)
                assert {f"landing|{number}" for number in there} <= offered
