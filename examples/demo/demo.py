"""Three nodes share one pipeline, one of them is killed, and the output itself tells that nothing is lost or doubled.

Run by `make demo`, from the project's root. Everything it makes is below build/demo. `make demo STORE=object` keeps the
leases as plain files in a folder and needs no database at all; without it they are in SQLite.
"""

from __future__ import annotations

import gzip
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
from rich.console import Console
from rich.live import Live
from rich.table import Table

from holdfast import assemble
from holdfast.config.models import Settings
from holdfast.leases.lease import Lease, Status
from holdfast.leases.query import Query
from holdfast.leases.session import node_info
from holdfast.leases.store import Store

ROOT = Path("build/demo")
CONFIGS = {"sqlite": Path("examples/demo/pipeline.yaml"), "object": Path("examples/demo/object.yaml")}
PIPELINE = "orders"
NODES = ("replica1", "replica2", "replica3")
FILES = 24
LINES = 15_000
KILL_AFTER_COMPLETED = FILES // 4
GIVE_UP_AFTER = 300.0

console = Console()


def make_input() -> int:
    """Fresh JSON lines, some of them compressed; answers how many records there are."""
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


class Fleet:
    """The node processes."""

    def __init__(self, config: Path) -> None:
        self.processes = {name: self._start(config, name) for name in NODES}
        self.killed: str | None = None

    def _start(self, config: Path, name: str) -> subprocess.Popen[bytes]:
        with (ROOT / f"{name}.log").open("wb") as log:
            command = [sys.executable, "-m", "holdfast", "run", str(config), "--node", name]
            return subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()
        self.killed = name

    @property
    def working(self) -> bool:
        return any(process.poll() is None for process in self.processes.values())

    def state(self, name: str) -> str:
        code = self.processes[name].poll()
        if name == self.killed:
            return "[red]killed with kill -9[/]"
        return "[green]running[/]" if code is None else f"finished, exit {code}"

    def end(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
                process.wait()


def watch(fleet: Fleet, settings: Settings, store: Store, records: int) -> None:
    """Show progress until the nodes are done; kill one of them in the middle of its work."""
    deadline = time.monotonic() + GIVE_UP_AFTER
    with Live(console=console, refresh_per_second=4, transient=False) as live:
        while fleet.working and time.monotonic() < deadline:
            leases = store.find(Query(settings.identifier(PIPELINE)))
            names = _node_names(settings, store)
            live.update(_picture(fleet, leases, names, records))
            victim = _victim(leases, names)
            if fleet.killed is None and victim is not None:
                fleet.kill(victim)
            time.sleep(0.25)


def _node_names(settings: Settings, store: Store) -> dict[str, str]:
    rows = store.find(Query(assemble.fleet(settings)))
    return {row.key: node_info(row).name for row in rows}


def _victim(leases: list[Lease], names: dict[str, str]) -> str | None:
    """A node that holds work while a good part of all work is done already."""
    if sum(lease.status is Status.COMPLETED for lease in leases) < KILL_AFTER_COMPLETED:
        return None
    owners = sorted({names.get(lease.owner or "", "") for lease in leases if lease.status is Status.ASSIGNED} - {""})
    return owners[-1] if owners else None


def _picture(fleet: Fleet, leases: list[Lease], names: dict[str, str], records: int) -> Table:
    held = Counter(names.get(lease.owner or "", "?") for lease in leases if lease.status is Status.ASSIGNED)
    states = Counter(lease.status.value for lease in leases)
    committed = sum(lease.progress.counts.processed for lease in leases)
    title = f"{committed:,} of {records:,} records committed, {states['COMPLETED']} of {FILES} files completed"
    table = Table("node", "state", "leases held", title=title, title_justify="left", min_width=72)
    for name in NODES:
        table.add_row(name, fleet.state(name), str(held[name]))
    return table


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
    fleet = Fleet(CONFIGS[store_name])
    try:
        watch(fleet, settings, store, records)
    finally:
        fleet.end()
        store.close()
    return verdict(records, fleet, time.monotonic() - started)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1] if len(sys.argv) > 1 else "sqlite"))
