"""What a row says about a batch that may have ended its node: the counts, and the text for its last error. Pure."""

from __future__ import annotations

import json

from holdfast.leases.lease import History, Json, Lease, changed

MAX_NAME = 600
MAX_POSITION = 100


def ended_node(name: str | None, session: str, reason: str = "") -> str:
    """The node of a session that has ended, and the reason if it is known."""
    ended = f"{session}; {reason}" if reason else session
    return f"session {ended}"[:MAX_NAME] if name is None else f"node {name} ({ended[:MAX_NAME]})"


def was_out(lease: Lease, node: str, end: Json, most: int) -> str:
    """The text for a node that ended while a batch up to `end` was out; it counts the take-over that follows.

    `most`: how many take-overs at one position are allowed.
    """
    return f"{node} ended while {_batch(lease, end)} was out; {_count(lease.history.takeovers + 1, most)}"


def may_have_been_out(lease: Lease, node: str, end: Json, most: int) -> str:
    """The text if a node ended while it held the lease: the batch up to `end`, sent next, may be the cause."""
    count = _count(max(1, lease.history.takeovers), most)
    return f"{node} ended while it held this partition, perhaps by {_batch(lease, end)}; {count}"


def _count(takeover: int, most: int) -> str:
    return f"take-over {takeover} of {most} at this position"


def _batch(lease: Lease, end: Json) -> str:
    number = lease.commit.sequence + (lease.commit.receipts is None)
    return f"batch {number} ({shown_range(lease.progress.position, end)})"


def shown_range(start: Json, end: Json) -> str:
    """The items of a batch between two positions, for people."""
    first, stop = _offset(start), _offset(end)
    if first is not None and stop is not None:
        return f"offsets {first} to {stop - 1}"
    return f"from {'its start' if start is None else _shown(start)} to {_shown(end)}"


def _offset(position: Json) -> int | None:
    offset = position.get("offset") if isinstance(position, dict) and len(position) == 1 else None
    return offset if isinstance(offset, int) else None


def _shown(position: Json) -> str:
    return json.dumps(position, ensure_ascii=False)[:MAX_POSITION]


def blamed(takeovers: int, begun: bool | None, *, deadline: bool) -> int:
    """The count of take-overs after another owner has died: only a death that a batch may have caused counts.

    With a `deadline` the owner works on the lease from the moment it took it, so that the death counts. Otherwise it
    counts if the owner had recorded with `begin` that a batch was out. The first death at a position is counted later,
    by `begin`: a partition without a begun batch has not killed its node.
    """
    innocent = not deadline and (begun is False or (begun is None and takeovers == 0))
    return takeovers if innocent else takeovers + 1


def at_rest(history: History) -> History:
    """The history of a lease of which no batch is out any more."""
    return changed(history, begun=False) if history.begun else history
