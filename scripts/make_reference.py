"""Write docs/reference/ from the code: commands, settings, metrics, events, errors and exit codes.

python scripts/make_reference.py            writes the pages
python scripts/make_reference.py --check    writes nothing; ends with 1 if a page is out of date
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel

import holdfast
import holdfast.testing
from holdfast import errors
from holdfast.cli.exit_codes import CODES, MEANINGS
from holdfast.cli.root import app
from holdfast.config.models import Settings
from holdfast.config.plugins import SCHEMA_MARK
from holdfast.events import Event, external, flow, nodes, partitions
from holdfast.observe.alert_kinds import KINDS as ALERT_KINDS
from holdfast.observe.gauges import (
    ALERT_ACTIVE,
    ALERT_ACTIVE_HELP,
    ALERTS,
    ALERTS_HELP,
    BUILD_INFO,
    BUILD_INFO_HELP,
    BULK_LIMIT,
    BULK_LIMIT_HELP,
    LAG_RECORDS,
    LAG_RECORDS_HELP,
    LAG_SECONDS,
    LAG_SECONDS_HELP,
    PARTITIONS,
    PARTITIONS_HELP,
)
from holdfast.observe.log import in_words
from holdfast.observe.metric_table import (
    COUNTERS,
    SESSION_USABLE,
    SESSION_USABLE_HELP,
    SOURCE_COORDINATOR,
    Metric,
)
from holdfast.observe.metrics import DURATION, DURATION_HELP, STEPS
from holdfast.registry import KINDS, Registry, singular

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
SOURCES = Path(__file__).parents[1] / "src"
NOTE = "<!-- Made from the code by scripts/make_reference.py. Do not edit. -->\n\n"

Schema = Mapping[str, Any]


def page(name: str) -> str:
    """The text of a page. Raises `UsageError` if a plugin that belongs on it cannot be loaded."""
    return NOTE + "\n\n".join(PAGES[name]()) + "\n"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(_cell(text) for text in line)} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _code(text: object) -> str:
    return f"`{text}`"


# --- commands --------------------------------------------------------------------------------------------------------


def _cli() -> Iterator[str]:
    yield "# Commands"
    yield "[Errors and exit codes](errors.md) lists the exit codes of all commands."
    root = typer.main.get_command(app)
    yield from _command(root, typer.Context(root, info_name="holdfast"))


def _command(command: Any, ctx: Any) -> Iterator[str]:
    yield f"## {ctx.command_path}"
    yield inspect.cleandoc(command.help or "")
    yield f"```\n{' '.join((ctx.command_path, *command.collect_usage_pieces(ctx)))}\n```"
    shown = [_parameter(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)]
    if shown:
        yield _table(("argument or option", "default", "meaning"), shown)
    examples = [line for line in (command.epilog or "").split("\n\n") if line.startswith("holdfast")]
    if examples:
        yield "```sh\n" + "\n".join(examples) + "\n```"
    if hasattr(command, "list_commands"):
        for name in command.list_commands(ctx):
            below = command.get_command(ctx, name)
            yield from _command(below, type(ctx)(below, info_name=name, parent=ctx))


def _parameter(parameter: Any) -> tuple[str, str, str]:
    words = parameter.metavar
    if parameter.param_type_name == "option":
        choices = parameter.type_descriptor.choices
        value = words if words is not None else "|".join(map(str, choices or ()))
        words = f"{', '.join(parameter.opts)} {value}".strip()
    default = parameter.default
    given = "" if default in (None, False) or callable(default) else _code(default)
    return _code(words), "required" if parameter.required else given, parameter.help or ""


# --- settings --------------------------------------------------------------------------------------------------------


def _configuration() -> Iterator[str]:
    yield "# Configuration"
    yield (
        "One YAML file. A value may be a reference, `${env:NAME}` or `${file:PATH}`; a secret must be one, unless "
        "`allow_plaintext_secrets` is set. The file of a reference may be a mounted secret of Kubernetes; its last "
        "line break is removed, and it must not be writable for other users. Durations are written as `30s`, `5m`, "
        "`1h30m`, `7d` or `PT30S`, sizes as `64MB` (millions) or `1GiB`. `holdfast schema` prints all of this as "
        "JSON Schema, for editors."
    )
    yield "## The file"
    yield from _settings(Settings, "")
    registry = Registry(discover=_of_holdfast)
    for kind in KINDS:
        yield f"## {kind.capitalize()}"
        for name in registry.names(kind):
            plugin = registry.get(kind, name)
            yield f"### {singular(kind)} `{name}`"
            yield plugin.summary
            yield from _settings(plugin.config, name)


def _of_holdfast(kind: str) -> list[Any]:
    """Plugins of this package: what else is installed here is not part of its reference."""
    return [offer for offer in entry_points(group=f"holdfast.{kind}") if offer.dist and offer.dist.name == "holdfast"]


def _settings(model: type[BaseModel], path: str) -> Iterator[str]:
    schema = model.model_json_schema()
    yield from _group(schema, path, schema.get("$defs", {}), {})


def _group(schema: Schema, path: str, definitions: Mapping[str, Schema], headings: dict[str, str]) -> Iterator[str]:
    """Yield a table of the settings of one group, and of each group below it; `headings` are those already shown."""
    required = schema.get("required", ())
    settings: Mapping[str, Schema] = schema.get("properties", {})
    if not settings:
        yield "It has no settings."
        return
    rows = [
        (_code(name), _type(setting), _default(setting, name in required), _about(setting, definitions))
        for name, setting in settings.items()
    ]
    yield _table(("setting", "type", "default", "meaning"), rows)
    for name, setting in settings.items():
        below, suffix = _below(setting)
        if below is not None:
            inner = ".".join(filter(None, (path, name + suffix)))
            yield f"#### {_code(inner)}"
            if below in headings:
                yield f"As {_code(headings[below])}."
                continue
            headings[below] = inner
            yield definitions[below].get("description", "")
            yield from _group(definitions[below], inner, definitions, headings)


def _below(schema: Schema) -> tuple[str | None, str]:
    """The group that a setting holds, if it does, and where in the setting it is."""
    for holder, suffix in ((schema, ""), (_entries(schema), ".NAME"), (schema.get("items", {}), "[]")):
        for candidate in (holder, *holder.get("anyOf", ())):
            if "$ref" in candidate:
                return candidate["$ref"].rpartition("/")[2], suffix
    return None, ""


def _entries(schema: Schema) -> Schema:
    """What a mapping's values are."""
    for values in (schema.get("additionalProperties"), *schema.get("patternProperties", {}).values()):
        if isinstance(values, dict):
            return values
    return {}


