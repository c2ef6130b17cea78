"""Every way in which a lease may change, as pure functions.

Each takes the row as it is and returns the row as it should be, or raises: `TransitionRefused` when the row's state
does not allow the change. Version and write id are stamped by the writer, not here. `now` is always the store's time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.errors import TransitionRefused, storable
from holdfast.leases import tenures
from holdfast.leases.lease import (
    FINISHED,
    Commit,
    Counts,
    History,
    Json,
    Lease,
    LetterWindow,
    Ownership,
    Progress,
    Status,
    changed,
)
from holdfast.leases.suspicion import at_rest, blamed, may_have_been_out, was_out
from holdfast.leases.tenures import ended

MOST_DOUBLINGS = 20
SET_ASIDE = "set_aside"
_INNOCENT: dict[str, Any] = {"attempts": 0, "takeovers": 0, "begun": None, "out": None, "died": None}


@dataclass(frozen=True, slots=True)
class Advance:
    """The changes of a commit: the new position, and receipts by sink (empty for an acknowledgement without data)."""

    commit_id: str
    position: Json
    receipts: Mapping[str, Json]
    counts: Counts = Counts()
    acked: tuple[tuple[int, int], ...] = ()
    state: Json = None
    """The state of the source; None leaves it as it is."""
    window: LetterWindow | None = None
    """The window in which dead letters are counted from now on; None leaves it as it is."""
    forwarded: tuple[tuple[int, int], ...] = ()
    """Acks of other nodes that the position and `acked` contain now."""


@dataclass(frozen=True, slots=True)
class RetryLimits:
    """How often a partition is tried, and how long it waits between two tries."""

    max_retries: int = 3
    max_takeovers: int = 10
    backoff: float = 5.0
    max_backoff: float = 300.0

    def delay(self, attempts: int) -> float:
        """Seconds to wait before the next try, after that many failed tries."""
        return min(self.max_backoff, self.backoff * 2.0 ** min(attempts - 1, MOST_DOUBLINGS))


def stamped(old: Lease, new: Lease, write_id: str) -> Lease:
    """The new row as the successor of the old one, marked with the id of its write."""
    made = new.ownership
    ownership = Ownership(made.status, made.owner, made.token, old.version + 1, write_id, made.due_at)
    return _with(new, ownership, new.history)


def claimable(lease: Lease, now: float) -> bool:
    """Whether the lease is free, or past its deadline."""
    due_at = lease.ownership.due_at
    return lease.status not in FINISHED and due_at is not None and due_at <= now


def take(lease: Lease, owner: str, now: float, due_at: float | None = None) -> Lease:
    """The lease, owned by `owner` under the next token. Counts a take-over from a lapsed owner, see `blamed`."""
    was = lease.ownership
    ownership = Ownership(Status.ASSIGNED, owner, was.token + 1, was.version, was.write_id, due_at)
    return _with(lease, ownership, _taken(lease, ownership, now))


def take_stamped(lease: Lease, owner: str, now: float, due_at: float | None, write_id: str) -> Lease:
    """`take` and `stamped` in one step, for claims of hundreds of leases."""
    was = lease.ownership
    ownership = Ownership(Status.ASSIGNED, owner, was.token + 1, was.version + 1, write_id, due_at)
    return _with(lease, ownership, _taken(lease, ownership, now))


def begin(lease: Lease, end: Json, limits: RetryLimits) -> Lease:
    """Record that a batch up to `end` is sent. Changes nothing unless an owner has died at this position."""
    _require_owned(lease)
    past = lease.history
    if past.begun is not False:
        return lease
    error = past.last_error if past.died is None else may_have_been_out(lease, past.died, end, limits.max_takeovers)
    begun = changed(past, begun=True, out=end, died=None, takeovers=max(1, past.takeovers), last_error=error)
    return changed(lease, history=begun)


def come_back(lease: Lease) -> Lease:
    """Record that a batch which was sent has ended without a commit, so that it is not blamed if the owner dies now."""
    return changed(lease, history=at_rest(lease.history))


def accuse(lease: Lease, end: Json, died: str, limits: RetryLimits) -> Lease:
    """Record that the owner ends with an error while a batch up to `end` is out; that will be a take-over."""
    _require_owned(lease)
    error = was_out(lease, died, end, limits.max_takeovers)
    return changed(lease, history=changed(lease.history, begun=True, out=end, died=died, last_error=error))


def commit(lease: Lease, advance: Advance, expected: Lease, now: float) -> Lease:
    """The single commit point: position, receipts and commit id in one row.

    `expected` is the lease under which the batch was planned. Sequence, generation and incarnation must not have moved
    since, and nothing may wait to be published.
    """
    _require_owned(lease)
    was, planned = lease.commit, expected.commit
    if (was.sequence, was.generation, was.incarnation) != (
        planned.sequence,
        planned.generation,
        planned.incarnation,
    ):
        raise TransitionRefused(f"{lease.key!r} has moved on since this batch was planned")
    if was.receipts is not None:
        raise TransitionRefused(f"{lease.key!r} has a commit that is not published yet")
    reached = lease.progress
    progress = Progress(
        position=advance.position,
        acked=advance.acked,
        state=reached.state if advance.state is None else advance.state,
        counts=reached.counts + advance.counts,
        window=reached.window if advance.window is None else advance.window,
        forwarded=reached.forwarded_without(advance.forwarded) if reached.forwarded else (),
    )
    made = changed(was, sequence=was.sequence + 1, commit_id=advance.commit_id, receipts=advance.receipts or None)
    moved = advance.position != reached.position
    history = _moved(lease.history, now) if moved else changed(lease.history, updated_at=now)
    return _with(lease, lease.ownership, history, progress, made)


def restage(lease: Lease, commit_id: str, receipts: Mapping[str, Json], now: float) -> Lease:
    """Replace the receipts of a pending commit with those of the same range, staged a second time."""
    _require_owned(lease)
    if lease.commit.commit_id != commit_id or lease.commit.receipts is None:
        raise TransitionRefused(f"commit {commit_id} of {lease.key!r} is not pending")
    made = changed(lease.commit, receipts=receipts)
    return _with(lease, lease.ownership, changed(lease.history, updated_at=now), made=made)


def published(lease: Lease, commit_id: str, now: float) -> Lease:
    """Record that the commit is published. Needs no owner and may be repeated."""
    if lease.commit.commit_id != commit_id or lease.commit.receipts is None:
        return lease
    made = changed(lease.commit, receipts=None)
    return _with(lease, lease.ownership, changed(lease.history, updated_at=now), made=made)


def save_state(lease: Lease, state: Json, now: float, due_at: float | None = None) -> Lease:
    """Save the state of the source, and renew the lease's deadline if it has one."""
    _require_owned(lease)
    return changed(
        lease,
        ownership=changed(lease.ownership, due_at=due_at),
        progress=changed(lease.progress, state=state),
        history=changed(lease.history, updated_at=now) if state == lease.progress.state else _moved(lease.history, now),
    )


