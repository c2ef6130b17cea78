"""The YAML file: models, loading with file:line:column errors, JSON Schema."""

from holdfast.config.load import check, load, load_text
from holdfast.config.models import PipelineSettings, Settings
from holdfast.config.options import AddedLater, Options
from holdfast.config.plugins import NamedSink, PluginUse, Uses
from holdfast.config.schema import json_schema
from holdfast.config.secrets import Secret
from holdfast.config.units import ByteSize, Count, Duration, LocalPath, PositiveCount

__all__ = [
    "AddedLater",
    "ByteSize",
    "Count",
    "Duration",
    "LocalPath",
    "NamedSink",
    "Options",
    "PipelineSettings",
    "PluginUse",
    "PositiveCount",
    "Secret",
    "Settings",
    "Uses",
    "check",
    "json_schema",
    "load",
    "load_text",
]
