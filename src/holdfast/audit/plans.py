"""Plans by which files of a range were moved away to be written again.

_holdfast/replaced/<id>/plan.json    what is moved where; created before the first move
_holdfast/replaced/<id>/done.json    created after the last one
"""

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
            if inventory.size(_done_key(key)) is not None:
                inventory.claim(_done_key(key))
            try:
                plan = plan_at(place, key)
            except Unreadable as wrong:
                root.doubts.add(f"{key} cannot be read: {wrong}")
            else:
                self._keys[plan.stream, plan.label].append(key)

    def of(self, stream: str, label: str) -> list[Plan]:
        """Those of one partition, in order of their ids."""
        return [plan_at(self._place, key) for key in self._keys[stream, label]]


def plan_keys(inventory: Inventory) -> list[str]:
    """Where the listing has plans."""
    below = inventory.below(REPLACED)
    return [key for key in below if key.count("/") == REPLACED.count("/") + 1 and key.endswith(f"/{PLAN}")]


def plan_at(place: Place, key: str) -> Plan:
    """The plan whose `plan.json` has that key. Raises `Unreadable`."""
    data = place.read(key)
    if data is None:
        raise Unreadable("it is gone again")
    done = place.size(_done_key(key)) is not None
    return read_plan(key.removeprefix(REPLACED).partition("/")[0], data, done=done)


def _done_key(key: str) -> str:
    """What is made when all files of a plan are moved; the plan itself never changes."""
    return f"{key.removesuffix(PLAN)}done.json"
