"""Secrets among settings that holdfast does not define: those of Spark (`spark.conf`) and of the clients of Kafka."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel

from holdfast.config.models import Settings
from holdfast.config.plugins import NamedSink, PluginUse
from holdfast.config.secrets import Secret

_SAYS_SECRET = re.compile(
    r"passw|passphrase|pwd|secret|token|credential|key$|key\.pem$|account\.key|sas\.fixed", re.IGNORECASE
)
_SAYS_OTHERWISE = re.compile(
    r"(location|file|path|type|url|uri|provider|class|mechanism|enabled|algorithm|name|length|ms)$"
    r"|secretKeyRef|\.kubernetes\.(driver|executor)\.secrets\.",
    re.IGNORECASE,
)
_NO_SECRET = re.compile(r"|true|false|[\d.]+|/.*|file:.*", re.IGNORECASE)
_Entry = tuple[str, str, str | Secret]


def warnings_of_plain_text(settings: Settings) -> list[str]:
    """Return a warning for each of these settings that is written in the file itself and named like a secret."""
    if settings.allow_plaintext_secrets:
        return []
    usage = "stands in the file as plain text; write ${env:NAME} or ${file:PATH}"
    return [
        f"{where}: {name} {usage}"
        for where, name, value in _entries(settings, "")
        if isinstance(value, str) and _is_plain_secret(name, value)
    ]


def secret_names(settings: Settings) -> set[str]:
    """Return the names of all such settings whose value came from a reference."""
    return {name for _, name, value in _entries(settings, "") if isinstance(value, Secret)}


def _is_plain_secret(name: str, value: str) -> bool:
    if "jaas" in name.lower():
        return re.search(r"passw|secret", value, re.IGNORECASE) is not None
    named_so = _SAYS_SECRET.search(name) is not None and _SAYS_OTHERWISE.search(name) is None
    return named_so and _NO_SECRET.fullmatch(value) is None


def _entries(value: Any, where: str) -> Iterator[_Entry]:
    """Yield where the setting stands, its name and its value."""
    if isinstance(value, NamedSink):
        yield from _entries(value.use, f"{where}.{value.name}")
    elif isinstance(value, PluginUse):
        yield from _entries(value.config, f"{where}.{value.name}")
    elif isinstance(value, BaseModel):
        for name, field in type(value).model_fields.items():
            yield from _of_field(getattr(value, name), f"{where}.{name}".lstrip("."), field.annotation)
    elif isinstance(value, Mapping):
        for name, entry in value.items():
            yield from _entries(entry, f"{where}.{name}")
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _entries(entry, where)


def _of_field(value: Any, where: str, annotation: Any) -> Iterator[_Entry]:
    if isinstance(value, Mapping) and _takes_secrets(annotation):
        for name, entry in value.items():
            yield where, str(name), entry
    else:
        yield from _entries(value, where)


def _takes_secrets(annotation: Any) -> bool:
    return annotation is Secret or any(_takes_secrets(part) for part in get_args(annotation))
