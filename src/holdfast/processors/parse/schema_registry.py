"""A client of Confluent's schema registry: the schema of a number. A schema never changes, so it is kept."""

from __future__ import annotations

import base64
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from holdfast.errors import BatchError, SourceUnavailable
from holdfast.processors.parse.field_config import RegistryConfig
from holdfast.processors.parse.portion import Unreadable

FIRST_WAIT = 0.2
LONGEST_WAIT = 5.0
_NOT_FOUND = 404
_NO_SUCH_SCHEMA = 40403


@dataclass(frozen=True)
class _Endpoint:
    url: str
    user: str | None
    password: str | None
    timeout: float
    tries: int


class SchemaRegistry:
    """Asks the registry once for each number. A question blocks until it is answered or `tries` have failed."""

    def __init__(self, place: _Endpoint, sleep: Callable[[float], None] = time.sleep) -> None:
        self._place = place
        self._sleep = sleep
        self._known: dict[int, str] = {}

    def schema(self, number: int) -> str:
        """The schema, as JSON.

        Raises `Unreadable` if the registry has no such number, `SourceUnavailable` if it cannot be reached or lets
        nobody in, `BatchError` if its answer cannot be used.
        """
        if number not in self._known:
            self._known[number] = _schema_in(self._asked(number), number)
        return self._known[number]

    def _asked(self, number: int) -> Any:
        wait, reason = FIRST_WAIT, ""
        for attempt in range(self._place.tries):
            if attempt:
                self._sleep(wait)
                wait = min(2 * wait, LONGEST_WAIT)
            try:
                with urllib.request.urlopen(self._request(number), timeout=self._place.timeout) as answer:  # noqa: S310 - the settings allow http and https only
                    return json.load(answer)
            except urllib.error.HTTPError as refused:
                with refused:
                    reason = self._refusal(refused, number)
            except (OSError, http.client.HTTPException, ValueError) as error:
                reason = str(error) or type(error).__name__
        raise SourceUnavailable(f"the schema registry {self._place.url} does not answer: {reason}")

    def _request(self, number: int) -> urllib.request.Request:
        place = self._place
        request = urllib.request.Request(f"{place.url.rstrip('/')}/schemas/ids/{number}")  # noqa: S310 - as above
        if place.user is not None:
            told = base64.b64encode(f"{place.user}:{place.password or ''}".encode()).decode()
            request.add_header("Authorization", f"Basic {told}")
        return request

    def _refusal(self, refused: urllib.error.HTTPError, number: int) -> str:
        """Why it said no, if asking again may help. Raises if it cannot."""
        if refused.code != _NOT_FOUND:
            return f"{refused.code} {refused.reason}"
        try:
            code = json.load(refused).get("error_code")
        except (ValueError, AttributeError, OSError):
            code = None
        if code == _NO_SUCH_SCHEMA:
            raise Unreadable(f"the schema registry has no schema {number}")
        raise BatchError(f"{self._place.url} is no schema registry: it answers 404 for /schemas/ids/{number}")


@lru_cache(maxsize=16)
def _registry(place: _Endpoint) -> SchemaRegistry:
    return SchemaRegistry(place)


def registry_of(config: RegistryConfig) -> SchemaRegistry:
    """The client for these settings; one for each process, so that tasks share what is known."""
    password = None if config.password is None else config.password.reveal()
    return _registry(_Endpoint(config.url, config.user, password, config.timeout, config.tries))


def _schema_in(answer: Any, number: int) -> str:
    schema = answer.get("schema") if isinstance(answer, dict) else None
    if not isinstance(schema, str):
        raise BatchError(f"the schema registry's answer for schema {number} has no schema in it")
    if answer.get("schemaType", "AVRO") != "AVRO":
        raise Unreadable(f"schema {number} is of type {answer['schemaType']}, not Avro")
    if answer.get("references"):
        raise BatchError(f"schema {number} refers to other schemas, which is not supported")
    return schema
