"""The processor `grok`: columns from text by named patterns, such as `%{IP:client} %{NUMBER:bytes:int}`."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from holdfast.config.plugins import PLAIN_ERROR
from holdfast.errors import Refused
from holdfast.flow.processor import Processor
from holdfast.processors._expressions import FailingOptions, changed, refuse_ours, require, text_of
from holdfast.processors._grok import Compiled, GrokError, compiled
from holdfast.registry import Plugin

NAME = "grok"


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Patterns = Annotated[tuple[str, ...], BeforeValidator(_listed), Field(min_length=1)]


class GrokConfig(FailingOptions):
    """Columns and their patterns."""

    match: dict[str, Patterns] = Field(
        min_length=1,
        description="One or more patterns for each column; the first that matches a part of the text is used. A field "
        "that is written `%{NUMBER:bytes:int}` becomes the column `bytes`; types are string, int, long, float, "
        "double and boolean.",
    )
    pattern_definitions: dict[str, str] = Field(
        default_factory=dict, description="Additional patterns by name; they may use other patterns."
    )
    target_key: str | None = Field(
        None, min_length=1, description="Column for all fields, as a struct. Default: a column for each field."
    )

    @model_validator(mode="after")
    def _compiles(self) -> Self:
        try:
            self.compiled()
        except GrokError as wrong:
            raise PydanticCustomError(PLAIN_ERROR, "{wrong}", {"wrong": str(wrong)}) from None
        return self

    def compiled(self) -> dict[str, list[Compiled]]:
        """The patterns of each column. Raises `GrokError`."""
        found = {
            column: [compiled(text, self.pattern_definitions) for text in texts] for column, texts in self.match.items()
        }
        kinds: dict[str, str] = {}
        for pattern in (pattern for patterns in found.values() for pattern in patterns):
            for name, (kind, _) in pattern.fields.items():
                if kinds.setdefault(name, kind) != kind:
                    raise GrokError(f"the field {name!r} is both {kinds[name]} and {kind}")
        return found


class Grok(Processor):
    """Fails on a row if no pattern of a column matches, or if a field cannot be converted to its type."""

    name = NAME
    may_fault = True
    keeps_rows = True

    def __init__(self, config: GrokConfig) -> None:
        self._config = config
        self._patterns = config.compiled()
        self._checked = False

    def apply(self, frame: Any) -> Any:
        from pyspark.sql import functions as sql

        require(frame, self._patterns, NAME)
        self._check_regexes(frame.sparkSession)
        columns: dict[str, Any] = {}
        reasons = []
        for source, patterns in self._patterns.items():
            text = text_of(source)
            found = _texts(text, patterns)
            columns |= {name: made.try_cast(kind) for name, (kind, made) in found.items()}
            reasons.append(_unmatched(source, text, patterns))
            reasons += [_unfit(name, kind, made) for name, (kind, made) in found.items() if kind != "string"]
        if self._config.target_key is not None:
            columns = {self._config.target_key: sql.struct(*(made.alias(name) for name, made in columns.items()))}
        refuse_ours(columns, NAME)
        return changed(frame, self._config, columns, sql.coalesce(*reasons))

    def _check_regexes(self, spark: Any) -> None:
        """Check the expressions once: one that Java does not accept would fail the tasks of every job."""
        from pyspark.errors import PySparkException

        every = (pattern for patterns in self._patterns.values() for pattern in patterns)
        for pattern in () if self._checked else every:
            try:
                spark.sql("SELECT '' RLIKE :regex", {"regex": pattern.regex}).collect()
            except PySparkException as wrong:
                raise Refused(f"{NAME}: {pattern.regex!r} is not a regular expression: {wrong}") from wrong
        self._checked = True


def _texts(text: Any, patterns: list[Compiled]) -> dict[str, tuple[str, Any]]:
    """The type and text of each field; null if the pattern that matches does not have the field."""
    from pyspark.sql import functions as sql

    found: dict[str, tuple[str, list[Any]]] = {}
    earlier = sql.lit(False)
    for pattern in patterns:
        for name, (kind, groups) in pattern.fields.items():
            texts = [sql.nullif(sql.regexp_extract(text, pattern.regex, group), sql.lit("")) for group in groups]
            alternatives = found.setdefault(name, (kind, []))[1]
            alternatives.append(sql.when(~earlier, sql.coalesce(*texts)))
        earlier = earlier | text.rlike(pattern.regex)
    return {name: (kind, sql.coalesce(*made)) for name, (kind, made) in found.items()}


def _unmatched(source: str, text: Any, patterns: list[Compiled]) -> Any:
    from pyspark.sql import functions as sql

    matches = sql.lit(False)
    for pattern in patterns:
        matches = matches | text.rlike(pattern.regex)
    return sql.when(text.isNotNull() & ~matches, sql.lit(f"{NAME}: no pattern matches {source}"))


def _unfit(name: str, kind: str, made: Any) -> Any:
    from pyspark.sql import functions as sql

    complaint = sql.concat(sql.lit(f"{NAME}: {name} is not of type {kind}: "), made)
    return sql.when(made.isNotNull() & made.try_cast(kind).isNull(), complaint)


PLUGIN = Plugin(NAME, GrokConfig, Grok, "Make columns of text by named patterns.")
