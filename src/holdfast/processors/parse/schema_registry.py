"""A client of Confluent's schema registry: the schema of an id, with the schemas that it refers to."""

from __future__ import annotations

import base64
import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar

from holdfast.errors import BatchError, SourceUnavailable
from holdfast.processors.parse.field_config import RegistryConfig
from holdfast.processors.parse.portion import Unreadable

FIRST_WAIT = 0.2
LONGEST_WAIT = 5.0
MAX_RESPONSE = 16 << 20
"""Bytes of a response, and of a schema with all schemas that it refers to."""
MAX_REFERENCES = 200
MAX_REFERENCE_DEPTH = 32
MAX_CACHED_SCHEMAS = 1000
MAX_CACHED_BYTES = 64 << 20
MAX_UNKNOWN = 10_000
UNKNOWN_FOR = 30.0
"""Seconds for which an id without a usable schema is not requested again."""
_NOT_FOUND = 404
_REDIRECTS = range(300, 400)
_NO_SUCH_SCHEMA = (40401, 40402, 40403)
_CHUNK = 64 << 10
_LONGEST_REASON = 500

T = TypeVar("T")


class RecentSchemas(Generic[T]):
    """A cache by schema id that drops the least recently used entries."""

    def __init__(self) -> None:
        self._entries: OrderedDict[int, tuple[T, int]] = OrderedDict()
        self._bytes = 0

    def get(self, number: int) -> T | None:
        entry = self._entries.get(number)
        if entry is None:
            return None
        self._entries.move_to_end(number)
        return entry[0]

    def put(self, number: int, value: T, size: int) -> None:
        """Adds what is not there yet. `size` is the number of bytes of the schema."""
        self._entries[number] = (value, size)
        self._bytes += size
        while len(self._entries) > MAX_CACHED_SCHEMAS or (self._bytes > MAX_CACHED_BYTES and len(self._entries) > 1):
            self._bytes -= self._entries.popitem(last=False)[1][1]


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema, as JSON, and those that it refers to, each after those that it refers to itself."""

    text: str
    references: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return len(self.text) + sum(map(len, self.references))


@dataclass(frozen=True)
class Endpoint:
    url: str
    user: str | None
    password: str | None
    timeout: float
    tries: int


class SchemaRegistry:
    """Requests each schema once, as schemas never change; missing ones again after `UNKNOWN_FOR`.

    A request blocks until it succeeds or `tries` attempts have failed.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = _Connection(endpoint, sleep, clock)
        self._clock = clock
        self._schemas = RecentSchemas[RegisteredSchema]()
        self._unknown: dict[int, tuple[float, str]] = {}

    def schema(self, number: int) -> RegisteredSchema:
        """The schema.

        Raises `Unreadable` if the registry has no such schema or it cannot be used, `SourceUnavailable` if the registry
        cannot be reached or refuses access, `BatchError` if the server is not a schema registry.
        """
        cached = self._schemas.get(number)
        if cached is not None:
            return cached
        until, reason = self._unknown.get(number, (0.0, ""))
        if reason and self._clock() < until:
            raise Unreadable(reason)
        try:
            found = _Resolution(self._connection, number).schema()
        except Unreadable as wrong:
            self._remember(number, str(wrong))
            raise
        self._unknown.pop(number, None)
        self._schemas.put(number, found, found.size)
        return found

    def _remember(self, number: int, reason: str) -> None:
        self._unknown.pop(number, None)
        if len(self._unknown) >= MAX_UNKNOWN:
            del self._unknown[next(iter(self._unknown))]
        self._unknown[number] = (self._clock() + UNKNOWN_FOR, reason[:_LONGEST_REASON])


