"""Plans by which files of a range were moved away to be written again: `_holdfast/replaced/<id>/plan.json`."""

from __future__ import annotations

from collections import defaultdict

from holdfast.audit.inventory import REPLACED, Inventory
from holdfast.audit.place import Place
from holdfast.audit.proof import RootProof
from holdfast.audit.witness import Plan, Unreadable, read_plan

PLAN = "plan.json"


class Plans:
    """All plans of a root; only their names are kept, because moves may be many."""

    def __init__(self, place: Place, inventory: Inventory, root: RootProof) -> None:
        self._place = place
        self._keys: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        for key in plan_keys(inventory):
            inventory.claim(key)
            try:
                plan = _read(place, key)
            except Unreadable as wrong:
                root.doubts.add(f"{key} cannot be read: {wrong}")
            else:
                self._keys[plan.stream, plan.label].append(key)

    def of(self, stream: str, label: str) -> list[Plan]:
        """Those of one partition, in order of their ids."""
        return [_read(self._place, key) for key in self._keys[stream, label]]


def plan_keys(inventory: Inventory) -> list[str]:
    """Where the listing has plans."""
    below = inventory.below(REPLACED)
    return [key for key in below if key.count("/") == REPLACED.count("/") + 1 and key.endswith(f"/{PLAN}")]


def _read(place: Place, key: str) -> Plan:
    data = place.read(key)
    if data is None:
        raise Unreadable("it is gone again")
    return read_plan(key.removeprefix(REPLACED).partition("/")[0], data)
