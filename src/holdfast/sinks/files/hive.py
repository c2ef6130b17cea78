"""The statement that makes a final place a partition of a Hive table. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence


def statement(table: str, topic: str, place: str, location: str, columns: Sequence[str] = ()) -> str:
    """`ALTER TABLE … ADD IF NOT EXISTS PARTITION (…) LOCATION '…'`.

    Columns are told by the place (`dt=2026-01-01`) or by `columns`, one for each name of the place. Everything that
    comes from data is quoted. Raises `ValueError` when there is no column for a name.
    """
    pairs = [_pair(name, place, columns, number) for number, name in enumerate(place.split("/"))]
    spec = ", ".join(f"{_identifier(column)}={_text(value)}" for column, value in pairs)
    return f"ALTER TABLE {_table(table, topic)} ADD IF NOT EXISTS PARTITION ({spec}) LOCATION {_text(location)}"


def _pair(name: str, place: str, columns: Sequence[str], number: int) -> tuple[str, str]:
    if columns:
        if len(columns) != place.count("/") + 1:
            raise ValueError(
                f"the place {place} has {place.count('/') + 1} names, and there are {len(columns)} columns"
            )
        return columns[number], name.partition("=")[2] or name
    column, equals, value = name.partition("=")
    if not (column and equals):
        raise ValueError(f"the name {name} of the place {place} tells no column; set `columns`")
    return column, value


def _table(table: str, topic: str) -> str:
    filled = table.replace("{topic}", re.sub(r"[^A-Za-z0-9_]", "_", topic))
    return ".".join(_identifier(part) for part in filled.split("."))


def _identifier(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
