"""Every format keeps the promises of formats; text and SequenceFiles have files of their own."""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, get_args

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

from holdfast.flow.format import Format
from holdfast.formats import orc
from holdfast.formats._columnar import Compression
from holdfast.formats.jsonl import Jsonl
from holdfast.formats.orc import Orc
from holdfast.formats.parquet import Parquet
from holdfast.formats.raw import Raw
from holdfast.testing.formats import KAFKA_SCHEMA, VALUES, FormatBehaviour, comparable, kafka_rows
from tests.unit.formats.test_formats import unpacked

JSON_VALUES = (
    b'{"a":1}',
    '{"é":"漢 🙂"}'.encode(),
    b'{"a":"' + b"x" * 300_000 + b'"}',
    b'[1,"\\n and \\\\"]',
    b"1" * 128,
    b'""',
    b"null",
    b' {"a" : "\\ud800"} ',
)


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
class TestJsonl(FormatBehaviour):
    unfit = 10

    @pytest.fixture
    def form(self, compression: Any) -> Format:
        return Jsonl(compression)

    def rows(self, form: Format, values: Sequence[bytes | None] = VALUES) -> pa.RecordBatch:
        return super().rows(form, JSON_VALUES if values is VALUES else values)

    def read_elsewhere(self, form: Format, data: bytes, schema: pa.Schema) -> list[Any]:
        lines = unpacked(form, data).splitlines()
        if schema.names == ["value"]:
            return [{"value": line} for line in lines]
        parsed = [json.loads(line, parse_float=Decimal) for line in lines]
        return [{field.name: _from_json(row.get(field.name), field.type) for field in schema} for row in parsed]


class TestJsonlThatSkips(TestJsonl):
    @pytest.fixture
    def form(self, compression: Any) -> Format:
        return Jsonl(compression, not_json="skip")


@pytest.mark.parametrize("compression", get_args(Compression))
class TestParquet(FormatBehaviour):
    @pytest.fixture
    def form(self, compression: Any) -> Format:
        return Parquet(compression)

    def read_elsewhere(self, form: Format, data: bytes, schema: pa.Schema) -> list[Any]:
        return list(comparable(pq.read_table(io.BytesIO(data))))


class TestRaw(FormatBehaviour):
    only_messages = True

    def make_format(self) -> Format:
        return Raw()


@pytest.mark.parametrize("compression", get_args(orc.Compression))
class TestOrc(FormatBehaviour):
    @pytest.fixture
    def form(self, compression: Any) -> Format:
        return Orc(compression)

    def read_elsewhere(self, form: Format, data: bytes, schema: pa.Schema) -> list[Any]:
        # pyarrow reads nanoseconds.
        return list(comparable(pyarrow.orc.read_table(io.BytesIO(data)).cast(schema)))


def _from_json(value: Any, kind: Any) -> Any:
    """A value as any program would take it from JSON that knows the column's type, `comparable`."""
    types = pa.types
    plain: dict[Any, Callable[[Any], Any]] = {
        types.is_floating: lambda parsed: pa.scalar(float(parsed), kind).as_py(),
        types.is_binary: lambda parsed: base64.b64decode(parsed, validate=True),
        types.is_timestamp: dt.datetime.fromisoformat,
        types.is_date: dt.date.fromisoformat,
        types.is_decimal: Decimal,
    }
    if value is None:
        return None
    for is_kind, convert in plain.items():
        if is_kind(kind):
            return comparable(convert(value))
    if types.is_list(kind):
        return [_from_json(inner, kind.value_type) for inner in value]
    if types.is_struct(kind):
        return {field.name: _from_json(value.get(field.name), field.type) for field in kind}
    if types.is_map(kind):
        return [[name, _from_json(inner, kind.item_type)] for name, inner in value.items()]
    return value


def test_raw_keeps_all_that_kafka_says_but_topic_and_partition() -> None:
    assert Raw().keeps == set(KAFKA_SCHEMA.names) - {"topic", "partition"}
    assert Parquet().keeps == set(KAFKA_SCHEMA.names)
    assert kafka_rows(VALUES).column("value").null_count == 1
