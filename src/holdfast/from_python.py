"""holdfast from Python: settings from a file, a dictionary or code, and a node that runs in this process.

`holdfast.load`, `holdfast.run` and `holdfast.Pipeline` are defined here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from holdfast import service
from holdfast.config.load import load_text
from holdfast.config.models import Settings
from holdfast.configured_store import find_modules_beside, load_settings
from holdfast.errors import UsageError
from holdfast.observe.consumers import Consumer
from holdfast.observe.log import Log
from holdfast.observe.measurements import Measurements
from holdfast.observe.progress import Progress, Summary
from holdfast.registry import Registry
from holdfast.runs.pickup import RunPickup

PluginSettings: TypeAlias = Mapping[str, Any]
"""A plugin as in a file: its name, and below it its settings, such as `{"objects": {"folder": "in"}}`."""

_NAME = "settings"
"""What errors call settings that do not come from a file."""


class Pipeline:
    """A pipeline built in code, for the dictionary that `load` and `run` take.

    It only describes: names of plugins and settings are checked by `load`. A processor may also be a function that
    takes and returns a DataFrame; it is used as the processor `python` uses it. `options` are the other settings of a
    pipeline, such as `generation=2` or `batch={"max_records": 1000}`.
    """

    def __init__(
        self,
        *,
        source: PluginSettings,
        sinks: Sequence[PluginSettings],
        processors: Sequence[PluginSettings | Callable[[Any], Any]] = (),
        **options: Any,
    ) -> None:
        """Raises `UsageError` for a function that cannot be imported by its name, such as a lambda."""
        steps = [{"python": {"function": _name_of(each)}} if callable(each) else each for each in processors]
        self.settings: dict[str, Any] = {"source": source, "processors": steps, "sinks": sinks, **options}


def load(settings: str | Path | Mapping[str, Any]) -> Settings:
    """Return the settings of a file, or of a dictionary like one, in which a pipeline may be a `Pipeline`.

    References such as `${env:NAME}` are resolved. Raises `ConfigError` with everything that is wrong; for a dictionary,
    lines are those of the equivalent YAML. A dictionary may have secrets in plain text. From then on this process finds
    modules beside the file, or in the working directory. Connects to nothing, and starts no Spark.
    """
    if not isinstance(settings, Mapping):
        return load_settings(settings)
    plain = _plain(settings)
    plain.setdefault("allow_plaintext_secrets", True)
    text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
    loaded = load_text(text, _NAME, Registry.installed())
    find_modules_beside(loaded)
    return loaded


def run(
    settings: Settings | str | Path | Mapping[str, Any],
    emit: Consumer | None = None,
    *,
    node_name: str | None = None,
    pipelines: Sequence[str] = (),
) -> Summary:
    """Run pipelines on this node, as `holdfast run` does, and return what the node has done.

    Blocks until the pipelines are finished, or SIGINT (Ctrl-C, or the interrupt of a notebook) or SIGTERM stops the
    node, which hands its leases back within ten seconds. Signals are handled in the main thread only: in another thread
    the node runs until it is finished. `emit` gets every event, from several threads; unless given, events are logged
    to stderr. `pipelines` chooses some of the pipelines in the settings. Metrics are served and alerts are sent if the
    settings say so.

    May be called repeatedly. Starts a Spark session and stops it: raises `UsageError` if this process has one. Raises
    `ConfigError` before the node joins if settings do not fit, `StoreError`, `Unavailable` and `Refused`.
    """
    chosen = settings if isinstance(settings, Settings) else load(settings)
    name = node_name or chosen.node.name
    log = emit or Log(sys.stderr, form=chosen.node.log, node=name)
    counted = Progress(chosen.identifier(pipeline) for pipeline in pipelines or chosen.pipelines)
    measurements = Measurements()
    with service.observed(chosen, [log, counted, measurements], name) as report:
        more: dict[str, Any] = {"beside": RunPickup, "measurements": measurements}
        code = service.run(chosen, report, node_name=node_name, pipelines=pipelines, **more)
    return replace(counted.summary(), complete=code == 0)


def _name_of(function: Callable[[Any], Any]) -> str:
    name = getattr(function, "__qualname__", "")
    if not name.isidentifier():
        raise UsageError(
            f"{name or function!r} cannot be imported by its name: give a function of a module or of the notebook, and "
            "not a lambda, a method or a function inside another one"
        )
    return f"{function.__module__}:{name}"


def _plain(value: Any) -> Any:
    """The value as YAML writes it."""
    if isinstance(value, Pipeline):
        return _plain(value.settings)
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str | Path):
        return str(value)
    raise UsageError(f"settings cannot have a {type(value).__name__}; write it as text, a number, a list or a mapping")
