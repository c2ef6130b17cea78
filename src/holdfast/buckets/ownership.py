"""Who a root belongs to: one sink of one pipeline, noted in the root itself when the sink is opened first.

What a sink may delete in its root, it decides from its own receipts alone. Two sinks in one root would delete what the
other has committed.
"""

from __future__ import annotations

import json

from holdfast.buckets.bucket import Bucket, RootLock
from holdfast.errors import Refused
from holdfast.flow.names import OWNER_KEY


class OwnedRoot:
    """A root in the hands of one sink. `what` is how messages call the root."""

    def __init__(self, bucket: Bucket, sink: str, what: str = "root") -> None:
        self._bucket = bucket
        self._sink = sink
        self._what = f"the {what} of sink {sink!r}"
        self._lock: RootLock | None = None

    def claim(self, pipeline: str, *, alone: bool) -> None:
        """Take the root for this sink. `alone`: no other process may use it meanwhile. May be repeated.

        Raises `Refused` if it belongs to another sink or is in use, `Unavailable` if that cannot be told.
        """
        self._hold(alone=alone)
        owner = {"pipeline": pipeline, "sink": self._sink}
        if self._bucket.create(OWNER_KEY, json.dumps(owner).encode()):
            return
        present = json.loads(self._bucket.read(OWNER_KEY) or b"{}")
        if present != owner:
            raise Refused(
                f"{self._what} belongs to pipeline {present.get('pipeline')!r}, sink {present.get('sink')!r}; "
                "give this sink a root of its own"
            )

    def _hold(self, *, alone: bool) -> None:
        if self._lock is None:
            self._lock = self._bucket.lock(exclusive=alone)
        if self._lock is None:
            raise Refused(
                f"another process uses {self._what}, and one of the two has the store in_memory, which is for one "
                "process. Let both use a store that they can share, for example `sqlite`, or give this process a root "
                "of its own"
            )

    def close(self) -> None:
        """Let others have it. May be called again; never raises."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
