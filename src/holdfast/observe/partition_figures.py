"""What is known of each partition of a pipeline, in the order of their keys: in arrays, as there may be very many.

A row takes 72 bytes instead of some 250 as objects. Sums follow each row that is noted, so that they need no look at
the others.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from holdfast.leases.lease import Counts, Lease, Status
from holdfast.leases.sums import PartitionSum

_Of = tuple[str, Status, str | None]
"""Group, status and session: the sum that a row belongs to."""
_WIDTH = 8
"""Numbers of a row: its version, its number, and what it adds to a sum in the order of `PartitionSum`."""
_UNKNOWN = array("q", [-1] * _WIDTH)
_LARGEST = 2**63 - 1


class PartitionFigures:
    """The figures of partitions, by the place of their key in `keys`."""

    def __init__(self) -> None:
        self._keys: Sequence[str] = ()
        self._figures = array("q")
        self._of: list[_Of | None] = []
        self._sums: dict[_Of, list[int]] = {}
        self._shared: dict[_Of, _Of] = {}

    def align(self, keys: Sequence[str]) -> None:
        """Forget partitions that are not among these keys, and make place for those that are new."""
        if keys is self._keys:
            return
        places = {key: at for at, key in enumerate(self._keys)}
        before = [places.pop(key, -1) for key in keys]
        for gone in places.values():
            self._count(gone, -1)
        old, figures = self._figures, array("q")
        for at in before:
            figures.extend(_UNKNOWN if at < 0 else old[at * _WIDTH : (at + 1) * _WIDTH])
        self._of = [None if at < 0 else self._of[at] for at in before]
        self._keys, self._figures = keys, figures

    def other_than(self, versions: array[int]) -> list[int]:
        """Return the places of the partitions that are known in another version, or not at all."""
        known = self._figures[::_WIDTH]
        if known == versions:
            return []
        return [at for at, (old, new) in enumerate(zip(known, versions, strict=True)) if old != new]

    def note(self, at: int, row: Lease | None) -> None:
        """Note the row of the partition at this place; None if it is gone."""
        self._count(at, -1)
        begin, of = at * _WIDTH, None if row is None else (row.group, row.status, row.owner or row.history.done_by)
        self._figures[begin : begin + _WIDTH] = _UNKNOWN if row is None else _figures(row)
        # Equal sums, owners and groups are one object.
        self._of[at] = None if of is None else self._shared.setdefault(of, of)
        self._count(at, 1)

    def sums(self) -> list[PartitionSum]:
        """Return the sums of the partitions that are known."""
        return [_sum(of, numbers) for of, numbers in self._sums.items()]

    def held(self) -> Mapping[str | None, Sequence[tuple[str, int | None]]]:
        """Return group and number of the partitions that each session holds."""
        found: dict[str | None, list[tuple[str, int | None]]] = defaultdict(list)
        for of, number in zip(self._of, self._figures[1::_WIDTH], strict=True):
            if of is not None and of[1] is Status.ASSIGNED:
                found[of[2]].append((of[0], None if number < 0 else number))
        return found

    def _count(self, at: int, sign: int) -> None:
        of = self._of[at]
        if of is None:
            return
        so_far = self._sums.setdefault(of, [0] * (_WIDTH - 1))
        so_far[0] += sign
        for place, number in enumerate(self._figures[at * _WIDTH + 2 : (at + 1) * _WIDTH], 1):
            so_far[place] += sign * number
        if not so_far[0]:  # sessions come and go: what nobody holds any more is forgotten
            del self._sums[of]
            self._shared.pop(of, None)


def _figures(row: Lease) -> array[int]:
    order, counts = row.order, row.progress.counts
    number = -1 if order.index is None else order.index
    added = (order.estimated_count or 0, order.work_units)
    counted = (counts.processed, counts.succeeded, counts.failed, counts.dead)
    return array("q", [min(each, _LARGEST) for each in (row.version, number, *added, *counted)])


def _sum(of: _Of, numbers: Iterable[int]) -> PartitionSum:
    partitions, expected, units, *counts = numbers
    return PartitionSum(*of, partitions, expected, units, Counts(*counts))
