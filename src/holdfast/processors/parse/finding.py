"""From settings to what reads messages: origins of single values, and makers of columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import UsageError
from holdfast.processors.parse import origins
from holdfast.processors.parse.reading import JsonOrigin, KafkaTimestamp, Origin, RegexOrigin

if TYPE_CHECKING:
    from holdfast.processors.parse.columns import MessageColumns
    from holdfast.processors.parse.config import ParseRule
    from holdfast.processors.parse.decoders import Decoder
    from holdfast.processors.parse.json_fields import JsonFields


@dataclass(frozen=True)
class Materials:
    """What rules need that is not in the settings. Made on the node and sent to the tasks: files are only here."""

    files: Mapping[Path, bytes] = field(default_factory=dict)
    schemas: Mapping[str, Any] = field(default_factory=dict)
    """Arrow's schema for each list of columns in Spark's words."""


def files_of(rule: ParseRule) -> Iterable[Path]:
    """The files that a rule names."""
    chosen = [one.chosen for one in (rule.time, rule.columns, *rule.names.values()) if one is not None]
    for one in chosen:
        for name in ("schema_file", "descriptor_file"):
            if (path := getattr(one, name, None)) is not None:
                yield path


def read_files(rules: Iterable[ParseRule]) -> dict[Path, bytes]:
    """All files of the rules. Raises `UsageError` for one that cannot be read."""
    found = {}
    for path in {path for rule in rules for path in files_of(rule)}:
        try:
            found[path] = path.read_bytes()
        except OSError as error:
            raise UsageError(f"parse: cannot read {path}: {error.strerror}") from error
    return found


class Origins:
    """Makes origins. Those of JSON fields share one decoder."""

    def __init__(self, materials: Materials) -> None:
        self._materials = materials
        self._paths: list[tuple[str, ...]] = []
        self._decoders: dict[Any, Decoder] = {}

    def of(self, chosen: Any) -> Origin:
        """The origin that these settings describe. Raises `UsageError` for what cannot be."""
        if isinstance(chosen, origins.KafkaTime):
            return KafkaTimestamp()
        if isinstance(chosen, origins.JsonField):
            self._paths.append(chosen.field)
            return JsonOrigin(chosen.field)
        if isinstance(chosen, origins.RegexGroup):
            return RegexOrigin(chosen.pattern, chosen.taken)
        if isinstance(chosen, origins.ThriftField):
            from holdfast.processors.parse.thrift_fields import ThriftOrigin

            return ThriftOrigin(chosen.field, chosen.protocol)
        from holdfast.processors.parse.decoders import DecodedOrigin

        key = decoder_key(chosen)
        if key not in self._decoders:
            self._decoders[key] = decoder_of(chosen, self._materials)
        return DecodedOrigin(key, self._decoders[key].decode, chosen.field)

    def json_fields(self) -> JsonFields | None:
        """The decoder of all fields that were asked for so far; None if none was."""
        if not self._paths:
            return None
        from holdfast.processors.parse.json_fields import JsonFields

        return JsonFields(self._paths)


def message_columns(rule: ParseRule, materials: Materials) -> MessageColumns | None:
    """What makes columns of messages; None if they stay as they are."""
    if rule.columns is None:
        return None
    from holdfast.processors.parse.columns import DecodedMessages, JsonMessages

    chosen = rule.columns.chosen
    schema = materials.schemas[chosen.schema_]
    if rule.columns.json_ is not None:
        return JsonMessages(schema)
    return DecodedMessages(schema, decoder_of(chosen, materials).decode)


def decoder_key(chosen: Any) -> Any:
    """What tells decoders apart."""
    if isinstance(chosen, origins.AvroSchema):
        return ("avro", chosen.schema_file, chosen.registry)
    return ("protobuf", chosen.descriptor_file, chosen.message)


def decoder_of(chosen: Any, materials: Materials) -> Decoder:
    """The decoder that these settings describe."""
    from holdfast.processors.parse.decoders import AvroDecoder, ConfluentDecoder, ProtobufDecoder

    if isinstance(chosen, origins.ProtobufMessage):
        path = chosen.descriptor_file
        return ProtobufDecoder(materials.files[path], chosen.message, str(path))
    if chosen.schema_file is not None:
        return AvroDecoder(materials.files[chosen.schema_file], str(chosen.schema_file))
    from holdfast.processors.parse.registry import registry_of

    return ConfluentDecoder(registry_of(chosen.registry))
