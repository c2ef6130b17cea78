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
        found = f"_{NAME}"
        # Columns of their own: Spark would compute an expression that a lambda uses once for each element.
        frame = frame.withColumn(found, self._sorted_pairs(text)).withColumn(found, _first_of_each(sql.col(found)))
        made = sql.col(found)
        if config.destination is None:
            columns = {key: made[key] for key in config.include_keys}
        else:
            columns = {config.destination: made}
        refuse_ours(columns, NAME)
        filled = sql.coalesce(sql.trim(text) != "", sql.lit(False))
        without = ~text.rlike(_any_of(config.value_split_characters))
        reason = sql.when(filled & without, sql.lit(f"{NAME}: {config.source} has no pair of key and value"))
        return changed(frame, config, columns, reason, [found])

    def _sorted_pairs(self, text: Any) -> Any:
        """The pairs with their positions, ordered by key and position."""
        from pyspark.sql import functions as sql

        config, between = self._config, _any_of(self._config.value_split_characters)

        def pair(parts: Any, position: Any) -> Any:
            key, value = sql.element_at(parts, 1), sql.get(parts, sql.lit(1))
            return sql.struct(
                self._trimmed(key).alias("key"), position.alias("position"), self._trimmed(value).alias("value")
            )

        pieces = sql.filter(sql.split(text, _any_of(config.field_split_characters)), lambda piece: piece != "")
        pairs = sql.transform(sql.transform(pieces, lambda piece: sql.split(piece, between, 2)), pair)
        pairs = sql.filter(pairs, lambda entry: entry["key"] != "")
        if config.include_keys:
            pairs = sql.filter(pairs, lambda entry: entry["key"].isin(list(config.include_keys)))
        return sql.sort_array(pairs)

    def _trimmed(self, text: Any) -> Any:
        from pyspark.sql import functions as sql

        return sql.trim(text) if self._config.trim else text


def _first_of_each(pairs: Any) -> Any:
    """The map with the first pair of each key, in the order of the text. Spark fails the job if a key comes twice."""
    from pyspark.sql import functions as sql

    def is_first(entry: Any, index: Any) -> Any:
        return (index == 0) | (sql.get(pairs, index - 1)["key"] != entry["key"])

    def by_position(entry: Any) -> Any:
        return sql.struct(entry["position"], entry["key"], entry["value"])

    first = sql.sort_array(sql.transform(sql.filter(pairs, is_first), by_position))
    return sql.map_from_entries(sql.transform(first, lambda entry: sql.struct(entry["key"], entry["value"])))


def _any_of(characters: str) -> str:
    return f"[{re.escape(characters)}]"


PLUGIN = Plugin(NAME, KeyValueConfig, KeyValue, "Make a map, or columns, of text with keys and values.")
