"""A client of Confluent's schema registry: the schema of an id. Schemas never change, so they are cached."""

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
    """Requests each schema once. A request blocks until it succeeds or `tries` attempts have failed."""

    def __init__(self, endpoint: _Endpoint, sleep: Callable[[float], None] = time.sleep) -> None:
        self._endpoint = endpoint
        self._sleep = sleep
        self._schemas: dict[int, str] = {}

    def schema(self, number: int) -> str:
        """The schema, as JSON.

        Raises `Unreadable` if the registry has no such schema, `SourceUnavailable` if it cannot be reached or refuses
        access, `BatchError` if its response cannot be used.
        """
        if number not in self._schemas:
            self._schemas[number] = _schema_in(self._response(number), number)
        return self._schemas[number]

    def _response(self, number: int) -> Any:
        wait, reason = FIRST_WAIT, ""
        for attempt in range(self._endpoint.tries):
            if attempt:
                self._sleep(wait)
                wait = min(2 * wait, LONGEST_WAIT)
            try:
                with urllib.request.urlopen(self._request(number), timeout=self._endpoint.timeout) as response:  # noqa: S310 - the settings allow http and https only
                    return json.load(response)
            except urllib.error.HTTPError as refused:
                with refused:
                    reason = self._refusal(refused, number)
            except (OSError, http.client.HTTPException, ValueError) as error:
                reason = str(error) or type(error).__name__
        raise SourceUnavailable(f"the schema registry {self._endpoint.url} does not respond: {reason}")

    def _request(self, number: int) -> urllib.request.Request:
        endpoint = self._endpoint
        request = urllib.request.Request(f"{endpoint.url.rstrip('/')}/schemas/ids/{number}")  # noqa: S310 - as above
        if endpoint.user is not None:
            credentials = base64.b64encode(f"{endpoint.user}:{endpoint.password or ''}".encode()).decode()
            request.add_header("Authorization", f"Basic {credentials}")
        return request

    def _refusal(self, refused: urllib.error.HTTPError, number: int) -> str:
        """The reason, if another request may succeed; raises otherwise."""
        if refused.code != _NOT_FOUND:
            return f"{refused.code} {refused.reason}"
        try:
            code = json.load(refused).get("error_code")
        except (ValueError, AttributeError, OSError):
            code = None
        if code == _NO_SUCH_SCHEMA:
            raise Unreadable(f"the schema registry has no schema {number}")
        raise BatchError(
            f"{self._endpoint.url} is not a schema registry: it responds with 404 to /schemas/ids/{number}"
        )


@lru_cache(maxsize=16)
def _registry(endpoint: _Endpoint) -> SchemaRegistry:
    return SchemaRegistry(endpoint)


def registry_of(config: RegistryConfig) -> SchemaRegistry:
    """The client for these settings; there is one per process, so that tasks share the cached schemas."""
    password = None if config.password is None else config.password.reveal()
    return _registry(_Endpoint(config.url, config.user, password, config.timeout, config.tries))


def _schema_in(response: Any, number: int) -> str:
    schema = response.get("schema") if isinstance(response, dict) else None
    if not isinstance(schema, str):
        raise BatchError(f"the schema registry's response for schema {number} has no schema in it")
    if response.get("schemaType", "AVRO") != "AVRO":
        raise Unreadable(f"schema {number} is of type {response['schemaType']}, not Avro")
    if response.get("references"):
        raise BatchError(f"schema {number} refers to other schemas, which is not supported")
    return schema
