"""The processor `grok`: fields of a text by named patterns, such as `%{IP:client} %{NUMBER:bytes:int}`."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from holdfast.config.plugins import PLAIN_ERROR
from holdfast.errors import Refused
from holdfast.flow.processor import Processor
from holdfast.processors._grok import Compiled, GrokError, compiled
from holdfast.processors._steps import FailingOptions, changed, refuse_ours, require, text_of
from holdfast.registry import Plugin

NAME = "grok"


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Patterns = Annotated[tuple[str, ...], BeforeValidator(_listed), Field(min_length=1)]


class GrokConfig(FailingOptions):
    """Which columns, and which patterns."""

    match: dict[str, Patterns] = Field(
        min_length=1,
        description="By column one or more patterns; the first that matches somewhere in the text counts. A field that "
        "is written `%{NUMBER:bytes:int}` becomes the column `bytes`; types are string, int, long, float, double and "
        "boolean.",
    )
    pattern_definitions: dict[str, str] = Field(
        default_factory=dict, description="Patterns of your own by name, which may use others."
    )
    target_key: str | None = Field(
        None, min_length=1, description="Column for all fields, as a struct; columns of their own unless given."
    )

    @model_validator(mode="after")
    def _compiles(self) -> Self:
        try:
            self.compiled()
        except GrokError as wrong:
            raise PydanticCustomError(PLAIN_ERROR, "{wrong}", {"wrong": str(wrong)}) from None
        return self

    def compiled(self) -> dict[str, list[Compiled]]:
        """By column its patterns. Raises `GrokError`."""
        found = {
            column: [compiled(text, self.pattern_definitions) for text in texts] for column, texts in self.match.items()
        }
        kinds: dict[str, str] = {}
        for name, (kind, _) in (one for many in found.values() for each in many for one in each.fields.items()):
            if kinds.setdefault(name, kind) != kind:
                raise GrokError(f"the field {name!r} is both {kinds[name]} and {kind}")
        return found


class Grok(Processor):
    """A row of which no pattern of a column matches, or a field of which has not its type, has failed."""

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
        """Once: an expression that Java does not take would fail every job in its tasks."""
        from pyspark.errors import PySparkException

        for one in () if self._checked else (each for many in self._patterns.values() for each in many):
            try:
                spark.sql("SELECT '' RLIKE :regex", {"regex": one.regex}).collect()
            except PySparkException as wrong:
                raise Refused(f"{NAME}: {one.regex!r} is no regular expression: {wrong}") from wrong
        self._checked = True


def _texts(text: Any, patterns: list[Compiled]) -> dict[str, tuple[str, Any]]:
    """By field its type and its text; null where the pattern that matches has no such field or found nothing."""
    from pyspark.sql import functions as sql

    found: dict[str, tuple[str, list[Any]]] = {}
    earlier = sql.lit(False)
    for one in patterns:
        for name, (kind, groups) in one.fields.items():
            texts = [sql.nullif(sql.regexp_extract(text, one.regex, group), sql.lit("")) for group in groups]
            known = found.setdefault(name, (kind, []))[1]
            known.append(sql.when(~earlier, sql.coalesce(*texts)))
        earlier = earlier | text.rlike(one.regex)
    return {name: (kind, sql.coalesce(*made)) for name, (kind, made) in found.items()}


def _unmatched(source: str, text: Any, patterns: list[Compiled]) -> Any:
    from pyspark.sql import functions as sql

    matches = sql.lit(False)
    for one in patterns:
        matches = matches | text.rlike(one.regex)
    return sql.when(text.isNotNull() & ~matches, sql.lit(f"{NAME}: no pattern matches {source}"))


def _unfit(name: str, kind: str, made: Any) -> Any:
    from pyspark.sql import functions as sql

    complaint = sql.concat(sql.lit(f"{NAME}: {name} is no {kind}: "), made)
    return sql.when(made.isNotNull() & made.try_cast(kind).isNull(), complaint)


PLUGIN = Plugin(NAME, GrokConfig, Grok, "Make columns of a text by named patterns.")