def release(
    lease: Lease, now: float, not_before: float = 0.0, priority: int | None = None, by: str | None = None
) -> Lease:
    """Hand the lease back; the next owner continues at the committed position. Does not count as an attempt.

    `priority`, if given, replaces the priority of the lease. `by` is the person who has released it.
    """
    _require_owned(lease)
    if priority is not None:
        lease = changed(lease, order=changed(lease.order, priority=priority))
    return _free(lease, Status.UNASSIGNED, not_before, now, ended(lease, now, tenures.RELEASED, by))


def fail_attempt(lease: Lease, error: str, limits: RetryLimits, now: float) -> Lease:
    """Count an error: the lease is handed back with a backoff, or FAILED when the retries are used up."""
    _require_owned(lease)
    attempts = lease.history.attempts + 1
    noted = changed(lease, history=changed(lease.history, attempts=attempts, last_error=storable(error)))
    if attempts > limits.max_retries:
        return _free(noted, Status.FAILED, None, now, ended(lease, now, tenures.ATTEMPT_FAILED))
    return _free(noted, Status.UNASSIGNED, now + limits.delay(attempts), now, ended(lease, now, tenures.ATTEMPT_FAILED))


def halt(lease: Lease, reason: str, now: float, lost: tuple[int, int] | None = None, by: str | None = None) -> Lease:
    """Set the lease to FAILED with an alert: evidence disagrees, or it kills its owners. Pending receipts stay.

    `lost`: items [from, to) that its source deleted before they were read, if that is why.
    """
    if lease.unreadable is None:
        short = storable(reason)
        lease = changed(lease, history=changed(lease.history, halt_reason=short, last_error=short, lost=lost))
    return _free(lease, Status.FAILED, None, now, ended(lease, now, tenures.HALTED, by))


