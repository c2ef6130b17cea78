"""Applies a rule of the settings: gives rows output folders, and columns if configured. Built where it is used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import numpy as np

from holdfast.errors import UsageError
from holdfast.flow.kafka_columns import TIMESTAMP, VALUE
from holdfast.flow.source import FAULT_COLUMN, ITEM_COLUMN
from holdfast.processors.parse import field_config
from holdfast.processors.parse.config import CONSTANT, OFFSETS, TIME, NameFrom, ParseRule, TimeFrom
from holdfast.processors.parse.functions import MESSAGE_COLUMNS, ArrowFunction, MessageFunction
from holdfast.processors.parse.names import (
    TimeNames,
    joined_names,
    names_of_ranges,
    names_of_values,
    output_folders,
    with_invalid,
)
from holdfast.processors.parse.portion import (
    Bad,
    Cells,
    CodedTexts,
    FieldReader,
    JsonFieldReader,
    KafkaTimestampReader,
    Portion,
    RegexReader,
    Ticks,
    with_data,
    with_faults,
    with_output_folders,
)
from holdfast.processors.parse.time_patterns import INVALID, NamePattern, TimePattern
from holdfast.processors.parse.times import TimeReader, within_years

if TYPE_CHECKING:
    from holdfast.processors.parse.binary_fields import Decoder
    from holdfast.processors.parse.columns import MessageColumns
    from holdfast.processors.parse.json_fields import JsonFields


@dataclass(frozen=True)
class Part:
    """One part of the path of an output folder."""

    coded: Callable[[Portion], CodedTexts]
    invalid: str = ""
    """The text of the part for a message without a value for it."""


class Rule:
    """Applies one rule. The constructor raises `UsageError` for settings that cannot be used."""

    def __init__(self, rule: ParseRule, schemas: Schemas) -> None:
        self._rule = rule
        self._readers = FieldReaders(schemas)
        self._parts = [self._part(name) for name in (rule.order or rule.parts())]
        if rule.prefix is not None:
            self._parts.insert(0, Part(_constant(rule.prefix)))
        self._fields = self._readers.json_fields()
        self._columns = message_columns(rule, schemas)
        self._function: MessageFunction | ArrowFunction | None = None
        if rule.python is not None:
            self._function = MessageFunction(rule.python, dead_letters=rule.on_error == "dead_letter")
        elif rule.arrow is not None:
            self._function = ArrowFunction(rule.arrow)

    def apply(self, topic: str, rows: Any) -> Any:
        """The rows with their output folders, and with columns. A row that came with a fault keeps it."""
        if self._function is not None:
            return self._function.apply(topic, rows)
        portion, bad = Portion(rows, self._fields), Bad()
        columns: list[Any] | None = None
        if self._parts and rows.num_rows:
            names = self._names(portion)
            rows = with_output_folders(rows, output_folders(names, rows.num_rows))
            bad = names.bad
        if self._columns is not None:
            columns, refused = self._columns.read(portion.values)
            bad = bad | refused
        if bad:
            rows = with_faults(rows, bad)
        if self._columns is not None and columns is not None:
            rows = with_data(rows, self._columns.schema, columns, self._rule.keep)
        return rows

    def _names(self, portion: Portion) -> CodedTexts:
        found = [part.coded(portion) for part in self._parts]
        if self._rule.on_error == "invalid":
            found = [with_invalid(texts, part.invalid) for texts, part in zip(found, self._parts, strict=True)]
        whole = joined_names(found)
        faults = portion.rows.column(FAULT_COLUMN)
        if faults.null_count < len(faults):
            # Their output folders do not count either.
            faulty = np.flatnonzero(faults.is_valid().to_numpy(zero_copy_only=False))
            whole.bad |= dict.fromkeys(faulty.tolist(), "it has a fault already")
        return whole

    def _part(self, name: str) -> Part:
        rule = self._rule
        if name == TIME and rule.time is not None:
            return self._time_part(rule.time)
        if name == CONSTANT and rule.constant is not None:
            return Part(_constant(rule.constant))
        if name == OFFSETS and rule.offsets is not None:
            key, every = "offset=" if rule.style == "hive" else "", rule.offsets.every
            return Part(lambda portion: names_of_ranges(_items(portion), every, key))
        return self._name_part(name, rule.names[name])

    def _time_part(self, time: TimeFrom) -> Part:
        rule, chosen = self._rule, time.chosen
        written = getattr(chosen, "format", None)
        reader = TimeReader(
            getattr(chosen, "unit", None), TimePattern(written) if written else None, ZoneInfo(rule.text_zone)
        )
        field, pattern = self._readers.of(chosen), NamePattern(rule.time_pattern())
        names = TimeNames(pattern, ZoneInfo(rule.zone))

        def coded(portion: Portion) -> CodedTexts:
            found = field.read(portion)
            ticks = found if isinstance(found, Ticks) else reader.read(found)
            return names.coded(within_years(ticks, rule.min_year, rule.max_year))

        return Part(coded, pattern.invalid())

    def _name_part(self, name: str, source: NameFrom) -> Part:
        field, key = self._readers.of(source.chosen), f"{name}=" if self._rule.style == "hive" else ""

        def coded(portion: Portion) -> CodedTexts:
            found = field.read(portion)
            assert isinstance(found, Cells)
            return names_of_values(found, key)

        return Part(coded, key + INVALID)


def inputs_of(rule: ParseRule, wanted: frozenset[str] | None) -> frozenset[str] | None:
    """The columns that the rule must be given so that the wanted columns come out; None: all."""
    if rule.arrow is not None:
        return None
    reads: set[str] = set()
    if rule.python is not None:
        reads |= MESSAGE_COLUMNS
    if rule.names or rule.columns is not None or (rule.time is not None and rule.time.kafka is None):
        reads.add(VALUE)
    if rule.time is not None and rule.time.kafka is not None:
        reads.add(TIMESTAMP)
    if rule.columns is not None:
        return frozenset(reads | set(rule.keep))
    return None if wanted is None else frozenset(reads | wanted)


def _constant(text: str) -> Callable[[Portion], CodedTexts]:
    return lambda portion: CodedTexts(np.zeros(portion.rows.num_rows, np.int64), [text])


def _items(portion: Portion) -> Any:
    return portion.rows.column(ITEM_COLUMN).fill_null(0).to_numpy(zero_copy_only=False)


@dataclass(frozen=True)
class Schemas:
    """Schemas that rules need besides the settings. Made on the node, where the files are, and sent to the tasks."""

    files: Mapping[Path, bytes] = field(default_factory=dict)
    by_ddl: Mapping[str, Any] = field(default_factory=dict)
    """Arrow's schema for each list of columns in Spark's DDL."""


def files_of(rule: ParseRule) -> Iterable[Path]:
    """The files that a rule names."""
    for setting in (rule.time, rule.columns, *rule.names.values()):
        for name in ("schema_file", "descriptor_file"):
            if setting is not None and (path := getattr(setting.chosen, name, None)) is not None:
                yield path


def read_files(rules: Iterable[ParseRule]) -> dict[Path, bytes]:
    """All files of the rules. Raises `UsageError` for a file that cannot be read."""
    found = {}
    for path in {path for rule in rules for path in files_of(rule)}:
        try:
            found[path] = path.read_bytes()
        except OSError as error:
            raise UsageError(f"parse: cannot read {path}: {error.strerror}") from error
    return found


class FieldReaders:
    """Builds field readers. Those of JSON fields share one decoder."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        self._paths: list[tuple[str, ...]] = []
        self._decoders: dict[Any, Decoder] = {}

    def of(self, chosen: Any) -> FieldReader:
        """The reader for these settings. Raises `UsageError` if they cannot be used."""
        if isinstance(chosen, field_config.KafkaTime):
            return KafkaTimestampReader()
        if isinstance(chosen, field_config.JsonField):
            self._paths.append(chosen.field)
            return JsonFieldReader(chosen.field)
        if isinstance(chosen, field_config.RegexGroup):
            return RegexReader(chosen.pattern, chosen.taken)
        if isinstance(chosen, field_config.ThriftField):
            from holdfast.processors.parse.binary_fields import ThriftFieldReader

            return ThriftFieldReader(chosen.field, chosen.protocol)
        from holdfast.processors.parse.binary_fields import DecodedFieldReader

        key = decoder_key(chosen)
        if key not in self._decoders:
            self._decoders[key] = decoder_of(chosen, self._schemas)
        return DecodedFieldReader(key, self._decoders[key].decode, chosen.field)

    def json_fields(self) -> JsonFields | None:
        """The decoder of all JSON fields that have a reader; None if there are none."""
        if not self._paths:
            return None
        from holdfast.processors.parse.json_fields import JsonFields

        return JsonFields(self._paths)


