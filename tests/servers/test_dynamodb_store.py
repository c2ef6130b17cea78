"""The store in DynamoDB on DynamoDB Local, under a policy that allows what the documented one allows."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from hypothesis import settings

from holdfast.leases.lease import Key
from holdfast.leases.store import Store
from holdfast.stores.dynamodb import DynamodbConfig
from holdfast.stores.dynamodb.items import table_key
from holdfast.testing.stores import StoreBehaviour, StoreMachine
from holdfast.testing.worlds import TurnableClock
from tests.servers.dynamodb import DynamodbServer, PolicedStore, fresh_table, raw_client


@pytest.fixture(scope="module", autouse=True)
def _server_of_the_machine(dynamodb_server: DynamodbServer) -> None:
    DynamodbMachine.config = dynamodb_server.config()


class TestDynamodbStore(StoreBehaviour):
    many = 200  # each lease is a request, of each of those that race for it

    @pytest.fixture(autouse=True)
    def one_table(self, dynamodb_server: DynamodbServer) -> Iterator[None]:
        self.clock = TurnableClock()
        with fresh_table(dynamodb_server) as self.config:
            yield

    def make_store(self) -> Store:
        return PolicedStore(self.config, self.clock.monotonic)

    def child_factory(self) -> Callable[[], Store]:
        return partial(PolicedStore, self.config)

    def pass_time(self, seconds: float) -> None:
        self.clock.turn(seconds)

    def corrupt(self, store: Store, key: Key) -> None:
        client, name = raw_client(self.config), self.config.table_name
        item = client.get_item(TableName=name, Key=table_key(key), ConsistentRead=True)["Item"]
        client.put_item(TableName=name, Item={**item, "body": {"S": item["body"]["S"][:20]}})


class DynamodbMachine(StoreMachine):
    config: DynamodbConfig

    def make_store(self) -> Store:
        self.clock = TurnableClock()
        self.config = self.config.model_copy(update={"table_name": f"leases-{uuid.uuid4().hex}"})
        return PolicedStore(self.config, self.clock.monotonic)

    def pass_time(self, seconds: float) -> None:
        self.clock.turn(seconds)

    def teardown(self) -> None:
        super().teardown()
        raw_client(self.config).delete_table(TableName=self.config.table_name)


TestDynamodbStoreAgainstTheModel = DynamodbMachine.TestCase
TestDynamodbStoreAgainstTheModel.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)