def close(lease: Lease, now: float, reopen_at: float, max_closed: int | None = None) -> Lease:
    """Close the lease until `reopen_at`; COMPLETED when it has been closed `max_closed` times."""
    _require_owned(lease)
    count = lease.history.closed_count + 1
    closed = changed(lease, history=changed(_moved(lease.history, now), closed_count=count))
    if max_closed is not None and count >= max_closed:
        return complete(closed, now)
    return _free(closed, Status.CLOSED, reopen_at, now, ended(lease, now, tenures.CLOSED))


def complete(lease: Lease, now: float) -> Lease:
    """Record that all of the partition is done and published."""
    _require_owned(lease)
    if lease.commit.receipts is not None:
        raise TransitionRefused(f"{lease.key!r} has a commit that is not published yet")
    return _free(lease, Status.COMPLETED, None, now, ended(lease, now, tenures.COMPLETED), completed_at=now)


def switch_generation(lease: Lease, generation: int, now: float) -> Lease:
    """Switch to that generation from the committed position on; nodes of older generations cannot commit any more."""
    _require_owned(lease)
    if lease.commit.receipts is not None or generation < lease.commit.generation:
        raise TransitionRefused(f"{lease.key!r} is at generation {lease.commit.generation}")
    commit_now = changed(lease.commit, generation=generation, switched_at=lease.commit.sequence)
    return changed(lease, commit=commit_now, history=changed(lease.history, updated_at=now))


def hand_off(lease: Lease, target: str, now: float) -> Lease:
    """Hand the lease off to another session under the next token, in one write."""
    _require_owned(lease)
    # The giver may have been ended meanwhile and its leases set free; from now on the target's session keeps it.
    ownership = changed(lease.ownership, owner=target, token=lease.token + 1, due_at=None)
    held = ended(lease, now, tenures.HANDED_OFF)
    past = changed(at_rest(lease.history), claimed_at=now, updated_at=now, tenures=held)
    return changed(lease, ownership=ownership, history=past)


def orphan(lease: Lease, now: float, died: str, limits: RetryLimits) -> Lease:
    """Make the lease claimable because its owner's session has ended. The row keeps the owner until it is claimed.

    A batch that was out is named as the last error; if that is not recorded, `begin` names the next batch.
    """
    _require_owned(lease)
    past = lease.history
    if past.begun:
        error = was_out(lease, past.died or died, past.out, limits.max_takeovers)
        past = changed(past, died=None, last_error=error)
    elif past.begun is None:
        past = changed(past, died=died)
    past = changed(past, tenures=ended(lease, now, tenures.DIED))
    return changed(lease, ownership=changed(lease.ownership, due_at=now), history=past)


def reopen(lease: Lease, now: float) -> Lease:
    """Make a FAILED, CLOSED or COMPLETED partition claimable again, from its position; done by a person."""
    if lease.status is Status.ASSIGNED:
        raise TransitionRefused(f"{lease.key!r} is being worked on by {lease.owner}; release it first")
    if set_aside_for(lease) is not None:
        raise TransitionRefused(
            f"{lease.key!r} is being replaced; `holdfast rewind --replace` continues the replacement"
        )
    if is_stripped(lease):
        raise TransitionRefused(f"{lease.key!r} was purged: its row no longer has the data to read it")
    fresh = changed(lease.history, **_INNOCENT, halt_reason=None, completed_at=None, lost=None)
    reopened = changed(lease, history=fresh, progress=changed(lease.progress, window=LetterWindow()))
    return _free(reopened, Status.UNASSIGNED, 0.0, now)


def set_aside(lease: Lease, why: Json, reason: str, now: float) -> Lease:
    """Take the lease from its owner under the next token, until `restart`: its commits are about to be replaced.

    `why` is kept in the row. May be repeated with the same `why`.
    """
    if set_aside_for(lease) == why:
        return lease
    if lease.unreadable is not None or lease.status is Status.COMPLETED or lease.history.halt_reason is not None:
        raise TransitionRefused(f"{lease.key!r} is {lease.status}: {lease.history.halt_reason or 'nothing to replace'}")
    if lease.commit.receipts is not None:
        raise TransitionRefused(f"{lease.key!r} has a commit that is not published yet")
    aside = changed(
        lease,
        ownership=changed(lease.ownership, token=lease.token + 1),
        progress=changed(lease.progress, state={SET_ASIDE: why}),
        history=changed(lease.history, halt_reason=storable(reason), tenures=ended(lease, now, tenures.SET_ASIDE)),
    )
    return _free(aside, Status.FAILED, None, now)


