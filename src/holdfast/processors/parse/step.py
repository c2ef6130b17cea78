"""The processor `parse`, inside the staging task or as a step of the frame."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import Refused, UsageError
from holdfast.flow.kafka_columns import TOPIC
from holdfast.flow.processor import Processor, TaskStep
from holdfast.flow.source import OUTPUT_FOLDER_COLUMN, SYSTEM_COLUMNS
from holdfast.flow.staging import StagedBatch
from holdfast.processors.parse.config import ParseConfig, ParseRule
from holdfast.processors.parse.portion import is_ours
from holdfast.processors.parse.rule import Rule, Schemas, decoder_of, inputs_of, read_files

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class ParseStep(TaskStep):
    """Parses the rows of each batch by the rule of its topic. Rules are built in the task, on first use."""

    def __init__(self, config: ParseConfig, schemas: Schemas | None = None) -> None:
        self._rules = config.rules()
        self._schemas = schemas or Schemas()
        self._by_topic: dict[str, Rule] = {}

    def __getstate__(self) -> dict[str, Any]:
        # Decoders cannot be pickled.
        return self.__dict__ | {"_by_topic": {}}

    def inputs(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        needed: frozenset[str] = frozenset()
        for _, rule in self._rules:
            reads = inputs_of(rule, wanted)
            if reads is None:
                return None
            needed |= reads
        return needed

    def apply(self, batch: StagedBatch, rows: Any) -> Any:
        return self.of_topic(batch.name.stream, rows)

    def of_topic(self, topic: str, rows: Any) -> Any:
        """The rows of one topic, parsed."""
        if topic not in self._by_topic:
            self._by_topic[topic] = Rule(rule_of(self._rules, topic), self._schemas)
        return self._by_topic[topic].apply(topic, rows)


def rule_of(rules: list[tuple[str | None, ParseRule]], topic: str) -> ParseRule:
    """The first rule whose pattern matches the whole name of the topic, else the rule for all other topics."""
    return next(rule for match, rule in rules if match is None or re.fullmatch(match, topic))


class Parse(Processor):
    """Gives messages their output folders, and columns if they are configured."""

    name = "parse"

    def __init__(self, config: ParseConfig, files: dict[Path, bytes]) -> None:
        self._config = config
        self._files = files
        # A function of Arrow batches may return any number of rows.
        self.keeps_rows = all(rule.arrow is None for _, rule in config.rules())

    @property
    def changes_rows(self) -> bool:
        return any(rule.columns is not None or rule.arrow is not None for _, rule in self._config.rules())

    def in_task(self) -> TaskStep:
        """Raises `Refused` for columns that Spark cannot parse. Needs a Spark session if rules have `columns`."""
        return self._step

    @cached_property
    def _step(self) -> ParseStep:
        rules = [rule for _, rule in self._config.rules()]
        schemas = {ddl: _arrow(_fields(ddl)) for rule in rules for ddl in _columns(rule)[:1]}
        return ParseStep(self._config, Schemas(self._files, schemas))

    def apply(self, frame: Any) -> Any:
        """Add the processor to the frame. Raises `Refused` if its rules do not give all rows the same columns."""
        by_topic = len(self._config.rules()) > 1
        if by_topic and TOPIC not in frame.columns:
            raise Refused(f"parse has rules by topic, and the frame has no column {TOPIC}")
        result = self._result(frame.schema)
        schema, step = _arrow(result), self._step

        def parsed(portions: Iterator[Any]) -> Iterator[Any]:
            for rows in portions:
                for topic, topic_rows in _by_topic(rows) if by_topic else [("", rows)]:
                    yield _fitted(step.of_topic(topic, topic_rows), schema)

        return frame.mapInArrow(parsed, result)

    def _result(self, fields: StructType) -> StructType:
        """The columns that come out of every rule."""
        from pyspark.sql.types import StringType, StructField, StructType

        rules = [rule for _, rule in self._config.rules()]
        if any(rule.arrow is not None for rule in rules):
            raise Refused("parse: a function of Arrow batches must not be followed by a processor that needs a frame")
        if len({(rule.columns is None, *_columns(rule)) for rule in rules}) > 1:
            raise Refused("parse makes different columns for different topics; it must be the last processor")
        result = [field for field in fields if not is_ours(field.name) or field.name in SYSTEM_COLUMNS]
        if rules[0].columns is not None:
            result = [field for field in result if field.name in SYSTEM_COLUMNS or field.name in rules[0].keep]
            made = _fields(rules[0].columns.chosen.schema_)
            result += [StructField(field.name, field.dataType) for field in made]
        return StructType([*result, StructField(OUTPUT_FOLDER_COLUMN, StringType())])


def _columns(rule: ParseRule) -> tuple[Any, ...]:
    return () if rule.columns is None else (rule.columns.chosen.schema_, rule.keep)


def _by_topic(rows: Any) -> Iterator[tuple[str, Any]]:
    import pyarrow.compute as pc

    topics = rows.column(TOPIC)
    for topic in topics.unique().to_pylist():
        yield topic, rows.filter(pc.equal(topics, topic))


def _fitted(rows: Any, schema: Any) -> Any:
    """The rows in Spark's schema: without dictionaries, and with an output folder even if no rule gives one."""
    import pyarrow as pa

    columns = []
    for field in schema:
        index = rows.schema.get_field_index(field.name)
        column = pa.array([""] * rows.num_rows, pa.string()) if index < 0 else rows.column(index)
        columns.append(column if column.type.equals(field.type) else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _arrow(fields: StructType) -> Any:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(fields, timezone="UTC")


def _fields(ddl: str) -> StructType:
    from pyspark.sql.types import StructType

    fields = StructType.fromDDL(ddl)
    if not isinstance(fields, StructType):
        raise Refused(f"schema: {ddl} is a type, not a list of columns")
    reserved = [name for name in fields.names if is_ours(name)]
    if reserved:
        raise Refused(f"schema: the name {reserved[0]} is reserved for holdfast")
    return fields


def built(config: ParseConfig) -> Parse:
    """The processor. Raises `UsageError` for files, functions and expressions that cannot be used."""
    rules = [rule for _, rule in config.rules()]
    files = read_files(rules)
    try:
        for rule in rules:
            # Errors show now and not in a task.
            _try_out(rule, Schemas(files))
    except ImportError as missing:
        raise UsageError(f"parse needs {missing.name}: pip install 'holdfast[archive]'") from missing
    return Parse(config, files)


def _try_out(rule: ParseRule, schemas: Schemas) -> None:
    Rule(rule.model_copy(update={"columns": None, "keep": ()}), schemas)
    if rule.columns is not None and rule.columns.json_ is None:
        decoder_of(rule.columns.chosen, schemas)
