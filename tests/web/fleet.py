"""A fleet that exists only in its store: nodes, runs, failures and hostile names, without Spark.

Pages, their tests and their pictures show it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.assemble import StoredPipeline, audit_log_of
from holdfast.buckets.local import LocalBucket
from holdfast.config.models import Settings
from holdfast.configured_store import fleet, load_settings, open_store
from holdfast.flow.batch import Name
from holdfast.flow.fault import dead_letter, record_fault
from holdfast.flow.generations import Generation
from holdfast.flow.names import dead_letter_key
from holdfast.flow.run import GroupStats, NodeStats, Run, RunStatus, new_row
from holdfast.leases.action import Action, ActionOutcome, Request, Verdict
from holdfast.leases.lease import Commit, Counts, History, Lease, Order, Ownership, Progress, Status
from holdfast.leases.store import Store
from holdfast.runs.next_generation import parsing_as

FILE = """\
source_coordination:
  partition_prefix: prod
  store:
    sqlite: {{path: {folder}/leases.db}}
pipelines:
  clicks:
    source:
      kafka: {{bootstrap_servers: "kafka:9092", topics: [clicks]}}
    sinks:
      - files: {{root: {folder}/clicks, format: jsonl}}
  invoices:
    source:
      kafka: {{bootstrap_servers: "kafka:9092", topics: [invoices]}}
    sinks:
      - files: {{root: {folder}/invoices, format: jsonl}}
  orders:
    source:
      stream: {{name: orders, folder: {folder}/streams}}
    sinks:
      - function:
          handler: handler.py
          workers: 4
          seek_to: earliest
          on_error: {{after_retries: stop}}
"""
HOSTILE = '<img src=x onerror="alert(1)">'
"""A key, an error and a node's name that must stay text."""
OTHER_FILE = "0ddf11e00ddf"
"""The digest of the file that the node n3 runs."""
REASONS = ("total is not a number: ''", "total is not a number: 'n/a'", "bad JSON at byte 17", "bad JSON at byte 3")
FOREVER = 10 * 365 * 86400.0
HANDLER = "def handler(context, event):\n    return None\n"


def write_file(folder: Path) -> Path:
    """Write the configuration file of the fleet."""
    (folder / "handler.py").write_text(HANDLER)
    file = folder / "pipeline.yaml"
    file.write_text(FILE.format(folder=folder))
    return file


@contextmanager
def opened(folder: Path) -> Iterator[tuple[Path, Settings, Store]]:
    """Create a fleet in that folder, and open its store."""
    file = write_file(folder)
    settings = load_settings(file)
    store = open_store(settings)
    try:
        populate(store, settings)
        yield file, settings, store
    finally:
        store.close()


def populate(store: Store, settings: Settings, seed: int = 7) -> None:
    """Add nodes, partitions and runs."""
    dice, now = random.Random(seed), store.now()
    nodes = {name: f"{name}-{number:08x}" for number, name in enumerate(["n1", "n2", "n3", "n4", "n7", HOSTILE])}
    rows = [node_row(settings, name, session, now, index) for index, (name, session) in enumerate(nodes.items())]
    alert = {"kind": "sink_unreachable", "pipeline": settings.identifier("invoices"), "key": None}
    for row in rows[:2]:
        row.progress.state["measured"]["$alerts"] = [{**alert, "message": f"503 of {HOSTILE}", "since": now - 400}]
    store.add(rows)
    alive = [session for name, session in nodes.items() if name != "n7"]
    sizes = {"clicks": 1200, "invoices": 640, "orders": 32}
    for pipeline, size in sizes.items():
        rows = [_partition(dice, settings.identifier(pipeline), pipeline, at, alive, now) for at in range(size)]
        store.add(rows)
    clicks = settings.identifier("clicks")
    error = f"ParseError: bad JSON at byte 17 of {HOSTILE}"
    failed = Ownership(Status.FAILED, None, 9, 31, due_at=None)
    past = History(attempts=4, takeovers=2, last_error=error, created_at=now - 9000, completed_at=now - 340)
    store.add([Lease(clicks, f"clicks|{HOSTILE}", "", "clicks", ownership=failed, history=past)])
    held = Ownership(Status.ASSIGNED, nodes["n7"], 3, 12, due_at=None)
    store.add([Lease(clicks, f"clicks|{number}", "", "clicks", ownership=held) for number in range(9000, 9012)])
    _act(store, settings)
    store.add([new_row(clicks, run, f"write-{run.id}") for run in _runs(now, list(nodes.values()))])


def populate_letters(
    settings: Settings, store: Store, folder: Path, sequence: int = 1, *reasons: str
) -> StoredPipeline:
    """Add dead letters of `invoices|1`, and return the pipeline, whose parsing is the current one."""
    identifier = settings.identifier("invoices")
    faults = [record_fault(reason, b'{"id": 41, "total": ""}') for reason in reasons or REASONS]
    lines = [dead_letter(identifier, "invoices|1", at, fault) for at, fault in enumerate(faults)]
    LocalBucket(folder / "invoices").create(dead_letter_key(Name("invoices", "1"), sequence, 0), b"".join(lines))
    stored = StoredPipeline(settings, store, "invoices")
    stored.generations().register(parsing_as(stored, 1, "ana"), switch=True)
    return stored


