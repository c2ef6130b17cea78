"""The settings of a function in a YAML file, without the rest of the file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import ValidationError

from holdfast.config.secrets import References
from holdfast.errors import UsageError
from holdfast.functions.nuclio_file import convert_nuclio
from holdfast.functions.settings import FunctionConfig


def function_settings(
    text: str, file_name: str, pipeline: str | None = None, model: type[FunctionConfig] = FunctionConfig
) -> FunctionConfig:
    """The function of a pipeline file, or of a function.yaml of Nuclio. Raises `UsageError` if there is none.

    Only the sink `function` is read and validated as `model`: the rest may use plugins that are not installed here.
    """
    functions = _functions(text, file_name)
    if pipeline is not None and pipeline not in functions:
        raise UsageError(f"{file_name} has no function in a pipeline {pipeline!r}; it has {_listed(functions)}")
    if pipeline is None and len(functions) != 1:
        raise UsageError(f"{file_name} has functions in these pipelines: {_listed(functions)}; add --pipeline")
    name = pipeline if pipeline is not None else next(iter(functions))
    try:
        return model.model_validate(_resolved(functions[name], References(os.environ)))
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, item['loc']))} {item['msg']}".strip() for item in error.errors())
        raise UsageError(f"the function of pipeline {name!r} in {file_name} is wrong: {problems}") from None
    except ValueError as error:
        raise UsageError(f"the function of pipeline {name!r} in {file_name} is wrong: {error}") from None


def _functions(text: str, file_name: str) -> dict[str, Any]:
    try:
        document = yaml.safe_load(text)
        if isinstance(document, Mapping) and "spec" in document:
            document = yaml.safe_load(convert_nuclio(text, file_name))
    except yaml.YAMLError as error:
        raise UsageError(f"{file_name} is not YAML: {error}") from None
    pipelines = document.get("pipelines") if isinstance(document, Mapping) else None
    found: dict[str, Any] = {}
    for name, pipeline in (pipelines or {}).items():
        sinks = pipeline.get("sinks") if isinstance(pipeline, Mapping) else None
        for sink in sinks or []:
            if isinstance(sink, Mapping) and "function" in sink:
                found[name] = sink["function"]
    return found


def _listed(functions: Mapping[str, Any]) -> str:
    return ", ".join(functions) or "none"


def _resolved(value: Any, references: References) -> Any:
    if isinstance(value, Mapping):
        return {name: _resolved(item, references) for name, item in value.items()}
    if isinstance(value, list):
        return [_resolved(item, references) for item in value]
    return references.resolve(value) if isinstance(value, str) else value