def message_columns(rule: ParseRule, schemas: Schemas) -> MessageColumns | None:
    """Makes columns from messages; None if messages stay as they are."""
    if rule.columns is None:
        return None
    from holdfast.processors.parse.columns import DecodedMessages, JsonMessages

    chosen = rule.columns.chosen
    schema = schemas.by_ddl[chosen.schema_]
    if rule.columns.json_ is not None:
        return JsonMessages(schema)
    return DecodedMessages(schema, decoder_of(chosen, schemas).decode)


def decoder_key(chosen: Any) -> Any:
    """Readers with the same key share a decoder."""
    if isinstance(chosen, field_config.AvroSchema):
        return ("avro", chosen.schema_file, chosen.registry)
    return ("protobuf", chosen.descriptor_file, chosen.message)


def decoder_of(chosen: Any, schemas: Schemas) -> Decoder:
    """The decoder for these settings."""
    from holdfast.processors.parse.binary_fields import AvroDecoder, ConfluentDecoder, ProtobufDecoder

    if isinstance(chosen, field_config.ProtobufMessage):
        path = chosen.descriptor_file
        return ProtobufDecoder(schemas.files[path], chosen.message, str(path))
    if chosen.schema_file is not None:
        return AvroDecoder(schemas.files[chosen.schema_file], str(chosen.schema_file))
    from holdfast.processors.parse.schema_registry import registry_of

    return ConfluentDecoder(registry_of(chosen.registry))
