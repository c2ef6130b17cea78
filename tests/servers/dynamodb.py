"""DynamoDB Local for tests and benchmarks: on loopback, its tables in a temporary folder.

    with running(DynamodbServer) as dynamodb:
        store = DynamodbStore(dynamodb.config(table_name="leases"))

It can be stopped, killed (`crash`), frozen and thawed, and started again on the same port with its tables. It throttles
nobody, and its indexes are never behind: tests that need that put it in between themselves.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from holdfast.leases.lease import Lease
from holdfast.leases.store import Outcome
from holdfast.spark.java import find_java
from holdfast.stores.dynamodb import DynamodbConfig
from holdfast.stores.dynamodb.store import DynamodbStore
from tests.servers.java import server_options
from tests.servers.processes import HOW_TO_INSTALL, Server, cache_folder

VERSION = "2.6.1"
REGION = "eu-central-1"
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "testsecret"}
POLICY = frozenset(
    ("DescribeTimeToLive", "UpdateTimeToLive", "DescribeTable", "CreateTable", "GetItem", "PutItem", "Query")
)
"""What the policy that is documented for Data Prepper allows on the table."""
_MAIN = Path(__file__).parent / "DynamodbOnLoopback.java"


class DynamodbServer(Server):
    """Settings are DynamoDB Local's own options without the dash."""

    refuses_root = False

    @property
    def endpoint(self) -> str:
        """The value of `endpoint_url`."""
        return f"http://127.0.0.1:{self.port}"

    def initialise(self) -> None:
        (self.folder / "tables").mkdir()

    def command(self) -> Sequence[str]:
        jars = cache_folder() / f"dynamodb-local-{VERSION}"
        if not jars.is_dir():
            raise RuntimeError(f"there is no DynamoDB Local in {jars}; {HOW_TO_INSTALL}")
        options = {"port": str(self.port), "dbPath": str(self.folder / "tables"), **self.settings}
        given = [word for name, value in options.items() for word in (f"-{name}", value)]
        program = str(find_java().program)
        java = (program, "-Xmx512m", *server_options(jars), f"-Dsqlite4java.library.path={jars}")
        # Its own entry point listens on every interface; ours does not, but needs a Java that compiles.
        main = str(_MAIN) if compiles(program) else "com.amazonaws.services.dynamodbv2.local.main.ServerRunner"
        return (*java, "-cp", f"{jars}/*", main, *given, "-sharedDb", "-disableTelemetry")

    def config(self, **settings: Any) -> DynamodbConfig:
        """Settings of a store on this server. Sets the credentials that any client here needs."""
        os.environ.update(KEYS)
        given = {"table_name": "leases", "region": REGION, "endpoint_url": self.endpoint, **settings}
        return DynamodbConfig.model_validate(given)

    def _answers(self) -> bool:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=1.0)
        try:
            connection.request("GET", "/")
            return connection.getresponse().status > 0
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()


@cache
def compiles(java: str) -> bool:
    """Whether that Java runs a source file as it is."""
    return b"jdk.compiler" in subprocess.run([java, "--list-modules"], capture_output=True, check=True).stdout


def raw_client(config: DynamodbConfig) -> Any:
    """A client of somebody else, who may do anything."""
    import boto3

    return boto3.client("dynamodb", region_name=config.region, endpoint_url=config.endpoint_url)


class PolicedStore(DynamodbStore):
    """A store whose role may do what `POLICY` says, and delete items while `remove` is asked for."""

    def __init__(self, config: DynamodbConfig, clock: Callable[[], float] | None = None) -> None:
        super().__init__(config, clock)
        self.allowed = POLICY
        self.may_delete = True
        self.calls: list[str] = []
        """Names of all requests, in the order in which they were sent."""
        self.intercept: Callable[[str, dict[str, Any]], None] = lambda _name, _request: None
        """Called before each request with its name and parameters; what it raises is what the client raises."""
        connect = self._client._connected

        def connected() -> Any:
            client = connect()
            # The same id twice is one hook.
            client.meta.events.register("before-parameter-build.dynamodb", self._before, unique_id="police")
            return client

        self._client._connected = connected  # type: ignore[method-assign]

    def remove(self, leases: Sequence[Lease]) -> list[Outcome]:
        allowed, self.allowed = self.allowed, self.allowed | ({"DeleteItem"} if self.may_delete else set())
        try:
            return super().remove(leases)
        finally:
            self.allowed = allowed

    def _before(self, params: dict[str, Any], model: Any, **_: Any) -> None:
        self.calls.append(model.name)
        if model.name not in self.allowed:
            raise refusal("AccessDeniedException", model.name)
        self.intercept(model.name, params)


@contextmanager
def fresh_table(server: DynamodbServer, **settings: Any) -> Iterator[DynamodbConfig]:
    """The configuration of a table of its own, which is deleted at the end."""
    config = server.config(table_name=f"leases-{uuid.uuid4().hex}", **settings)
    yield config
    raw_client(config).delete_table(TableName=config.table_name)


@contextmanager
def opened_store(config: DynamodbConfig) -> Iterator[PolicedStore]:
    store = PolicedStore(config)
    store.open()
    yield store
    store.close()


def refusal(code: str, operation: str, status: int = 400) -> ClientError:
    """An answer of the server that is an error."""
    answer: Any = {"Error": {"Code": code, "Message": "made by a test"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, operation)
