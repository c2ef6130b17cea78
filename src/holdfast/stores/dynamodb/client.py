"""Requests to DynamoDB: several at a time, with common throttling, and with the errors of a store.

The SDK's own retries are off: after one of them, a conflict and the success of an earlier attempt look the same. A
throttled request was not applied and is repeated here; a write without a response is never repeated here.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    ProxyConnectionError,
)

from holdfast.config.aws import AwsIdentity, aws_client
from holdfast.errors import AnswerLost, SchemaMismatch, StoreError, StoreUnavailable
from holdfast.stores._server_clock import ServerClock
from holdfast.stores.dynamodb import DynamodbConfig

CONNECT_TIMEOUT = 5.0
READ_TIMEOUT = 10.0
THREADS = 8
PATIENCE = 3.0
"""Seconds for which a throttled request is repeated before the error is raised."""
READ_TRIES = 3

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_WRITES = {"put_item", "delete_item"}
_THROTTLED = {
    "ProvisionedThroughputExceededException",
    "ThrottlingException",
    "Throttling",
    "RequestLimitExceeded",
    "LimitExceededException",
    "TooManyRequestsException",
}
_EXPIRED = {"ExpiredTokenException", "ExpiredToken", "RequestExpired"}
_NEVER_SENT = (EndpointConnectionError, ConnectTimeoutError, ProxyConnectionError)

_Input = TypeVar("_Input")
_Result = TypeVar("_Result")


class ConditionFailed(Exception):
    """The condition of the request does not hold; nothing was written."""


class DynamodbClient:
    """A client of one table, with a thread pool."""

    def __init__(self, config: DynamodbConfig) -> None:
        self.location = f"dynamodb table {config.table_name} in {config.region}"
        if config.endpoint_url:
            self.location += f" at {config.endpoint_url}"
        self.clock = ServerClock()
        self._config = config
        self._pace = _Pace()
        self._lock = threading.Lock()
        self._client: Any = None
        self._pool: ThreadPoolExecutor | None = None

    def call(self, verb: str, **arguments: Any) -> Mapping[str, Any]:
        """The response to `verb` on the table. Blocks, for a few seconds if DynamoDB throttles.

        Raises `ConditionFailed`; `StoreUnavailable` if nothing was applied; `AnswerLost` if a write may have been
        applied; `StoreError` if waiting will not help.
        """
        give_up_at = time.monotonic() + PATIENCE
        tries = 0
        while True:
            self._pace.wait()
            tries += 1
            try:
                response: Mapping[str, Any] = getattr(self._connected(), verb)(
                    TableName=self._config.table_name, **arguments
                )
            except (BotoCoreError, ClientError) as error:
                self.clock.hear_response(_response(error))
                if not self._may_repeat(verb, error, tries, give_up_at):
                    raise self._translated(verb, error) from error
                continue
            self._pace.faster()
            self.clock.hear_response(response)
            return response

    def pages(self, **arguments: Any) -> Iterator[Mapping[str, Any]]:
        """All pages of a Query."""
        more: dict[str, Any] = {}
        while True:
            page = self.call("query", **arguments, **more)
            yield page
            if "LastEvaluatedKey" not in page:
                return
            more = {"ExclusiveStartKey": page["LastEvaluatedKey"]}

    def each(self, do: Callable[[_Input], _Result], inputs: Iterable[_Input]) -> list[_Result]:
        """Call `do` for each input, several at a time; returns results in order. Raises the first error at the end."""
        given = list(inputs)
        if len(given) < 2:
            return [do(item) for item in given]
        futures = [self._threads().submit(do, item) for item in given]
        errors = [error for error in [future.exception() for future in futures] if error is not None]
        if errors:
            raise errors[0]
        return [future.result() for future in futures]

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()
        if client is not None:
            client.close()

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = connect(self._config, THREADS * 2)
            return self._client

    def _threads(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="holdfast-dynamodb")
            return self._pool

    def _may_repeat(self, verb: str, error: Exception, tries: int, give_up_at: float) -> bool:
        if _code(error) in _THROTTLED:
            self._pace.slower()
            return time.monotonic() < give_up_at
        broken = isinstance(error, HTTPClientError) or _status(error) >= 500
        return broken and verb not in _WRITES and not isinstance(error, _NEVER_SENT) and tries < READ_TRIES

    def _translated(self, verb: str, error: Exception) -> Exception:
        code, status = _code(error), _status(error)
        if code == "ConditionalCheckFailedException":
            return ConditionFailed()
        message = f"{self.location}: {verb} failed: {_reason(error)}"
        if code in _THROTTLED:
            return StoreUnavailable(
                f"{message}; it throttles requests, which are repeated later. More capacity "
                f"helps, or billing: on_demand"
            )
        if isinstance(error, _NEVER_SENT) or code in _EXPIRED or "Credential" in type(error).__name__:
            return StoreUnavailable(message)
        if code == "ResourceNotFoundException":
            return SchemaMismatch(f"{message}: there is no such table, or it is being deleted")
        if code == "AccessDeniedException":
            return StoreError(f"{message}. The role needs dynamodb:{''.join(map(str.capitalize, verb.split('_')))}")
        if isinstance(error, ClientError) and 400 <= status < 500:
            return StoreError(message)
        return AnswerLost(message) if verb in _WRITES else StoreUnavailable(message)


class _Pace:
    """The common pace of a store's threads: all slow down when one of them is throttled, and speed up gradually."""

    def __init__(self) -> None:
        self._pause = 0.0
        self._resume_at = 0.0
        self._lock = threading.Lock()

    def wait(self) -> None:
        wait = self._resume_at - time.monotonic()
        if wait > 0:
            time.sleep(wait * random.uniform(0.5, 1.0))

    def slower(self) -> None:
        with self._lock:
            now = time.monotonic()
            if now < self._resume_at:
                return  # one of many that were under way together
            self._pause = min(_LONGEST_PAUSE, max(_FIRST_PAUSE, 2 * self._pause))
            self._resume_at = now + self._pause

    def faster(self) -> None:
        if self._pause:
            with self._lock:
                self._pause = self._pause / 2 if self._pause > _FIRST_PAUSE else 0.0


def _response(error: Exception) -> Mapping[str, Any]:
    """The server's response; empty for an error of the connection."""
    response = getattr(error, "response", None)
    return response if isinstance(response, dict) else {}


def _status(error: Exception) -> int:
    return int(_response(error).get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _code(error: Exception) -> str:
    return str(_response(error).get("Error", {}).get("Code", ""))


def _reason(error: Exception) -> str:
    details = _response(error).get("Error", {})
    return f"{details.get('Code', '')} {details.get('Message', '')}".strip() or str(error)


# --- who we are ------------------------------------------------------------------------------------------------------


def connect(config: DynamodbConfig, connections: int) -> Any:
    """Create a client. Sends nothing to DynamoDB. Raises what botocore raises if there are no credentials."""
    return aws_client(
        AwsIdentity.of(config).session(config.region),
        "dynamodb",
        endpoint_url=config.endpoint_url,
        connect_timeout=CONNECT_TIMEOUT,
        read_timeout=READ_TIMEOUT,
        connections=connections,
        tcp_keepalive=True,
    )
