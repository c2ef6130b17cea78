"""The processor `parse_json`: columns, or a map, from a column with JSON."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from holdfast.config.plugins import PLAIN_ERROR
from holdfast.errors import Refused
from holdfast.flow.processor import Processor
from holdfast.processors._expressions import FailingOptions, changed, refuse_ours, require, text_of
from holdfast.registry import Plugin

NAME = "parse_json"
_CORRUPT = "_corrupt"


class ParseJsonConfig(FailingOptions):
    """The column with JSON, and the columns to make from it."""

    source: str = Field("value", min_length=1, description="Column with JSON objects.")
    schema_: str | None = Field(
        None,
        alias="schema",
        min_length=1,
        description='Columns to make, in Spark DDL: "id BIGINT, note STRING". Other keys are ignored.',
    )
    destination: str | None = Field(
        None,
        min_length=1,
        description="Column for the result: a struct, or without a schema a map of texts. Without a destination each "
        "field of the schema becomes a column.",
    )
    delete_source: bool = Field(False, description="Remove the column with JSON after this step.")

    @model_validator(mode="after")
    def _has_destination(self) -> Self:
        if self.schema_ is None and self.destination is None:
            raise PydanticCustomError(PLAIN_ERROR, "give a schema for columns, or a destination for a map of texts")
        return self


class ParseJson(Processor):
    """Fails on a row whose text is not a JSON object, or does not fit the schema. Null stays null."""

    name = NAME
    may_fault = True
    keeps_rows = True

    def __init__(self, config: ParseJsonConfig) -> None:
        self._config = config

    def apply(self, frame: Any) -> Any:
        from pyspark.sql import functions as sql

        config = self._config
        require(frame, [config.source], NAME)
        text = text_of(config.source)
        parsed = f"_{NAME}"
        frame = frame.withColumn(parsed, self._parsed(text))
        columns, fits = self._columns(parsed)
        refuse_ours(columns, NAME)
        # Spark parses the first object of a text and ignores what follows.
        is_single = sql.json_array_length(sql.concat(sql.lit("["), text, sql.lit("]"))) == 1
        wrong = text.isNotNull() & (~sql.coalesce(fits, sql.lit(False)) | ~sql.coalesce(is_single, sql.lit(False)))
        reason = sql.when(wrong, sql.lit(f"{NAME}: {config.source} {self._complaint}"))
        drop = [parsed, *([config.source] if config.delete_source else [])]
        return changed(frame, config, columns, reason, drop)

    @property
    def _complaint(self) -> str:
        return "is not a JSON object" if self._config.schema_ is None else "is not a JSON object that fits the schema"

    def _parsed(self, text: Any) -> Any:
        from pyspark.sql import functions as sql

        if self._config.schema_ is None:
            return sql.from_json(text, "map<string,string>")
        fields = _fields(self._config.schema_).add(_CORRUPT, "string")
        return sql.from_json(text, fields, {"columnNameOfCorruptRecord": _CORRUPT})

    def _columns(self, parsed: str) -> tuple[dict[str, Any], Any]:
        """The columns to make, and whether the text fits them."""
        from pyspark.sql import functions as sql

        made, ddl, destination = sql.col(parsed), self._config.schema_, self._config.destination
        if ddl is None:
            return {str(destination): made}, made.isNotNull()
        fits = made.isNotNull() & made[_CORRUPT].isNull()
        if destination is not None:
            return {destination: sql.when(fits, made.dropFields(_CORRUPT))}, fits
        return {name: made[name] for name in _fields(ddl).names}, fits


def _fields(ddl: str) -> Any:
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        fields = StructType.fromDDL(ddl)
    except PySparkException as wrong:
        raise Refused(f"{NAME}: schema {ddl!r} cannot be read: {str(wrong).splitlines()[0]}") from wrong
    if not isinstance(fields, StructType):
        raise Refused(f"{NAME}: schema {ddl!r} is a type, not a list of columns")
    return fields


PLUGIN = Plugin(NAME, ParseJsonConfig, ParseJson, "Make columns, or a map, of a column with JSON.")
