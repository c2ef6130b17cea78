"""Which keys are known at a place of the data, so that a misspelt one can be answered with the right one."""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from holdfast.config.plugins import Uses
from holdfast.errors import UsageError
from holdfast.registry import Registry

Path = tuple[str | int, ...]


def known_keys(model: type[BaseModel], path: Path, registry: Registry) -> list[str]:
    """Keys that are possible in the mapping at this path, sorted."""
    return sorted({key for found in _models(model, path, registry) for key in _fields(found)})


def _models(annotation: Any, path: Path, registry: Registry) -> Iterator[type[BaseModel]]:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        uses = next((extra for extra in arguments[1:] if isinstance(extra, Uses)), None)
        yield from _of_plugin(uses, path, registry) if uses else _models(arguments[0], path, registry)
    elif origin in {Union, UnionType}:
        for member in arguments:
            yield from _models(member, path, registry)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield from _of_model(annotation, path, registry)
    elif arguments and path:  # an entry of a list, a tuple or a dict
        entry = [argument for argument in arguments if argument is not ...][-1]
        yield from _models(entry, path[1:], registry)


def _of_model(model: type[BaseModel], path: Path, registry: Registry) -> Iterator[type[BaseModel]]:
    if not path:
        yield model
    elif field := _fields(model).get(str(path[0])):
        yield from _models(Annotated[(field.annotation, *field.metadata, None)], path[1:], registry)
    else:  # the name of a union's member, which is in pydantic's path but not in the file
        yield from _of_model(model, path[1:], registry)


def _of_plugin(uses: Uses, path: Path, registry: Registry) -> Iterator[type[BaseModel]]:
    try:
        config = registry.get(uses.kind, str(path[0])) if path else None
    except UsageError:
        config = None
    if config is not None:
        yield from _models(config.config, path[1:], registry)


def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {_written(name, field): field for name, field in model.model_fields.items()}


def _written(name: str, field: FieldInfo) -> str:
    alias = field.validation_alias or field.alias
    return alias if isinstance(alias, str) else name
