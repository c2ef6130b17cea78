"""Entries of a handful of rows, in plain Python.

A portion of an object with one record would cost Arrow a third of a millisecond in calls, of which none does any work;
here it takes a twentieth of that. Only for the plainest form and documents; everything else is Arrow's.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np

from holdfast.flow.staging import StagedBatch
from holdfast.formats._arrays import binary, is_bytes
from holdfast.sinks.opensearch.bulk_body import Entries
from holdfast.sinks.opensearch.document_ids import Numbers, origin_of
from holdfast.sinks.opensearch.fields import VALUE

FEW = 8
"""Rows up to which this is the quicker way."""


def few_entries(action: str, batch: StagedBatch, numbers: Numbers, items: Any, rows: Any) -> Entries | None:
    """The rows with ids by origin, each under this action; None if they are not as plain as this needs them."""
    if not 0 < rows.num_rows <= FEW or rows.schema.names != [VALUE] or not is_bytes(rows.schema.types[0]):
        return None
    documents, wanted = binary(rows.column(0)), items.to_pylist()
    values = documents.to_pylist()
    if not all(value is not None and value[:1] == b"{" and b"\n" not in value for value in values):
        return None
    if not numbers.go_up(wanted):
        return None
    head = f'{{"{action}":{{"_id":"{origin_of(batch)}'
    lines = [f'{head}{item}"}}}}\n'.encode() + value + b"\n" for item, value in zip(wanted, values, strict=True)]
    borders = np.array([0, *accumulate(map(len, lines))], np.int64)
    return Entries(batch, b"".join(lines), borders, np.array(wanted), documents, batch.raw_form(is_value=True))