class _Resolution:
    """Fetches one schema and those that it refers to. Raises as `SchemaRegistry.schema` does."""

    def __init__(self, connection: _Connection, number: int) -> None:
        self._connection = connection
        self._number = number
        self._name = f"schema {number}"
        self._begun: set[str] = set()
        self._done: set[str] = set()
        self._size = 0

    def schema(self) -> RegisteredSchema:
        text, references = self._fetched(f"/schemas/ids/{self._number}", self._name)
        ordered: list[str] = []
        self._resolve(references, 1, ordered)
        return RegisteredSchema(text, tuple(ordered))

    def _resolve(self, references: list[Any], depth: int, ordered: list[str]) -> None:
        if references and depth > MAX_REFERENCE_DEPTH:
            raise Unreadable(f"{self._name} refers to schemas more than {MAX_REFERENCE_DEPTH} levels deep")
        for reference in references:
            path, label = self._referenced(reference)
            if path in self._begun:
                raise Unreadable(f"{label} refers to itself")
            if path in self._done:
                continue
            if len(self._begun) + len(self._done) >= MAX_REFERENCES:
                raise Unreadable(f"{self._name} refers to more than {MAX_REFERENCES} schemas")
            self._begun.add(path)
            text, below = self._fetched(path, label)
            self._resolve(below, depth + 1, ordered)
            self._begun.remove(path)
            self._done.add(path)
            ordered.append(text)

    def _referenced(self, reference: Any) -> tuple[str, str]:
        """The path of a schema that is referred to, and its name in messages for people."""
        try:
            subject, version = reference["subject"], int(reference["version"])
            path = f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/{version}"
        except (LookupError, TypeError, ValueError):
            raise Unreadable(f"{self._name} refers to a schema without a valid subject and version") from None
        return path, f"version {version} of the subject {subject}, to which {self._name} refers,"

    def _fetched(self, path: str, label: str) -> tuple[str, list[Any]]:
        """The text of a schema, and its references."""
        response = self._connection.get(path)
        if response is None:
            raise Unreadable(f"the schema registry has no {label.removesuffix(',')}")
        schema = response.get("schema") if isinstance(response, dict) else None
        if not isinstance(schema, str):
            raise BatchError(f"the schema registry's response to {path} has no schema in it")
        self._size += len(schema)
        if self._size > MAX_RESPONSE:
            raise Unreadable(f"{self._name} and the schemas that it refers to have more than {MAX_RESPONSE} bytes")
        kind = response.get("schemaType") or "AVRO"
        if kind != "AVRO":
            raise Unreadable(f"{label} is of type {kind}, not Avro")
        references = response.get("references") or []
        if not isinstance(references, list):
            raise Unreadable(f"{label} has references that are not a list")
        return schema, references


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Turns a redirect into an error, because it would carry the credentials to another server."""

    def redirect_request(self, *_: Any) -> None:
        return None


class _Connection:
    """Sends requests, each until it succeeds or `tries` attempts have failed."""

    def __init__(self, endpoint: Endpoint, sleep: Callable[[float], None], clock: Callable[[], float]) -> None:
        self.url = endpoint.url.rstrip("/")
        self._endpoint = endpoint
        self._sleep, self._clock = sleep, clock
        self._opener = urllib.request.build_opener(_NoRedirects)

    def get(self, path: str) -> Any:
        """The parsed response; None if the registry does not have it."""
        wait, reason = FIRST_WAIT, ""
        for attempt in range(self._endpoint.tries):
            if attempt:
                self._sleep(wait)
                wait = min(2 * wait, LONGEST_WAIT)
            try:
                with self._opener.open(self._request(path), timeout=self._endpoint.timeout) as response:
                    return self._parsed(response, path)
            except urllib.error.HTTPError as refused:
                with refused:
                    if refused.code == _NOT_FOUND:
                        self._check_not_found(refused, path)
                        return None
                    reason = _refusal(refused)
            except Unreadable:
                raise
            except (OSError, http.client.HTTPException, ValueError) as error:
                reason = str(error) or type(error).__name__
        raise SourceUnavailable(f"the schema registry {self._endpoint.url} does not respond: {reason}")

    def _request(self, path: str) -> urllib.request.Request:
        request = urllib.request.Request(f"{self.url}{path}")  # noqa: S310 - the settings allow http and https only
        user, password = self._endpoint.user, self._endpoint.password
        if user is not None:
            credentials = base64.b64encode(f"{user}:{password or ''}".encode()).decode()
            request.add_header("Authorization", f"Basic {credentials}")
        return request

    def _parsed(self, response: Any, path: str) -> Any:
        body, deadline = bytearray(), self._clock() + self._endpoint.timeout
        while chunk := response.read1(_CHUNK):
            body += chunk
            if len(body) > MAX_RESPONSE:
                raise Unreadable(f"the schema registry's response to {path} has more than {MAX_RESPONSE} bytes")
            if self._clock() > deadline:
                raise TimeoutError(f"the response takes longer than {self._endpoint.timeout:g} s")
        try:
            return json.loads(body)
        except RecursionError:
            raise self._not_a_registry("nested too deeply", path) from None

    def _check_not_found(self, refused: urllib.error.HTTPError, path: str) -> None:
        try:
            code = json.loads(refused.read(_CHUNK)).get("error_code")
        except (ValueError, AttributeError, OSError, RecursionError, http.client.HTTPException):
            code = None
        if code not in _NO_SUCH_SCHEMA:
            raise self._not_a_registry("404", path)

    def _not_a_registry(self, what: str, path: str) -> BatchError:
        return BatchError(f"{self._endpoint.url} is not a schema registry: its response to {path} is {what}")


def _refusal(refused: urllib.error.HTTPError) -> str:
    reason = f"{refused.code} {refused.reason}"
    if refused.code not in _REDIRECTS:
        return reason
    try:
        host = urllib.parse.urlsplit(refused.headers.get("Location") or "").hostname
    except ValueError:
        host = None
    return f"{reason}: redirects are not followed" + (f"; this one leads to {host}" if host else "")


@lru_cache(maxsize=16)
def _registry(endpoint: Endpoint) -> SchemaRegistry:
    return SchemaRegistry(endpoint)


def registry_of(config: RegistryConfig) -> SchemaRegistry:
    """The client for these settings; there is one per process, so that tasks share the cached schemas."""
    password = None if config.password is None else config.password.reveal()
    return _registry(Endpoint(config.url, config.user, password, config.timeout, config.tries))
