"""Turns `name: settings` in the file into a plugin with its validated settings.

The validation context carries `registry` (a `Registry`) and `plaintext` (a
`PlaintextRule`). Without a context, as in code, the installed plugins are used and plain text is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema
from typing_extensions import TypedDict

from holdfast.config.units import VALUE_ERROR
from holdfast.errors import UsageError
from holdfast.registry import Kind, Registry, singular

# The loader puts the caret below the key, not below its value.
KEY_ERROR = "holdfast.key"
# The message stands alone, without the value in front of it.
PLAIN_ERROR = "holdfast.plain"
# Marks the parts of a JSON Schema that depend on the installed plugins.
SCHEMA_MARK = "x-holdfast-uses"

NAME_PATTERN = r"[A-Za-z0-9_-]{1,64}"


def _check_name(name: str) -> str:
    if not re.fullmatch(NAME_PATTERN, name):
        raise PydanticCustomError(VALUE_ERROR, "is not a name; use 1 to 64 letters, digits, '_' and '-'")
    return name


Name = Annotated[str, AfterValidator(_check_name), WithJsonSchema({"type": "string", "pattern": f"^{NAME_PATTERN}$"})]
"""Name of a pipeline or a sink; it becomes part of paths and rows."""

Routed = Annotated[tuple[str, ...], Field(min_length=1)]
"""Routes of a sink; an empty list is refused."""


@dataclass(frozen=True)
class PluginUse:
    """A plugin's name, and its settings as an instance of the plugin's own model."""

    name: str
    config: Any


@dataclass(frozen=True)
class NamedSink:
    """A sink of a pipeline, with the name that its receipts carry."""

    name: str
    use: PluginUse
    routes: tuple[str, ...] | None = None
    """Routes whose rows it gets; None: it gets every row."""


BESIDE_A_SINK = ("name", "routes")
"""Keys that may stand beside a sink's plugin."""


@dataclass(frozen=True)
class Uses:
    """Annotates a field that takes one plugin: `Annotated[PluginUse, Uses("formats")]`.

    With `named`, a `name:` and `routes:` may stand beside the plugin, and the field holds a `NamedSink`.
    """

    kind: Kind
    named: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Replaces the schema that pydantic would make for the dataclass."""
        show = core_schema.plain_serializer_function_ser_schema(_show)
        return core_schema.with_info_plain_validator_function(self._validate, serialization=show)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Returns a placeholder; `json_schema`, which has the registry, replaces it."""
        return {SCHEMA_MARK: self.kind, "named": self.named}

    def _validate(self, value: Any, info: ValidationInfo) -> PluginUse | NamedSink:
        if isinstance(value, PluginUse | NamedSink):
            return value
        context = info.context or {"registry": Registry.installed()}
        plugin, settings = self._only_entry(value, context["registry"])
        given = {**value, plugin: {} if settings is None else settings}
        checked = self._check(plugin, given, context)
        use = PluginUse(plugin, checked[plugin])
        return NamedSink(checked["name"], use, checked.get("routes")) if self.named else use

    def _only_entry(self, value: Any, registry: Registry) -> tuple[str, Any]:
        word = singular(self.kind)
        if isinstance(value, str):
            raise PydanticCustomError(VALUE_ERROR, f"is the name of a {word} and needs a ':' after it")
        if not isinstance(value, Mapping):
            raise PydanticCustomError(PLAIN_ERROR, f"expected the name of a {word} with its settings")
        entries = [(name, given) for name, given in value.items() if not (self.named and name in BESIDE_A_SINK)]
        if not entries:
            raise PydanticCustomError(PLAIN_ERROR, f"the name of a {word} is missing here")
        if len(entries) > 1:
            first, second = entries[0][0], entries[1][0]
            hint = "" if second in registry.names(self.kind) else f"; indent the settings of {first!r} below it"
            raise problem_at(
                (second,), KEY_ERROR, f"only one {word} is possible here, not {first!r} and {second!r}{hint}"
            )
        return entries[0]

    def _check(self, plugin: str, given: dict[str, Any], context: dict[str, Any]) -> dict[str, Any]:
        word = singular(self.kind)
        try:
            entries = {plugin: context["registry"].get(self.kind, plugin).config}
        except UsageError as error:
            raise problem_at((plugin,), KEY_ERROR, str(error)) from None
        if self.named:
            entries |= {"name": Name} | ({"routes": Routed} if "routes" in given else {})
        form: Any = TypedDict("entry", entries)  # type: ignore[misc]
        try:
            return dict(TypeAdapter(form).validate_python(given, context=context))
        except ValidationError:
            raise
        except Exception as error:  # noqa: BLE001 (a plugin's own check may fail in any way)
            reason = f"{word} {plugin!r} failed while checking its settings: {type(error).__name__}: {error}"
            raise problem_at((plugin,), "value_error", reason) from None


def problem_at(path: tuple[str | int, ...], kind: str, message: str) -> ValidationError:
    """Return an error at a path below the value being validated; pydantic merges it with the others."""
    error = PydanticCustomError(kind, message)
    return ValidationError.from_exception_data("settings", [InitErrorDetails(type=error, loc=path, input=None)])


def _show(value: PluginUse | NamedSink) -> dict[str, Any]:
    if isinstance(value, NamedSink):
        routes = {} if value.routes is None else {"routes": value.routes}
        return {"name": value.name, **routes, value.use.name: value.use.config}
    return {value.name: value.config}
