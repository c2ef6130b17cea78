"""Cache of the last scan of this process, so that a follow-up scan does not offer every object to the store.

A listing is cut into runs of some hundred objects, at borders that depend on the keys alone: when an object is added or
deleted, one run changes and the others stay the same. A run is remembered by its digest, so a million objects take a
few thousand digests. Runs that are not in the cache, because another node did the last scan or this one has restarted,
are offered to the store, which has rows for their objects already.
"""

from __future__ import annotations

import hashlib
import uuid
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from holdfast.sources.objects.listing import Candidate

RUN = 500
"""Objects of a run, on average."""
LONGEST_RUN = 4 * RUN
SCAN_ID = "scan"
"""In the state of discovery: the id of the last scan whose rows were all created."""


class ListingCache:
    """Digests of the runs of the last scan. Used by one scan at a time."""

    def __init__(self) -> None:
        self._confirmed: set[bytes] = set()
        self._listed: set[bytes] = set()
        self._scan_id = ""

    def begin(self, state: dict[str, Any]) -> None:
        """Begin a scan. The digests of the last scan are used if, by the state, all its rows were created."""
        is_confirmed = self._scan_id and state.get(SCAN_ID) == self._scan_id
        self._confirmed = self._listed if is_confirmed else set()
        self._listed = set()
        state[SCAN_ID] = self._scan_id = uuid.uuid4().hex

    def without(self, found: Iterable[Candidate | None]) -> Iterator[Candidate | None]:
        """The candidates without the runs of the last scan; each such run is replaced by None, a sign of life."""
        run: list[Candidate] = []
        for candidate in found:
            if candidate is None:
                yield None
                continue
            run.append(candidate)
            if len(run) == LONGEST_RUN or zlib.crc32(candidate.key.encode()) % RUN == 0:
                yield from self._unless_listed(run)
                run = []
        yield from self._unless_listed(run)

    def _unless_listed(self, run: list[Candidate]) -> Iterator[Candidate | None]:
        # No key contains a NUL, so no two runs have the same bytes.
        digest = hashlib.sha256(b"\0".join(candidate.key.encode() for candidate in run)).digest()
        self._listed.add(digest)
        if digest in self._confirmed:
            yield None
        else:
            yield from run
