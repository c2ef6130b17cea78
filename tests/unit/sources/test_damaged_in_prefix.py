"""A damaged object below a prefix: from the first retry on it is a dead letter, and the other objects are read."""

from __future__ import annotations

import gzip
from dataclasses import replace
from typing import Any

import pytest

from holdfast.flow.batch import Batch, Close, Cut, Limits
from holdfast.flow.fault import BATCH, DAMAGE, decode_fault
from holdfast.flow.source import FAULT_COLUMN
from holdfast.leases.lease import Counts, History, Lease, Progress
from holdfast.sources.objects import PLUGIN
from holdfast.sources.objects.codecs import codec_of
from holdfast.sources.objects.source import ObjectsSource
from holdfast.sources.objects.task_rows import ObjectRows
from tests.unit.sources.shelf import Shelf

WHOLE = gzip.compress(b"".join(b'{"n":%d}\n' % number for number in range(50_000)))
HALF = WHOLE[: len(WHOLE) // 2]


def _source(shelf: Shelf, on_corrupt: str) -> tuple[ObjectsSource, Lease]:
    source = shelf.source(
        partition_by="prefix", after_success="delete", scan={"interval": "1h"}, on_corrupt=on_corrupt, codec="newline"
    )
    (found,) = [p for p in source.discover({}) if p is not None and p.key == "landing|a/"]
    return source, Lease("orders", found.key, spec=found.spec)


def _read(source: ObjectsSource, lease: Lease, end: Any = None) -> tuple[dict[str, int], list[str], Any]:
    """Good rows by object, kinds of the faults, and where the batch ends."""
    (plan,) = source.plan([lease], Limits())
    assert isinstance(plan, Cut)
    cut = plan if end is None else replace(plan, end=end)
    splits = source.splits(Batch("b", lease, source.name(lease), cut))
    read = ObjectRows([splits], codec_of("newline", None, 1 << 20), "auto", None)
    names = {split.base >> 40: split.ref.path[-1] for split in splits}
    rows: dict[str, int] = {}
    kinds = []
    for portion in read.rows(0):
        for item, fault in zip(
            portion.column("_item").to_pylist(), portion.column(FAULT_COLUMN).to_pylist(), strict=True
        ):
            if fault is None:
                name = names[item >> 40]
                rows[name] = rows.get(name, 0) + 1
            else:
                kinds.append(decode_fault(fault).kind)
    return rows, kinds, plan.end


@pytest.fixture
def shelf() -> Shelf:
    shelf = Shelf()
    shelf.put("a/1", "a/3", data=WHOLE)
    shelf.put("a/2", data=HALF)
    return shelf


@pytest.mark.parametrize(("on_corrupt", "of_the_damaged"), [("drop", False), ("keep", True)])
def test_from_the_first_retry_on_a_damaged_object_is_a_letter_and_the_others_are_read(
    shelf: Shelf, on_corrupt: str, of_the_damaged: bool
) -> None:
    source, lease = _source(shelf, on_corrupt)
    assert _read(source, lease)[1] == [BATCH], "perhaps the object is well, and only what came of it was not"

    retried = replace(lease, history=History(attempts=1))
    rows, kinds, end = _read(source, retried)
    assert kinds == [DAMAGE]
    assert (rows["1"], rows["3"]) == (50_000, 50_000)
    assert ("2" in rows) is of_the_damaged

    # The same batch made again after its staged files were lost: by then no attempt is counted any more.
    damaged = source.damaged(end, "it ends too early")
    assert _read(source, lease, end=damaged)[:2] == (rows, kinds)


def test_a_prefix_goes_on_behind_a_damaged_object_which_stays_where_it_is(shelf: Shelf) -> None:
    source, lease = _source(shelf, "drop")
    _, _, end = _read(source, replace(lease, history=History(attempts=1)))
    after = replace(lease, progress=Progress(position=source.damaged(end, "half"), counts=Counts(dead=1)))
    assert source.plan([after], Limits()) == [Close(3600.0)]
    assert "a/2" in shelf.items
    shelf.put("a/4", data=WHOLE)
    rows, kinds, _ = _read(source, after)
    assert (list(rows.values()), kinds) == ([50_000], [])


def test_validate_takes_what_the_documents_describe() -> None:
    PLUGIN.config(buckets=[{"bucket": "logs"}], partition_by="prefix", after_success="delete", on_corrupt="keep")