def _type(schema: Schema) -> str:
    if SCHEMA_MARK in schema:
        return f"[{singular(schema[SCHEMA_MARK])}](#{schema[SCHEMA_MARK]})"
    if "anyOf" in schema:
        return " or ".join(_type(choice) for choice in schema["anyOf"] if choice.get("type") != "null")
    if "enum" in schema or "const" in schema:
        return ", ".join(map(_code, schema.get("enum", [schema.get("const")])))
    if "$ref" in schema:
        return "group"
    if "items" in schema:
        return f"list of {_type(schema['items'])}"
    if "object" in _kinds(schema):
        return f"{_type(_entries(schema))} by name" if _entries(schema) else "mapping"
    return _scalar(schema)


def _scalar(schema: Schema) -> str:
    if schema.get("writeOnly"):
        return "secret"
    if "30s" in schema.get("examples", ()):
        return "duration"
    if "64MB" in schema.get("examples", ()):
        return "size"
    words = {"string": schema.get("format", "text"), "boolean": "true or false", "integer": "whole number"}
    return " or ".join(words.get(kind, kind) for kind in _kinds(schema)) or "any"


def _kinds(schema: Schema) -> list[str]:
    kinds = schema.get("type", [])
    return [kinds] if isinstance(kinds, str) else list(kinds)


