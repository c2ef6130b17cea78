"""The processor `key_value`: a map, or columns, from text such as `a=1&b=2`."""

from __future__ import annotations

import re
from typing import Any, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from holdfast.config.plugins import PLAIN_ERROR
from holdfast.flow.processor import Processor
from holdfast.processors._expressions import FailingOptions, changed, refuse_ours, require, text_of
from holdfast.registry import Plugin

NAME = "key_value"
PAIRS, KEYS, DISTINCT, SORTED = "_key_value_pairs", "_key_value_keys", "_key_value_distinct", "_key_value_sorted"
MAX_LOOKED_UP = 100
"""Up to this number of keys, looking each of them up takes less time than sorting the pairs."""


class KeyValueConfig(FailingOptions):
    """How the text is split."""

    source: str = Field("value", min_length=1, description="Column with the text.")
    destination: str | None = Field(
        None,
        min_length=1,
        description="Column for a map of texts. Without it each of `include_keys` becomes a column.",
    )
    field_split_characters: str = Field("&", min_length=1, description="Characters that separate pairs.")
    value_split_characters: str = Field(
        "=", min_length=1, description="Characters that separate key and value; the first in a pair counts."
    )
    include_keys: tuple[str, ...] = Field((), description="The keys to keep. Default: all keys.")
    trim: bool = Field(True, description="Remove white space around keys and values.")

    @model_validator(mode="after")
    def _has_destination(self) -> Self:
        if self.destination is None and not self.include_keys:
            raise PydanticCustomError(PLAIN_ERROR, "give a destination for a map, or include_keys for columns")
        return self


class KeyValue(Processor):
    """Fails on a text without any pair. If a key comes twice, its first value is used."""

    name = NAME
    may_fault = True
    keeps_rows = True

    def __init__(self, config: KeyValueConfig) -> None:
        self._config = config

    def apply(self, frame: Any) -> Any:
        from pyspark.sql import functions as sql

        config = self._config
        require(frame, [config.source], NAME)
        text = text_of(config.source)
        # Columns of their own: Spark would compute an expression that a lambda uses once for each element.
        frame = frame.withColumn(PAIRS, self._pairs(text))
        frame = frame.withColumn(KEYS, sql.transform(PAIRS, lambda entry: entry["key"]))
        columns = {key: _value_of(sql.lit(key)) for key in config.include_keys}
        if config.destination is not None:
            frame = frame.withColumn(DISTINCT, sql.array_distinct(KEYS)).withColumn(SORTED, _sorted_if_needed())
            columns = {config.destination: _first_of_each()}
        refuse_ours(columns, NAME)
        filled = sql.coalesce(sql.trim(text) != "", sql.lit(False))
        without = ~text.rlike(_any_of(config.value_split_characters))
        reason = sql.when(filled & without, sql.lit(f"{NAME}: {config.source} has no pair of key and value"))
        return changed(frame, config, columns, reason, [PAIRS, KEYS, DISTINCT, SORTED])

    def _pairs(self, text: Any) -> Any:
        """The pairs in the order of the text."""
        from pyspark.sql import functions as sql

        config, between = self._config, _any_of(self._config.value_split_characters)

        def pair(parts: Any) -> Any:
            key, value = sql.element_at(parts, 1), sql.get(parts, sql.lit(1))
            return sql.struct(self._trimmed(key).alias("key"), self._trimmed(value).alias("value"))

        pieces = sql.array_remove(sql.split(text, _any_of(config.field_split_characters)), "")
        pairs = sql.transform(sql.transform(pieces, lambda piece: sql.split(piece, between, 2)), pair)
        if config.include_keys:
            return sql.filter(pairs, lambda entry: entry["key"].isin([key for key in config.include_keys if key]))
        return sql.filter(pairs, lambda entry: entry["key"] != "")

    def _trimmed(self, text: Any) -> Any:
        from pyspark.sql import functions as sql

        return sql.trim(text) if self._config.trim else text


def _value_of(key: Any) -> Any:
    """The value of the first pair with this key; null if there is none."""
    from pyspark.sql import functions as sql

    return sql.get(sql.col(PAIRS), (sql.array_position(sql.col(KEYS), key) - 1).cast("int"))["value"]


def _sorted_if_needed() -> Any:
    """The pairs by key and position, if many keys occur more than once."""
    from pyspark.sql import functions as sql

    def by_key(entry: Any, position: Any) -> Any:
        return sql.struct(entry["key"].alias("key"), position.alias("position"), entry["value"].alias("value"))

    keys = sql.size(DISTINCT)
    return sql.when((keys < sql.size(KEYS)) & (keys > MAX_LOOKED_UP), sql.sort_array(sql.transform(PAIRS, by_key)))


def _first_of_each() -> Any:
    """The map with the first pair of each key, in the order of the text. Spark fails the job if a key comes twice."""
    from pyspark.sql import functions as sql

    def is_first(entry: Any, index: Any) -> Any:
        return (index == 0) | (sql.get(sql.col(SORTED), index - 1)["key"] != entry["key"])

    def by_position(entry: Any) -> Any:
        return sql.struct(entry["position"], entry["key"], entry["value"])

    first = sql.sort_array(sql.transform(sql.filter(SORTED, is_first), by_position))
    sorted_out = sql.map_from_entries(sql.transform(first, lambda entry: sql.struct(entry["key"], entry["value"])))
    looked_up = sql.map_from_arrays(sql.col(DISTINCT), sql.transform(DISTINCT, _value_of))
    keys = sql.size(DISTINCT)
    return (
        sql.when(keys == sql.size(KEYS), sql.map_from_entries(PAIRS))
        .when(keys <= MAX_LOOKED_UP, looked_up)
        .otherwise(sorted_out)
    )


def _any_of(characters: str) -> str:
    # Java splits by a single character without compiling an expression for each text.
    return re.escape(characters) if len(characters) == 1 else f"[{re.escape(characters)}]"


PLUGIN = Plugin(NAME, KeyValueConfig, KeyValue, "Make a map, or columns, of text with keys and values.")
