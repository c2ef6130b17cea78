"""The processor `grok`: columns from text by named patterns, such as `%{IP:client} %{NUMBER:bytes:int}`."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from holdfast.config import AddedLater, ByteSize
from holdfast.config.plugins import PLAIN_ERROR
from holdfast.errors import Refused
from holdfast.flow.processor import Processor
from holdfast.processors._expressions import FailingOptions, applies, changed, refuse_ours, require, text_of
from holdfast.processors._grok import Compiled, GrokError, compiled
from holdfast.registry import Plugin

NAME = "grok"
UNMATCHED, TOO_LONG = -1, -2
SEPARATOR = "\x1f"


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
    max_line_bytes: Annotated[ByteSize, Field(gt=0), AddedLater] = Field(
        64 * 1024,
        description="Largest text that is matched; the processor fails on longer ones. The time for a text without "
        "a match may "
        "grow with the square of its length.",
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
    """Fails on a row if a text is too long or no pattern matches it, or if a field cannot be converted to its type."""

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
        # Columns of their own, so that Spark searches a text once for the pattern and once for all fields.
        matching = {source: f"_{NAME}_{number}" for number, source in enumerate(self._patterns)}
        groups = {source: f"_{NAME}_groups_{number}" for number, source in enumerate(self._patterns)}
        frame = frame.withColumns({name: self._matching(source) for source, name in matching.items()})
        frame = frame.withColumns({name: self._groups(source, matching[source]) for source, name in groups.items()})
        for source, patterns in self._patterns.items():
            text, match = text_of(source), sql.col(matching[source])
            found = _texts(sql.col(groups[source]), patterns, match)
            columns |= {name: made.try_cast(kind) for name, (kind, made) in found.items()}
            reasons.append(_unmatched(source, text, match))
            reasons += [_unfit(name, kind, made) for name, (kind, made) in found.items() if kind != "string"]
        if self._config.target_key is not None:
            columns = {self._config.target_key: sql.struct(*(made.alias(name) for name, made in columns.items()))}
        refuse_ours(columns, NAME)
        return changed(frame, self._config, columns, sql.coalesce(*reasons), [*matching.values(), *groups.values()])

    def _matching(self, source: str) -> Any:
        """The number of the first pattern that matches, `UNMATCHED` or `TOO_LONG`; null if there is nothing to do."""
        from pyspark.sql import functions as sql

        text = text_of(source)
        number = sql.when(sql.octet_length(text) > self._config.max_line_bytes, sql.lit(TOO_LONG))
        for position, pattern in enumerate(self._patterns[source]):
            number = number.when(text.rlike(pattern.regex), sql.lit(position))
        return sql.when(text.isNotNull() & applies(self._config), number.otherwise(sql.lit(UNMATCHED)))

    def _groups(self, source: str, matching: str) -> Any:
        """The texts of the groups of the matching pattern, from number 1 on; empty where a group matched nothing."""
        from pyspark.sql import functions as sql

        text, groups = text_of(source), sql.lit(None)
        for position, pattern in enumerate(self._patterns[source]):
            groups = sql.when(sql.col(matching) == position, _groups_of(text, pattern)).otherwise(groups)
        return groups

    def _check_regexes(self, spark: Any) -> None:
        """Check the expressions once: one that Java does not accept would fail the tasks of every job."""
        from pyspark.errors import PySparkException

        every = (pattern for patterns in self._patterns.values() for pattern in patterns)
        for pattern in () if self._checked else every:
            try:
                spark.sql("SELECT '' RLIKE :regex", {"regex": _around(pattern)}).collect()
            except PySparkException as wrong:
                raise Refused(f"{NAME}: {pattern.regex!r} is not a regular expression: {wrong}") from wrong
        self._checked = True


def _groups_of(text: Any, pattern: Compiled) -> Any:
    """All groups of a text that matches.

    Spark has no function for them. The whole text is replaced by its groups, with a character between them; a text that
    contains this character is searched once for each group.
    """
    from pyspark.sql import functions as sql

    count = max((group for _, groups in pattern.fields.values() for group in groups), default=0)
    if not count:
        return sql.array().cast("array<string>")
    between = SEPARATOR.join(f"${group}" for group in range(1, count + 1))
    at_once = sql.split(sql.regexp_replace(text, _around(pattern), between), SEPARATOR)
    one_by_one = sql.array(*(sql.regexp_extract(text, pattern.regex, group) for group in range(1, count + 1)))
    return sql.when(text.contains(SEPARATOR), one_by_one).otherwise(at_once)


def _around(pattern: Compiled) -> str:
    """An expression for the whole of a text that matches; its groups have the same numbers."""
    return rf"\A[\s\S]*?(?:{pattern.regex})[\s\S]*"


def _texts(found_groups: Any, patterns: list[Compiled], match: Any) -> dict[str, tuple[str, Any]]:
    """The type and text of each field; null if the pattern that matches does not have the field."""
    from pyspark.sql import functions as sql

    found: dict[str, tuple[str, list[Any]]] = {}
    for position, pattern in enumerate(patterns):
        for name, (kind, groups) in pattern.fields.items():
            texts = [sql.nullif(sql.get(found_groups, sql.lit(group - 1)), sql.lit("")) for group in groups]
            alternatives = found.setdefault(name, (kind, []))[1]
            alternatives.append(sql.when(match == position, sql.coalesce(*texts)))
    return {name: (kind, sql.coalesce(*made)) for name, (kind, made) in found.items()}


def _unmatched(source: str, text: Any, match: Any) -> Any:
    from pyspark.sql import functions as sql

    too_long = sql.concat(
        sql.lit(f"{NAME}: {source} has "), sql.octet_length(text), sql.lit(" bytes, more than max_line_bytes")
    )
    return sql.when(match == TOO_LONG, too_long).when(match == UNMATCHED, f"{NAME}: no pattern matches {source}")


def _unfit(name: str, kind: str, made: Any) -> Any:
    from pyspark.sql import functions as sql

    complaint = sql.concat(sql.lit(f"{NAME}: {name} is not of type {kind}: "), made)
    return sql.when(made.isNotNull() & made.try_cast(kind).isNull(), complaint)


PLUGIN = Plugin(NAME, GrokConfig, Grok, "Make columns of text by named patterns.")
