"""Nuclio's words for the settings of a stream trigger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from pydantic_core import PydanticCustomError

from holdfast.config.plugins import PLAIN_ERROR
from holdfast.config.units import VALUE_ERROR

ANNOTATIONS = {
    "nuclio.io/v3iostream-worker-allocation-mode": "workerAllocationMode",
    "nuclio.io/kafka-worker-allocation-mode": "workerAllocationMode",
    "nuclio.io/v3iostream-explicit-ack-mode": "explicitAckMode",
}
"""Annotations of a function that stand for a setting of its trigger."""


@dataclass(frozen=True, slots=True)
class StreamAddress:
    """A stream and a consumer group, as the URL of a trigger names them."""

    host: str
    container: str
    path: str
    group: str

    @property
    def stream(self) -> str:
        """The stream's name: container and path, joined by dots as in names of streams and topics."""
        return f"{self.container}/{self.path}".replace("/", ".")

    @property
    def names(self) -> tuple[str, str]:
        """Names that the stream may have in a source: with the container and without."""
        return self.stream, self.path.replace("/", ".")


def stream_address(value: Any) -> Any:
    """The parts of `http://host:port/<container>/<stream path>@<consumer group>`."""
    if isinstance(value, StreamAddress):
        return value
    text = value.strip() if isinstance(value, str) else ""
    try:
        parts = urlsplit(text)
        # Reading the port raises if it is not a number.
        host = parts.netloc if parts.hostname and parts.port != 0 else ""
    except ValueError:
        parts, host = urlsplit(""), ""
    location, _, group = parts.path.strip("/").rpartition("@")
    container, _, path = location.partition("/")
    path = path.strip("/")
    if parts.scheme not in {"http", "https"} or not (host and container and path and group) or "@" in host:
        raise PydanticCustomError(
            VALUE_ERROR, "must be http://host:port/container/stream path@consumer group, without a user name"
        )
    return StreamAddress(host, container, path, group)


def seek_word(value: Any) -> Any:
    """The word in our spelling: Nuclio writes `Earliest` and `Latest`."""
    return value.lower() if isinstance(value, str) else value


def ack_mode(value: Any) -> Any:
    """The mode in our spelling: Nuclio writes `explicitOnly`."""
    return "explicit_only" if value == "explicitOnly" else value


def in_own_words(given: Any) -> Any:
    """Settings with `pollingIntervalMs` and `annotations` replaced by what they stand for."""
    if not isinstance(given, Mapping):
        return given
    settings = dict(given)
    if (interval := settings.pop("pollingIntervalMs", None)) is not None:
        if not str(interval).isdecimal() or "polling_interval" in settings:
            message = "pollingIntervalMs must be a number of milliseconds, and stands for polling_interval"
            raise PydanticCustomError(PLAIN_ERROR, message)
        settings["polling_interval"] = f"{interval}ms"
    annotations = settings.pop("annotations", None) or {}
    if not isinstance(annotations, Mapping) or not annotations.keys() <= ANNOTATIONS.keys():
        raise PydanticCustomError(PLAIN_ERROR, f"annotations may hold {', '.join(ANNOTATIONS)}")
    for name, value in annotations.items():
        if _OWN_NAMES[ANNOTATIONS[name]] not in settings:
            settings.setdefault(ANNOTATIONS[name], value)
    return settings


_OWN_NAMES = {"workerAllocationMode": "worker_allocation", "explicitAckMode": "ack"}
