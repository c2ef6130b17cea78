"""Bodies of bulk requests: within their bounds, and nothing lost when they are cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from holdfast.flow.batch import Name
from holdfast.flow.staging import StagedBatch
from holdfast.sinks.opensearch.bulk_body import Body, Entries, OpenBody


def entries(lines: list[bytes], batch_id: str = "b1") -> Entries:
    batch = StagedBatch(batch_id, "orders", "in|a", Name("in", "a"), 3, 1)
    borders = np.concatenate([[0], np.cumsum([len(line) for line in lines])]).astype(np.int64)
    items = np.arange(len(lines))
    return Entries(batch, b"".join(lines), borders, items, pa.array(lines, pa.binary()))


LINES = st.lists(st.integers(1, 30).map(lambda size: b"x" * size + b"\n"), min_size=1, max_size=30)


@given(st.lists(LINES, max_size=5), st.integers(1, 100), st.integers(1, 10))
def test_bodies_hold_everything_in_order_within_both_bounds(
    portions: list[list[bytes]], most_bytes: int, most: int
) -> None:
    opened, bodies = OpenBody(most_bytes, most), list[Body]()
    for portion in portions:
        bodies += list(opened.add(entries(portion)))
    bodies += list(opened.rest())
    assert b"".join(body.bytes() for body in bodies) == b"".join(b"".join(portion) for portion in portions)
    for body in bodies:
        assert 0 < len(body) <= most
        assert body.size <= most_bytes or len(body) == 1
        assert body.size == len(body.bytes())


@given(st.lists(LINES, min_size=1, max_size=4), st.data())
def test_halves_and_choices_keep_the_rows_that_they_name(portions: list[list[bytes]], data: Any) -> None:
    body, lines = Body([entries(portion) for portion in portions]), [line for portion in portions for line in portion]
    first, second = body.halves()
    assert first.bytes() + second.bytes() == body.bytes()
    assert abs(len(first) - len(second)) <= 1
    indexes = sorted(data.draw(st.sets(st.integers(0, len(lines) - 1))))
    chosen = body.chosen(indexes)
    assert chosen.bytes() == b"".join(lines[index] for index in indexes)
    assert [row for part in chosen.parts for row in part.documents.to_pylist()] == [lines[index] for index in indexes]


def test_what_waits_of_a_batch_can_be_forgotten() -> None:
    opened = OpenBody(1000, 100)
    for batch_id in ("b1", "b2", "b1"):
        assert not list(opened.add(entries([b"line\n"], batch_id)))
    opened.forget("b1")
    (body,) = opened.rest()
    assert [part.batch.id for part in body.parts] == ["b2"]
