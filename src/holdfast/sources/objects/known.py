"""What an earlier scan of this process has found already, so that the store is not asked again for every object.

A listing is cut into runs of some hundred objects, at keys that the keys themselves choose: where an object comes or
goes, one run changes and the others stay. A run is known by its digest, so that a million objects take a few
thousand digests. What is not known, because another node scanned last or this one was started anew, is offered to the
store, which knows it.
"""

from __future__ import annotations

import hashlib
import uuid
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from holdfast.sources.objects.finding_order import Candidate

RUN = 500
"""Objects of a run, about."""
LONGEST = 4 * RUN
SCAN = "scan"


class Known:
    """Used by one scan at a time."""

    def __init__(self) -> None:
        self._sure: set[bytes] = set()
        self._now: set[bytes] = set()
        self._scan = ""

    def begin(self, state: dict[str, Any]) -> None:
        """A scan begins. The state says whether the rows of the last one were all made: it is kept only then."""
        self._sure = self._now if self._scan and state.get(SCAN) == self._scan else set()
        self._now = set()
        state[SCAN] = self._scan = uuid.uuid4().hex

    def without(self, found: Iterable[Candidate | None]) -> Iterator[Candidate | None]:
        """The same without the runs that are known; None, a sign of life, in the place of each."""
        run: list[Candidate] = []
        for one in found:
            if one is None:
                yield None
                continue
            run.append(one)
            if len(run) == LONGEST or zlib.crc32(one.key.encode()) % RUN == 0:
                yield from self._new(run)
                run = []
        yield from self._new(run)

    def _new(self, run: list[Candidate]) -> Iterator[Candidate | None]:
        # No key has a NUL, so that no two runs have the same bytes.
        digest = hashlib.sha256(b"\0".join(one.key.encode() for one in run)).digest()
        self._now.add(digest)
        if digest in self._sure:
            yield None
        else:
            yield from run
