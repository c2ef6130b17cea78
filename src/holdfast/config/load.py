"""The configuration file to `Settings`, or one `ConfigError` with everything that is wrong."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from holdfast.config.explain import Explainer
from holdfast.config.models import Settings
from holdfast.config.plugins import PLAIN_ERROR
from holdfast.config.positions import Document
from holdfast.config.secrets import PlaintextRule, References
from holdfast.config.values import TooMuch, Values
from holdfast.errors import ConfigError, Mark
from holdfast.registry import Registry

MAX_BYTES = 1_000_000


def load(path: str | Path, registry: Registry, environ: Mapping[str, str] = os.environ) -> Settings:
    """Settings of a file. References are resolved and the named plugins imported; nothing is built."""
    return load_text(_read(path), str(path), registry, environ)


def load_text(text: str, file: str, registry: Registry, environ: Mapping[str, str] = os.environ) -> Settings:
    """As `load`, for text that is already in memory; `file` is the name that errors show."""
    document = Document(file, text)
    values = Values(References(environ).resolve)
    try:
        data = values.read(document.root)
    except TooMuch as error:
        raise document.error([error.problem], ()) from None
    rule = PlaintextRule(allowed=_allows_plaintext(data))
    settings, errors = _validate(data, {"registry": registry, "plaintext": rule})
    explainer = Explainer(document, data, Settings, registry, rule.seen)
    unread = {id(node) for node, _ in values.problems}
    # What could not be read has been reported; that it is also of the wrong type is no news.
    wrong = [problem for problem in explainer.problems(errors) if id(problem[0]) not in unread]
    if settings is None or values.problems:
        raise document.error(values.problems + wrong, rule.seen)
    return settings


def _allows_plaintext(data: Any) -> bool:
    # Secrets are checked in the same pass as this switch, so it is read before.
    given = data.get("allow_plaintext_secrets") if isinstance(data, dict) else None
    try:
        return TypeAdapter(bool).validate_python(given)
    except ValidationError:
        return False


def _validate(data: Any, context: dict[str, Any]) -> tuple[Settings | None, list[ErrorDetails]]:
    if not isinstance(data, dict):
        return None, [ErrorDetails(type=PLAIN_ERROR, loc=(), msg=_NO_MAPPING, input=None)]
    try:
        return Settings.model_validate(data, context=context), []
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
    # Outside of the handler: pydantic's error holds resolved values and must not hang on ours.
    return None, found


_NO_MAPPING = "expected keys such as 'pipelines:' at the top of the file"


def _read(path: str | Path) -> str:
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except IsADirectoryError:
        raise _unreadable(path, "is a directory, not a file") from None
    except FileNotFoundError:
        raise _unreadable(path, "there is no such file") from None
    except (OSError, ValueError) as error:
        raise _unreadable(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(content) > MAX_BYTES:
        raise _unreadable(path, f"is larger than {MAX_BYTES // 1_000_000} MB")
    return _decode(str(path), content)


def _decode(file: str, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8-sig").split("\n")
    raise ConfigError([(Mark(file, len(before), len(before[-1]) + 1), "this is not UTF-8 text")])


def _unreadable(path: str | Path, message: str) -> ConfigError:
    return ConfigError([(None, f"{path}: {message}")])