def set_aside_for(lease: Lease) -> Json:
    """The reason why the lease was set aside; None if it is not set aside."""
    state = lease.progress.state
    return state.get(SET_ASIDE) if isinstance(state, dict) and lease.status is Status.FAILED else None


def restart(lease: Lease, position: Json, generation: int, now: float) -> Lease:
    """Free a lease that was set aside, at an earlier position and under a later generation.

    Token, version and sequence continue, so that no earlier batch can be committed.
    """
    if set_aside_for(lease) is None or lease.commit.receipts is not None:
        raise TransitionRefused(f"{lease.key!r} was not set aside")
    if generation <= lease.commit.generation:
        raise TransitionRefused(f"{lease.key!r} is at generation {lease.commit.generation} already")
    restarted = changed(
        lease,
        progress=Progress(position=position, counts=lease.progress.counts),
        commit=changed(lease.commit, generation=generation, switched_at=lease.commit.sequence),
        history=changed(_moved(lease.history, now), halt_reason=None, lost=None),
    )
    return _free(restarted, Status.UNASSIGNED, 0.0, now)


def is_stripped(lease: Lease) -> bool:
    """Whether the row was reduced to its key and token."""
    return lease.history.created_at is None and not lease.spec and lease.unreadable is None


def strip(lease: Lease, now: float) -> Lease:
    """Reduce a COMPLETED row to its key and token, which are enough to deduplicate and to fence."""
    if lease.status is not Status.COMPLETED or lease.commit.receipts is not None:
        raise TransitionRefused(f"{lease.key!r} is {lease.status}; only COMPLETED rows without receipts are purged")
    history = History(completed_at=lease.history.completed_at, updated_at=now)
    kept = Ownership(status=Status.COMPLETED, token=lease.token, version=lease.version, due_at=None)
    commit_kept = changed(lease.commit, commit_id="")
    return Lease(lease.pipeline, lease.key, lease.run, lease.group, ownership=kept, commit=commit_kept, history=history)


def _taken(lease: Lease, ownership: Ownership, now: float) -> History:
    if lease.unreadable is not None:
        raise TransitionRefused(f"the row of {lease.key!r} is unreadable")
    if not claimable(lease, now):
        raise TransitionRefused(f"{lease.key!r} is {lease.status} and not due")
    past = lease.history
    # A session that takes a lease which it owned itself is alive.
    died = lease.status is Status.ASSIGNED and lease.owner != ownership.owner
    deadline = ownership.due_at is not None
    return History(
        past.attempts,
        blamed(past.takeovers, past.begun, deadline=deadline) if died else past.takeovers,
        past.closed_count,
        past.last_error,
        past.halt_reason,
        past.created_at,
        claimed_at=now,
        started_at=now if past.started_at is None else past.started_at,
        updated_at=now,
        completed_at=past.completed_at,
        lost=past.lost,
        begun=False if died and not deadline else at_rest(past).begun,
        out=past.out,
        died=past.died,
        tenures=tenures.taken(lease, now),
    )


def _require_owned(lease: Lease) -> None:
    if lease.status is not Status.ASSIGNED:
        raise TransitionRefused(f"{lease.key!r} is {lease.status}, not ASSIGNED")


def _with(
    lease: Lease, ownership: Ownership, history: History, progress: Progress | None = None, made: Commit | None = None
) -> Lease:
    # By position: `changed` takes longer, and a node claims and commits hundreds of leases in a call.
    return Lease(
        lease.pipeline,
        lease.key,
        lease.run,
        lease.group,
        lease.spec,
        ownership,
        lease.order,
        progress or lease.progress,
        made or lease.commit,
        history,
        lease.unreadable,
        lease.extra,
    )


def _moved(history: History, now: float) -> History:
    return changed(history, **_INNOCENT, last_error=None, updated_at=now)


def _free(lease: Lease, status: Status, due_at: float | None, now: float, held: Json = None, **noted: Any) -> Lease:
    was, by = lease.ownership, lease.owner if status in FINISHED else None
    ownership = Ownership(status, None, was.token, was.version, was.write_id, due_at)
    noted["tenures"] = lease.history.tenures if held is None else held
    return _with(lease, ownership, changed(at_rest(lease.history), updated_at=now, done_by=by, **noted))
