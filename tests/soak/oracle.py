"""What must be true of every history, judged by rows alone. Shares no code with the product."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from tests.soak.history import Version

SESSIONS = "$nodes"
ASSIGNED, UNASSIGNED, COMPLETED = "ASSIGNED", "UNASSIGNED", "COMPLETED"


def judge(history: Sequence[Version], expected: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Everything that is wrong with the history of these pipelines. `expected`: items by pipeline and partition."""
    found = list(_ended_sessions_stay_so(history))
    for (pipeline, key), rows in lives(history, expected).items():
        wrong = [*_beginning(rows[0]), *_changes(rows), *_owners(rows), *_end(rows[-1], expected[pipeline].get(key))]
        found += [f"{pipeline}/{key}: {what}" for what in wrong]
    found += list(_live_owners_are_left_alone(history, expected))
    return found + [
        f"{pipeline}/{key}: it was never found"
        for pipeline, items in expected.items()
        for key in items.keys() - {row.key for row in history if row.pipeline == pipeline}
    ]


def lives(history: Iterable[Version], pipelines: Iterable[str]) -> dict[tuple[str, str], list[Version]]:
    """All versions of each row of these pipelines, in order."""
    wanted = set(pipelines)
    rows: dict[tuple[str, str], list[Version]] = defaultdict(list)
    for version in history:
        if version.pipeline in wanted:
            rows[version.pipeline, version.key].append(version)
    return rows


def commits(history: Iterable[Version], pipelines: Iterable[str]) -> dict[tuple[str, str, int], str]:
    """Ids of all commits, by pipeline, partition and sequence number."""
    return {
        (pipeline, key, new.sequence): new.commit_id
        for (pipeline, key), rows in lives(history, pipelines).items()
        for old, new in pairwise(rows)
        if new.sequence != old.sequence
    }


def takes(history: Iterable[Version], pipelines: Iterable[str]) -> dict[str, int]:
    """How often leases were claimed when free, taken over from a dead owner, and handed off by a live one."""
    counts = {"claimed": 0, "taken_over": 0, "handed_off": 0}
    for rows in lives(history, pipelines).values():
        for old, new in pairwise(rows):
            if new.token == old.token:
                continue
            kind = "claimed" if old.status != ASSIGNED else "handed_off" if old.due_at is None else "taken_over"
            counts[kind] += 1
    return counts


def _beginning(row: Version) -> Iterator[str]:
    if (row.version, row.token, row.sequence, row.position, row.status) != (0, 0, 0, 0, UNASSIGNED):
        yield f"it does not begin as a new row: {_told(row)}"


def _changes(rows: Sequence[Version]) -> Iterator[str]:
    for old, new in pairwise(rows):
        for what in (*_numbers(old, new), *_taking(old, new), *_progress(old, new)):
            yield f"{what}: {_told(old)} -> {_told(new)}"


def _numbers(old: Version, new: Version) -> Iterator[str]:
    if new.gone:
        yield "the row was deleted"
    if new.version != old.version + 1:
        yield "version does not go up by one"
    if new.token < old.token:
        yield "token goes down"
    if new.token > old.token + 1:
        yield "token goes up by more than one"
    if old.status == COMPLETED:
        yield "a completed partition is written"


def _taking(old: Version, new: Version) -> Iterator[str]:
    taken = new.status == ASSIGNED and (old.status != ASSIGNED or new.owner != old.owner)
    if taken and new.token != old.token + 1:
        yield "taken without a new token"
    if new.token == old.token + 1 and (new.status != ASSIGNED or not new.owner):
        yield "a new token, and nobody took it"


def _progress(old: Version, new: Version) -> Iterator[str]:
    if new.position < old.position:
        yield "position goes back"
    if new.sequence not in (old.sequence, old.sequence + 1):
        yield "sequence does not go up by one"
    elif new.sequence == old.sequence + 1:
        yield from _commit(old, new)
    else:
        if new.position != old.position or new.commit_id != old.commit_id:
            yield "progress without a commit"
        if new.receipts is not None and old.receipts is None:
            yield "receipts without a commit"


def _commit(old: Version, new: Version) -> Iterator[str]:
    if old.receipts is not None:
        yield "a commit while another waits to be published"
    if (old.status, old.owner, old.token) != (new.status, new.owner, new.token) or new.status != ASSIGNED:
        yield "a commit by somebody else than the owner"
    for receipt in (new.receipts or {}).values():
        if (receipt["from"], receipt["to"]) != (old.position, new.position):
            yield "a commit of another range than its receipts say"
        if receipt["token"] != new.token:
            yield "a commit of what was staged under another token"


def _owners(rows: Sequence[Version]) -> Iterator[str]:
    """Two owners under one token; that no two commits have it follows."""
    owners: dict[int, set[str]] = defaultdict(set)
    for row in rows:
        if row.owner:
            owners[row.token].add(row.owner)
    for token, names in owners.items():
        if len(names) > 1:
            yield f"token {token} belongs to {' and '.join(sorted(names))}"


def _end(last: Version, items: int | None) -> Iterator[str]:
    if items is None:
        yield "there should be no such partition"
    elif last.status != COMPLETED or last.receipts is not None or last.position != items:
        yield f"it did not reach its end at {items}: {_told(last)}"


def _ended_sessions_stay_so(history: Iterable[Version]) -> Iterator[str]:
    for (_, key), rows in lives(history, [SESSIONS]).items():
        for old, new in pairwise(rows):
            if old.status != ASSIGNED:
                yield f"session {key}: it had ended and is written: {_told(old)} -> {_told(new)}"


def _live_owners_are_left_alone(history: Iterable[Version], pipelines: Iterable[str]) -> Iterator[str]:
    """A lease is free for others only after its owner's session has ended, or by the owner's own hand-off."""
    ended: set[str] = set()
    wanted = set(pipelines)
    for row in history:
        if row.pipeline == SESSIONS and row.status == COMPLETED:
            ended.add(row.key)
        if row.pipeline in wanted and row.status == ASSIGNED and row.due_at is not None and row.owner not in ended:
            yield f"{row.pipeline}/{row.key}: free for others while its owner lives: {_told(row)}"


def _told(row: Version) -> str:
    pending = " pending" if row.receipts is not None else ""
    return (
        f"v{row.version} {row.status} of {row.owner} token {row.token} sequence {row.sequence} "
        f"position {row.position}{pending} at {row.at:.3f}"
    )