def _act(store: Store, settings: Settings) -> None:
    """What people have done: entries in the audit log, and two generations."""
    log = audit_log_of(settings, store)
    for who, name, keys, reason, outcome in (
        ("ana", "partitions reopen", ["clicks|17", f"clicks|{HOSTILE}"], "the parser is mended", Verdict.PARTLY),
        ("ben", "pipelines pause", [], "the bucket is full", Verdict.DONE),
        ("ben", "pipelines resume", [], "the bucket was cleaned", Verdict.DONE),
        ("ana", "partitions fail", ["invoices|3"], "its offsets are wrong", Verdict.REFUSED),
    ):
        pipeline = "invoices" if "invoices|3" in keys else "clicks"
        entry = log.begin(Request(who, via="web", reason=reason), Action(name, pipeline, keys, len(keys)))
        messages = {
            Verdict.PARTLY: "1 partition reopened, 1 could not be",
            Verdict.REFUSED: "'invoices|3' is COMPLETED",
        }
        log.end(entry, ActionOutcome(outcome, messages.get(outcome, "")))
    generations = StoredPipeline(settings, store, "clicks").generations()
    for number, who in ((1, "ana"), (2, "ben")):
        generations.register(Generation(number, f"{number:02x}c0ffee" * 8, {"parser": number}, who), switch=number == 1)


def node_row(settings: Settings, name: str, session: str, now: float, index: int = 0) -> Lease:
    """A node's row: n7 has been silent for 41 s, n4 drains."""
    silent = name == "n7"
    names = ["clicks", "invoices"] if index % 2 else list(settings.pipelines)
    measured: dict[str, Any] = {
        settings.identifier(each): {
            "lag_records": 1200 * (at + 1) + 37 * index if each != "orders" else None,
            "lag_seconds": 4.0 * (at + 1),
            "records_per_second": 410.0 + 55 * index - 90 * at,
            **({"workers": {"busy": 3, "idle": 1}} if each == "orders" else {}),
        }
        for at, each in enumerate(names)
    }
    state = {
        "name": name,
        "session": session,
        "pipelines": [settings.identifier(each) for each in names],
        "slots": 8,
        "generations": [1],
        "draining": name == "n4",
        "counter": 17,
        "last_heartbeat": now - (41 if silent else index),
        "measured": {} if silent else measured,
        "file_digest": OTHER_FILE if name == "n3" else settings.file_digest,
    }
    due_at = now - 11 if silent else now + FOREVER
    return Lease(
        fleet(settings),
        session,
        ownership=Ownership(Status.ASSIGNED, session, 1, 1, due_at=due_at),
        progress=Progress(state=state),
    )


def _partition(dice: random.Random, identifier: str, group: str, at: int, alive: list[str], now: float) -> Lease:
    status = _status(dice, group, at)
    done = 1_000_000 + 997 * at
    owned = {
        Status.ASSIGNED: Ownership(Status.ASSIGNED, dice.choice(alive), 1 + at % 5, 40, due_at=None),
        Status.CLOSED: Ownership(Status.CLOSED, None, 2, 20, due_at=now + 3600),
        Status.UNASSIGNED: Ownership(Status.UNASSIGNED, None, 0, 0),
    }.get(status, Ownership(status, None, 3, 30, due_at=None))
    failed = status is Status.FAILED
    return Lease(
        identifier,
        f"{group}|{at}",
        "",
        group,
        spec={"topic": group, "partition": at},
        ownership=owned,
        order=Order(index=at, ordinal=at),
        progress=Progress(
            position=None if status is Status.UNASSIGNED else {"offset": done},
            counts=Counts() if status is Status.UNASSIGNED else Counts(done, done - at % 7, 0, at % 7),
        ),
        commit=Commit(sequence=0 if status is Status.UNASSIGNED else 12 + at % 40),
        history=History(
            attempts=4 if failed else 0,
            takeovers=at % 3,
            last_error="SinkUnavailable: 503 Slow Down from the bucket after 5 tries" if failed else None,
            created_at=now - 9000,
            claimed_at=now - 800 - 7 * at if status is not Status.UNASSIGNED else None,
            done_by=alive[at % len(alive)] if status in {Status.COMPLETED, Status.FAILED} else None,
            updated_at=now - at % 60,
            completed_at=now - 340 - at if status in {Status.COMPLETED, Status.FAILED} else None,
        ),
    )


def _status(dice: random.Random, group: str, at: int) -> Status:
    if group == "orders":
        return Status.ASSIGNED
    if group == "invoices":
        return Status.COMPLETED if at < 600 else Status.ASSIGNED
    if dice.random() < 0.006:
        return Status.FAILED
    choices = (Status.COMPLETED, Status.ASSIGNED, Status.UNASSIGNED, Status.CLOSED)
    weights = (12, 3, 1, 1) if at < 700 else (2, 5, 8, 1)
    return dice.choices(choices, weights)[0]


def _runs(now: float, sessions: list[str]) -> list[Run]:
    groups = {
        "clicks": GroupStats(640, 8_200_000, 411, 2, 5_390_112, 5_389_870, 242),
        "views": GroupStats(210, 1_100_000, 210, 0, 1_100_000, 1_100_000, 0),
    }
    shares = {session: NodeStats(8, 120 + at, at % 2, 1_300_000 + 7001 * at, 0) for at, session in enumerate(sessions)}
    running = Run(
        "rewind-2026-11-17",
        RunStatus.RUNNING,
        {"kind": "rewind"},
        "ana",
        groups,
        now - 1900,
        now - 1890,
        nodes=dict(list(shares.items())[:3]),
        rate=3_410.5,
        updated_at=now - 1,
    )
    ended = Run(
        "backfill-2026-11-16",
        RunStatus.COMPLETED_WITH_ERRORS,
        {"kind": "backfill"},
        "ben",
        {"clicks": GroupStats(50, 91_000, 48, 2, 90_400, 90_100, 300)},
        now - 90_000,
        now - 89_900,
        now - 88_000,
        error="2 partitions have failed; `holdfast partitions list --run backfill-2026-11-16 --status FAILED`",
    )
    return [running, ended]
