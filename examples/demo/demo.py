"""Three nodes share one pipeline, one of them is killed, and the output itself tells that nothing is lost or doubled.

Run by `make demo`, from the project's root. Everything it makes is below build/demo. `make demo STORE=object` keeps the
leases as plain files in a folder and needs no database at all; without it they are in SQLite.
"""

from __future__ import annotations

import gzip
import json
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
from rich.console import Console
from rich.live import Live
from rich.table import Table

from examples.fleet import NODES, Fleet, Screen, node_names
from holdfast import assemble
from holdfast.config.models import Settings
from holdfast.leases.lease import Lease, Status
from holdfast.leases.query import Query
from holdfast.leases.store import Store

ROOT = Path("build/demo")
CONFIGS = {"sqlite": Path("examples/demo/pipeline.yaml"), "object": Path("examples/demo/object.yaml")}
PIPELINE = "orders"
FILES = 24
LINES = 15_000
KILL_AFTER_COMPLETED = FILES // 4

console = Console()


def make_input() -> int:
    """Fresh JSON lines, some of them compressed. Returns how many records there are."""
    shutil.rmtree(ROOT, ignore_errors=True)
    folder = ROOT / "in"
    folder.mkdir(parents=True)
    dice = random.Random(7)
    for number in range(FILES):
        lines = (_order(number * LINES + line, dice) for line in range(LINES))
        text = "".join(json.dumps(order) + "\n" for order in lines).encode()
        zipped = number % 6 == 0
        name = folder / f"orders-{number:03d}.jsonl{'.gz' if zipped else ''}"
        name.write_bytes(gzip.compress(text, 1) if zipped else text)
    return FILES * LINES


def _order(number: int, dice: random.Random) -> dict[str, object]:
    return {
        "id": number,
        "customer": f"customer-{dice.randrange(5000)}",
        "amount": round(dice.random() * 500, 2),
        "note": "x" * dice.randrange(40, 120),
    }


class OrdersScreen(Screen):
    """Shows who holds which leases."""

    def __init__(self, fleet: Fleet, settings: Settings, store: Store, live: Live) -> None:
        super().__init__(fleet, live)
        self._settings, self._store = settings, store

    def work_is_done(self) -> bool:
        """Whether the nodes are done. Kills one of them in the middle of its work."""
        victim = _victim(self.leases(), self.names())
        if self.fleet.killed is None and victim is not None:
            self.fleet.kill(victim)
        return not self.fleet.working

    def leases(self) -> list[Lease]:
        return self._store.find(Query(self._settings.identifier(PIPELINE)))

    def names(self) -> dict[str, str]:
        return node_names(self._settings, self._store)

    def picture(self, title: str) -> Table:
        leases, names = self.leases(), self.names()
        held = Counter(names.get(lease.owner or "", "?") for lease in leases if lease.status is Status.ASSIGNED)
        states = Counter(lease.status.value for lease in leases)
        committed = sum(lease.progress.counts.processed for lease in leases)
        heading = f"{committed:,} of {title} committed, {states['COMPLETED']} of {FILES} files completed"
        table = Table("node", "state", "leases held", title=heading, title_justify="left", min_width=72)
        for name in NODES:
            table.add_row(name, self.fleet.state(name), str(held[name]))
        return table


def _victim(leases: list[Lease], names: dict[str, str]) -> str | None:
    """A node that holds work while a good part of all work is done already."""
    if sum(lease.status is Status.COMPLETED for lease in leases) < KILL_AFTER_COMPLETED:
        return None
    owners = sorted({names.get(lease.owner or "", "") for lease in leases if lease.status is Status.ASSIGNED} - {""})
    return owners[-1] if owners else None


def published_ids() -> Iterator[int]:
    """Every id that a reader finds who only lists the output folder."""
    for path in sorted((ROOT / "out").rglob("*.parquet")):
        if "_holdfast" not in path.parts:
            yield from pq.read_table(path, columns=["id"]).column("id").to_pylist()


def verdict(records: int, fleet: Fleet, seconds: float) -> int:
    """Count what is in the output and compare it with what went in."""
    copies = Counter(published_ids())
    duplicates = sum(count - 1 for count in copies.values())
    lost = sum(number not in copies for number in range(records))
    console.print(f"\n{fleet.killed or 'nobody'} was killed in the middle; {seconds:.0f} s in all")
    console.print(f"records in:  {records}")
    console.print(f"records out: {sum(copies.values())}")
    console.print(f"duplicates:  {duplicates}")
    console.print(f"lost:        {lost}")
    return 0 if duplicates == lost == 0 and fleet.killed else 1


def main(store_name: str) -> int:
    if store_name not in CONFIGS:
        console.print(f"the demo knows the stores {', '.join(CONFIGS)}, not {store_name}")
        return 2
    started = time.monotonic()
    records = make_input()
    console.print(f"{records:,} orders in {FILES} files; three nodes start, each with its own Spark")
    settings = assemble.load_settings(CONFIGS[store_name])
    store = assemble.open_store(settings)
    fleet = Fleet(ROOT, CONFIGS[store_name])
    try:
        with Live(console=console, refresh_per_second=4, transient=False) as live:
            screen = OrdersScreen(fleet, settings, store, live)
            screen.wait(f"{records:,} records", screen.work_is_done)
    finally:
        fleet.end()
        store.close()
    return verdict(records, fleet, time.monotonic() - started)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1] if len(sys.argv) > 1 else "sqlite"))
