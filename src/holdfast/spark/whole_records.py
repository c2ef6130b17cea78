"""Records from which processors make several rows: a sink stages all rows of a record, or keeps all as dead letters.

So such a record can be sent again, and none of its rows is written twice. That needs all rows of a record in one task
(`StagedBatch.whole_records`), and portions of whole records, as `CommitLimit` admits them. If the rows of a record are
separated nevertheless, a row that is refused after others were staged becomes a letter that cannot be sent again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.flow.fault import ROW, Fault
from holdfast.flow.staging import RefusesRecords, StagedBatch, Staging

SIBLING = "another row of its record was refused: "

FolderRows = tuple[str, Any, Any]
"""Rows of a sink: their output folder, their items and their columns."""


class WholeRecords:
    """The records that one sink keeps as dead letters with all of their rows, in one attempt of one task."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._withheld: defaultdict[str, dict[int, str]] = defaultdict(dict)
        """By batch: these records, with the reason."""
        self._highest: dict[str, int] = {}
        """By batch: rows of records up to this one may have been staged."""

    def look_at(self, batch: StagedBatch, rows: Iterable[FolderRows], faults: Sequence[tuple[int, Fault]]) -> None:
        """Find the records of a portion that are withheld: a row has a fault, or the sink cannot hold it.

        Called before anything of the portion is staged. Does nothing for other sinks and batches.
        """
        if not self._applies_to(batch):
            return
        withheld, highest = self._withheld[batch.id], self._highest.get(batch.id, -1)
        for item, reason in self._refusals(batch, rows, faults):
            if item > highest:
                withheld.setdefault(item, reason)

    def staged(self, batch: StagedBatch, items: Any) -> None:
        """Note that the portion with these items was staged; there is at least one item."""
        self._highest[batch.id] = max(self._highest.get(batch.id, -1), int(items.max()))

    def write(self, batch: StagedBatch, items: Any, rows: Any, output_folder: str) -> int:
        """As `Staging.write`; rows of withheld records become dead letters."""
        withheld, staging = self._withheld.get(batch.id), self._staging
        if not withheld or not isinstance(staging, RefusesRecords):
            return staging.write(batch, items, rows, output_folder)
        dead = np.isin(np.asarray(items), list(withheld))
        count = self._withhold(staging, batch, items.filter(pa.array(dead)), rows.filter(pa.array(dead)), output_folder)
        good = pa.array(~dead)
        return count + staging.write(batch, items.filter(good), rows.filter(good), output_folder)

    def _withhold(self, staging: RefusesRecords, batch: StagedBatch, items: Any, rows: Any, output_folder: str) -> int:
        refused = staging.refusals(batch, rows, output_folder)
        withheld = self._withheld[batch.id]
        siblings = pa.array([SIBLING + withheld[item] for item in items.to_pylist()], pa.string())
        reasons = siblings if refused is None else pc.coalesce(refused, siblings)
        return staging.withhold(batch, items, rows, reasons, output_folder)

    def bury(self, batch: StagedBatch, faults: Sequence[tuple[int, Fault]]) -> None:
        """As `Staging.bury`; letters of withheld records cover all rows of the record."""
        if not self._applies_to(batch):
            self._staging.bury(batch, faults)
            return
        withheld = self._withheld[batch.id]
        self._staging.bury(batch, [(item, _marked(fault, whole=item in withheld)) for item, fault in faults])

    def _applies_to(self, batch: StagedBatch) -> bool:
        is_whole = batch.several_rows and batch.whole_records and batch.reader is not None
        return is_whole and isinstance(self._staging, RefusesRecords)

    def _refusals(
        self, batch: StagedBatch, rows: Iterable[FolderRows], faults: Sequence[tuple[int, Fault]]
    ) -> Iterable[tuple[int, str]]:
        yield from ((item, fault.reason) for item, fault in faults)
        staging = self._staging
        assert isinstance(staging, RefusesRecords)
        for folder, items, columns in rows:
            reasons = staging.refusals(batch, columns, folder)
            if reasons is not None:
                found = zip(items.to_pylist(), reasons.to_pylist(), strict=True)
                yield from ((item, reason) for item, reason in found if reason is not None)


def _marked(fault: Fault, *, whole: bool) -> Fault:
    return replace(fault, whole=True) if whole else replace(fault, form=ROW)
