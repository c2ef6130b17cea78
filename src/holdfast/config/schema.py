"""JSON Schema of the configuration file, for completion and checks in editors."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import JsonSchemaMode, models_json_schema

from holdfast.config.models import Settings
from holdfast.config.plugins import NAME_PATTERN, SCHEMA_MARK
from holdfast.registry import KINDS, Kind, Registry, singular

Schema = dict[str, Any]

_MODE: JsonSchemaMode = "validation"
_REFERENCE = r"\$\{(?:env|file):[^{}]+\}"
_REFERENCE_ONLY = rf"^{_REFERENCE}$"
# A plugin that is named as `module:attribute`: its settings are not known here.
_BY_MODULE = {"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_.]*$": {"type": ["object", "null"]}}
_SINK_NAME = {
    "type": "string",
    "pattern": f"^{NAME_PATTERN}$",
    "description": "Name of this sink in its pipeline.",
}
_SINK_ROUTES = {
    "type": "array",
    "items": {"type": "string"},
    "minItems": 1,
    "description": "Routes whose rows this sink gets; all rows unless given.",
}


def json_schema(registry: Registry) -> Schema:
    """Return the JSON Schema (draft 2020-12) of the file, with the settings of every plugin in the registry."""
    plugins = [(kind, registry.get(kind, name)) for kind in KINDS for name in registry.names(kind)]
    models: list[Any] = [Settings, *dict.fromkeys(plugin.config for _, plugin in plugins)]
    references, generated = models_json_schema([(model, _MODE) for model in models])
    definitions: dict[str, Schema] = generated["$defs"]
    choices: dict[str, Schema] = {kind: {} for kind in KINDS}
    for kind, plugin in plugins:
        reference = references[plugin.config, _MODE]
        settings = definitions[_name(reference)]
        given = reference if settings.get("required") else {"anyOf": [reference, {"type": "null"}]}
        choices[kind][plugin.name] = {**given, "description": plugin.summary}
    definitions |= {kind: _one_of(kind, choices[kind]) for kind in KINDS}
    whole = definitions.pop(_name(references[Settings, _MODE]))
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, "title": "holdfast", **_finish(whole | {"$defs": definitions})}


def _name(reference: Schema) -> str:
    return str(reference["$ref"]).rpartition("/")[2]


def _one_of(kind: Kind, plugins: dict[str, Schema]) -> Schema:
    """Return an object schema with exactly one plugin, and for sinks an optional `name` and `routes`."""
    schema: Schema = {"type": "object", "description": f"One {singular(kind)} with its settings."}
    if kind == "sinks":
        plugins = {"name": _SINK_NAME, "routes": _SINK_ROUTES, **plugins}
        either = {"anyOf": [{"required": ["name"]}, {"required": ["routes"]}]}
        fewer = {"if": either, "then": _entries(2), "else": _entries(1)}
        schema |= {"if": {"required": ["name", "routes"]}, "then": _entries(3), "else": fewer}
    else:
        schema |= _entries(1)
    return schema | {"properties": plugins, "patternProperties": _BY_MODULE, "additionalProperties": False}


def _entries(count: int) -> Schema:
    return {"minProperties": count, "maxProperties": count}


def _finish(schema: Schema) -> Schema:
    """Return the schema with plugins filled in and references allowed wherever a value is."""
    # Titles only repeat the names of keys and classes.
    done = {key: value for key, value in schema.items() if key != "title"}
    for key in {"properties", "patternProperties", "$defs"} & schema.keys():
        done[key] = {name: _finish(below) for name, below in schema[key].items()}
    for key in {"anyOf", "oneOf", "allOf", "prefixItems"} & schema.keys():
        done[key] = [_finish(below) for below in schema[key]]
    for key in {"items", "additionalProperties"} & schema.keys():
        done[key] = _finish(schema[key]) if isinstance(schema[key], dict) else schema[key]
    if SCHEMA_MARK in done:
        done.pop("named")
        done["$ref"] = f"#/$defs/{done.pop(SCHEMA_MARK)}"
    return _with_reference(done)


def _with_reference(schema: Schema) -> Schema:
    if "enum" in schema or "const" in schema:
        fixed = {key: schema[key] for key in ("enum", "const", "type") if key in schema}
        rest = {key: value for key, value in schema.items() if key not in fixed}
        return {**rest, "anyOf": [fixed, {"type": "string", "pattern": _REFERENCE_ONLY}]}
    kinds = schema.get("type", "object")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if "string" in kinds and "pattern" in schema:
        return {**schema, "pattern": f"(?:{schema['pattern']})|{_REFERENCE}"}
    if "string" not in kinds and {"integer", "number", "boolean"} & set(kinds):
        return {**schema, "type": [*kinds, "string"], "pattern": _REFERENCE_ONLY}
    return schema
