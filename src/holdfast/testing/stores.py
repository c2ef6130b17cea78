"""The behaviour that every store must show. Subclass both classes to prove one.

    class TestMyStore(StoreBehaviour):
        def make_store(self) -> Store:
            return MyStore(...)          # a new handle on one table; the table is empty when a test begins

    class MyMachine(StoreMachine):
        def make_store(self) -> Store: ...
        def pass_time(self, seconds: float) -> None: ...

    TestMyStoreAgainstTheModel = MyMachine.TestCase

`StoreSetting` lists what else may be defined: how to set the store's clock, how to corrupt a row, how to make a handle
in another process. `docs/how-to/write-a-store.md` leads through all of it.
"""

from __future__ import annotations

from holdfast.testing.store_claims import ClaimBehaviour
from holdfast.testing.store_clock import ClockBehaviour
from holdfast.testing.store_machine import StoreMachine
from holdfast.testing.store_policies import PolicyBehaviour
from holdfast.testing.store_rows import RowBehaviour
from holdfast.testing.store_setting import StoreSetting

__all__ = ["StoreBehaviour", "StoreMachine", "StoreSetting"]


class StoreBehaviour(RowBehaviour, ClockBehaviour, ClaimBehaviour, PolicyBehaviour):
    """The guarantees of a store, and the behaviour of the policies above it."""
