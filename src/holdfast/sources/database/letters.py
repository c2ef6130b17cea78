"""Dead letters of tables as rows again: a letter holds the columns of its row, as they were read."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from holdfast.flow.fault import COLUMNS
from holdfast.flow.letter import Letter
from holdfast.sources.database.reading import DATA_SCHEMA


class TableRebuilder:
    """Makes rows of letters. A `Rebuilder`."""

    @property
    def keeps(self) -> frozenset[str] | None:
        return None

    def fields(self) -> Any:
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(DATA_SCHEMA)

    def refusal(self, letter: Letter) -> str | None:
        if letter.form == COLUMNS:
            return None
        return "it does not hold its row as it was read; `holdfast reindex verify --repair` writes the row of today"

    def row(self, letter: Letter) -> Any:
        columns = json.loads(letter.record())
        if not isinstance(columns, dict):
            raise ValueError("it is not a row of a table")  # noqa: TRY004 - as the interface says
        try:
            return pa.RecordBatch.from_pylist([columns], schema=DATA_SCHEMA)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise ValueError(f"it is not a row of a table: {error}") from error
