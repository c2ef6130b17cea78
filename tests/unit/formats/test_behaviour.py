"""Every format keeps the promises of formats; text and SequenceFiles have files of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import pyarrow as pa
import pytest

from holdfast.flow.format import Format
from holdfast.formats import orc
from holdfast.formats._parquet import Compression
from holdfast.formats.jsonl import Jsonl
from holdfast.formats.orc import Orc
from holdfast.formats.parquet import Parquet
from holdfast.formats.raw import Raw
from holdfast.testing.formats import KAFKA_SCHEMA, VALUES, FormatBehaviour, kafka_rows


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
class TestJsonl(FormatBehaviour):
    @pytest.fixture
    def form(self, compression: Any) -> Format:
        return Jsonl(compression)

    def rows(self, form: Format, values: Sequence[bytes | None] = VALUES) -> pa.RecordBatch:
        # What is no JSON on one line is not promised to come back as it was.
        return super().rows(form, [value for value in values if value is not None and b"\n" not in value])


@pytest.mark.parametrize("compression", get_args(Compression))
class TestParquet(FormatBehaviour):
    @pytest.fixture
    def form(self, compression: Any) -> Format:
        return Parquet(compression)


class TestRaw(FormatBehaviour):
    def make_format(self) -> Format:
        return Raw()


@pytest.mark.parametrize("compression", get_args(orc.Compression))
class TestOrc(FormatBehaviour):
    @pytest.fixture
    def form(self, compression: Any) -> Format:
        return Orc(compression)


def test_raw_keeps_all_that_kafka_says_but_topic_and_partition() -> None:
    assert Raw().keeps == set(KAFKA_SCHEMA.names) - {"topic", "partition"}
    assert Parquet().keeps == set(KAFKA_SCHEMA.names)
    assert kafka_rows(VALUES).column("value").null_count == 1
