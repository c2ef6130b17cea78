"""The trigger of a function in the words of Nuclio's dashboard: read from the text of a file, and changed in it.

References stay as they are written and are never resolved; comments and all other settings keep their positions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from holdfast.config.secrets import REFERENCE
from holdfast.config.yaml_positions import Document, is_secret_key
from holdfast.errors import UsageError
from holdfast.functions.settings import FunctionConfig

LABELS = {
    "url": "URL",
    "workers": "Max Workers",
    "seek_to": "Seek To",
    "read_batch_size": "Read Batch Size",
    "polling_interval": "Polling Interval",
    "password": "Password",
    "session_timeout": "Session Timeout",
    "heartbeat_interval": "Heartbeat Interval",
}
"""By setting, what Nuclio's dashboard calls it."""
_PLAIN = re.compile(r"[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, slots=True)
class TriggerField:
    """A setting of a trigger. `written` is its name in the file; empty if the file does not have it."""

    setting: str
    written: str
    value: str | None
    """As in the file; the default if the file does not have it. None: there is none, or it may be a secret."""

    def row(self) -> dict[str, Any]:
        """Return the field as JSON."""
        shown = {"label": LABELS[self.setting], "setting": self.written or self.setting}
        return {**shown, "value": self.value, "is_default": not self.written}


def trigger_fields(text: str, pipeline: str) -> list[TriggerField]:
    """Return the trigger of a pipeline's function; empty if it has none. Raises `ConfigError` if it is not YAML."""
    function = _function(Document("", text), pipeline)
    return [] if function is None else [_field(text, function, setting) for setting in LABELS]


def with_trigger(text: str, pipeline: str, values: Mapping[str, str]) -> str:
    """Return the text with settings of the trigger changed.

    Raises `UsageError` for a change that cannot be made here, but only by editing the text.
    """
    function = _function(Document("", text), pipeline)
    if function is None:
        raise UsageError(f"pipeline {pipeline!r} has no function")
    edits = [edit for setting, value in values.items() for edit in _edits(text, function, setting, value.strip())]
    for start, end, replacement in sorted(edits, reverse=True):
        text = text[:start] + replacement + text[end:]
    return text


def _edits(text: str, function: MappingNode, setting: str, value: str) -> Iterator[tuple[int, int, str]]:
    if setting not in LABELS:
        raise UsageError(f"there is no setting {setting!r} of a trigger; there are {', '.join(LABELS)}")
    before = _field(text, function, setting)
    if value == (before.value or "") or (not value and not before.written):
        return
    if not value:
        raise UsageError(f"{before.written} cannot be removed by the form; remove it in the text")
    written = value if _PLAIN.fullmatch(value) else json.dumps(value, ensure_ascii=False)
    for key, node in _entries(function):
        if key.value == before.written:
            if not isinstance(node, ScalarNode) or node.style in {"|", ">"}:
                raise UsageError(f"{before.written} is not a single value; change it in the text")
            yield node.start_mark.index, node.end_mark.index, written
            return
    yield _inserted(function, f"{setting}: {written}")


def _inserted(function: MappingNode, line: str) -> tuple[int, int, str]:
    start = function.start_mark
    if function.flow_style:
        return start.index + 1, start.index + 1, f"{line}, " if function.value else line
    return start.index, start.index, f"{line}\n{' ' * start.column}"


def _field(text: str, function: MappingNode, setting: str) -> TriggerField:
    for key, node in _entries(function):
        if key.value in _names(setting):
            return TriggerField(setting, key.value, _shown(text, key.value, node))
    default = FunctionConfig.model_fields[setting].default
    return TriggerField(setting, "", None if default is None else str(default))


def _shown(text: str, name: str, node: Node) -> str | None:
    value = node.value if isinstance(node, ScalarNode) else text[node.start_mark.index : node.end_mark.index]
    return None if is_secret_key(name) and REFERENCE.sub("", value) else value


def _names(setting: str) -> Iterable[str]:
    also = ["pollingIntervalMs"] if setting == "polling_interval" else []
    return [*FunctionConfig.names().get(setting, [setting]), *also]


def _entries(node: Node) -> list[tuple[ScalarNode, Node]]:
    pairs = node.value if isinstance(node, MappingNode) else []
    return [(key, value) for key, value in pairs if isinstance(key, ScalarNode)]


def _function(document: Document, pipeline: str) -> MappingNode | None:
    sinks = document.find(("pipelines", pipeline, "sinks"))
    if sinks.path != ("pipelines", pipeline, "sinks") or not isinstance(sinks.node, SequenceNode):
        return None
    found = [value for sink in sinks.node.value for key, value in _entries(sink) if key.value == "function"]
    return next((node for node in found if isinstance(node, MappingNode)), None)
