"""Which shards somebody holds, written as people write them: `0-3,7`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from holdfast.leases.lease import Lease


def shards(leases: Iterable[Lease]) -> str:
    """The numbers of partitions that have one, as ranges; with their group's name before them if there are several."""
    groups: dict[str, set[int]] = defaultdict(set)
    for lease in leases:
        if lease.order.index is not None:
            groups[lease.group].add(lease.order.index)
    if len(groups) < 2:
        return "".join(map(ranges, groups.values()))
    return " ".join(f"{group}:{ranges(numbers)}" for group, numbers in sorted(groups.items()))


def ranges(numbers: Iterable[int]) -> str:
    """`0-3,7` for 0, 1, 2, 3 and 7."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][-1] + 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    return ",".join(map(_span, spans))


def _span(ends: Sequence[int]) -> str:
    return "-".join(map(str, ends))