def _default(schema: Schema, required: bool) -> str:
    if required:
        return "required"
    default = schema.get("default")
    if default in (None, [], {}):
        return ""
    return _code(default if isinstance(default, str) else json.dumps(default))


def _about(schema: Schema, definitions: Mapping[str, Schema]) -> str:
    below, suffix = _below(schema)
    # pydantic leaves out a description that is the same as that of the group.
    inherited = definitions[below].get("description", "") if below and not suffix else ""
    return str(schema.get("description", inherited))


# --- metrics ---------------------------------------------------------------------------------------------------------


def _metrics() -> Iterator[str]:
    yield "# Metrics"
    yield (
        "Served for Prometheus on `node.metrics_port`. All values are those of this node since it started, and begin "
        "at 0 for every pipeline of the file. `pipeline` is the pipeline's name without `partition_prefix`."
    )
    rows = [(_code(metric.name), "counter", _labels(metric), metric.help, _counted(metric)) for metric in COUNTERS]
    rows.append((_code(SESSION_USABLE), "gauge", "", SESSION_USABLE_HELP, _code("Heartbeat")))
    for lag, meaning in ((LAG_RECORDS, LAG_RECORDS_HELP), (LAG_SECONDS, LAG_SECONDS_HELP)):
        rows.append((_code(lag), "gauge", "`pipeline`, `partition`", meaning, _code("LagMeasured")))
    rows.append((_code(PARTITIONS), "gauge", "`pipeline`, `status`", PARTITIONS_HELP, _code("PartitionsCounted")))
    rows.append(
        (
            _code(DURATION),
            "histogram",
            f"`pipeline`, `step` ({', '.join(STEPS)})",
            DURATION_HELP,
            "`StepFinished`, `BatchCommitted`, `HandlerCalled`",
        )
    )
    rows.append((_code(BUILD_INFO), "gauge", "`version`, `python`, `spark`", BUILD_INFO_HELP, ""))
    rows.append((_code(BULK_LIMIT), "gauge", "`pipeline`, `sink`", BULK_LIMIT_HELP, _code("DocumentsIndexed")))
    kinds = f"`kind` ({', '.join(ALERT_KINDS)})"
    rows.append((_code(ALERTS), "counter", kinds, ALERTS_HELP, _code("AlertRaised")))
    rows.append(
        (_code(ALERT_ACTIVE), "gauge", "`kind`, `pipeline`", ALERT_ACTIVE_HELP, "`AlertRaised`, `AlertCleared`")
    )
    yield _table(("name", "type", "labels", "meaning", "events"), rows)
    yield "## Source coordinator"
    yield (
        "Named `<pipeline>_source_coordinator_<name>`, without labels and without a suffix; exposed as untyped, "
        "because Prometheus would add `_total` to a typed counter. In `<pipeline>`, characters that are not "
        "allowed in metric names, such as `-`, are replaced by `_`, and a leading digit gets `_` in front. If two "
        "pipelines of a file would get the same name, as `a-b` and `a_b`, the pipeline with just that name keeps it, "
        "and every other one gets `_` and the first 8 digits of the SHA-256 of its name appended."
    )
    yield _table(
        ("name", "meaning", "events"),
        [(_code(metric.name), metric.help, _counted(metric)) for metric in SOURCE_COORDINATOR],
    )


def _labels(metric: Metric) -> str:
    return ", ".join(_label(metric, index, name) for index, name in enumerate(metric.labels))


def _label(metric: Metric, index: int, name: str) -> str:
    before = len(metric.labels) - index
    values = [
        counts.labels[-before]
        for counts in metric.counted
        if not callable(counts.labels) and len(counts.labels) >= before
    ]
    return _code(name) + (f" ({', '.join(values)})" if values else "")


