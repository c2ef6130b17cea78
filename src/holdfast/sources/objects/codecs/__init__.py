"""Codecs of the source `objects`: how bytes become records."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from holdfast.sources.objects.codecs.codec import Codec
    from holdfast.sources.objects.config import CodecName


def codec_of(name: CodecName, schema: pa.Schema | None, longest: int) -> Codec:
    """The codec with these columns. Raises `Refused` for a schema that it cannot read."""
    from holdfast.sources.objects.codecs import lines

    if name in {"text", "newline"}:
        return lines.Text(longest)
    if name == "jsonl":
        return lines.Jsonl(schema, longest)
    if name == "json":
        from holdfast.sources.objects.codecs.json_list import JsonList

        return JsonList(schema, longest)
    if name == "sequencefile":
        from holdfast.sources.objects.codecs.sequencefile import SequenceFile

        return SequenceFile(schema)
    return _with_schema(name, schema, longest)


def _with_schema(name: CodecName, schema: pa.Schema | None, longest: int) -> Codec:
    assert schema is not None, "settings without a schema are refused"
    if name == "csv":
        from holdfast.sources.objects.codecs.csv import Csv

        return Csv(schema, longest)
    if name == "avro":
        from holdfast.sources.objects.codecs.avro import Avro

        return Avro(schema)
    from holdfast.sources.objects.codecs.parquet import Parquet

    return Parquet(schema)