def _counted(metric: Metric) -> str:
    return ", ".join(dict.fromkeys(_code(counts.event.__name__) for counts in metric.counted))


# --- events and errors -----------------------------------------------------------------------------------------------


def _events() -> Iterator[str]:
    yield "# Events"
    yield (
        "Everything that holdfast reports is one of these; log and metrics are made from them. The log shows `debug` "
        "events only with `--verbose`. As JSON, an event is one line with `ts`, `level`, `event` and its fields."
    )
    rows = []
    sections = (nodes, partitions, flow, external)
    for kind in (kind for section in sections for kind in _subclasses(Event, section)):
        names = ", ".join(_code(field.name) for field in fields(kind))
        meaning = _docstring(kind) or in_words(kind).capitalize() + "."
        rows.append((_code(kind.__name__), kind.level, names, meaning))
    yield _table(("event", "level", "fields", "meaning"), rows)


def _errors() -> Iterator[str]:
    yield "# Errors and exit codes"
    yield "## Exit codes"
    yield _table(("code", "meaning"), [(str(int(code)), meaning) for code, meaning in MEANINGS.items()])
    yield "## Errors"
    yield "An error that ends a command ends it with this code; one without a code never should, and is a bug (70)."
    rows = []
    for kind in _subclasses(errors.HoldfastError, errors):
        code = next((str(int(code)) for parent, code in CODES if issubclass(kind, parent)), "")
        rows.append(
            (_code(kind.__name__), _code(kind.__base__.__name__ if kind.__base__ else ""), code, _docstring(kind))
        )
    yield _table(("error", "is a", "code", "meaning"), rows)


def _subclasses(root: type[Any], module: object) -> list[type[Any]]:
    return [
        kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, root) and kind is not root
    ]


def _docstring(kind: type[Any]) -> str:
    """What is written below the class; not its parent's, and not the signature that dataclasses put there."""
    text = kind.__dict__.get("__doc__") or ""
    return "" if text.startswith(f"{kind.__name__}(") else " ".join(text.split())


# --- Python -------------------------------------------------------------------------------------------------------


def _python() -> Iterator[str]:
    yield "# Python"
    yield (
        "What authors of plugins and users of notebooks import. These names change only with a note in the changelog; "
        "every other module, name and attribute is private and may change at any time. Importing `holdfast` loads no "
        "Spark: each name is loaded from its module when it is first used."
    )
    yield "```python\nfrom holdfast import Source, load, run\nfrom holdfast.testing import SinkBehaviour\n```"
    for package in (holdfast, holdfast.testing):
        yield f"## `{package.__name__}`"
        yield _table(["where the contract is written", "names"], _public_names(vars(package)["_PUBLIC"]))


def _public_names(public: Mapping[str, str]) -> Iterator[list[str]]:
    for module, listed in public.items():
        path = module.replace(".", "/")
        file = f"{path}.py" if (SOURCES / f"{path}.py").exists() else f"{path}/__init__.py"
        names = sorted(listed.split(), key=str.lower)
        yield [f"[`{module}`](../../src/{file})", ", ".join(f"`{name}`" for name in names)]


PAGES: dict[str, Callable[[], Iterator[str]]] = {
    "cli.md": _cli,
    "configuration.md": _configuration,
    "metrics.md": _metrics,
    "events.md": _events,
    "errors.md": _errors,
    "python.md": _python,
}


def main() -> int:
    """Write the pages, or say which are out of date."""
    return max([_checked(name) if "--check" in sys.argv[1:] else _write(name) for name in PAGES])


def _checked(name: str) -> int:
    path = FOLDER / name
    if path.exists() and path.read_text(encoding="utf-8") == page(name):
        return 0
    sys.stderr.write(f"docs/reference/{name} is out of date; run python scripts/make_reference.py\n")
    return 1


def _write(name: str) -> int:
    try:
        text = page(name)
    except errors.UsageError as error:
        sys.stderr.write(f"docs/reference/{name} was not written: {error}\n")
        return 1
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
