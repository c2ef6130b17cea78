"""Where a message is: in which file, gap or dead letter, or why it is in none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from holdfast.audit.contents import offsets_in
from holdfast.audit.manifests import Manifests
from holdfast.audit.subject import Subject
from holdfast.audit.witness import Plan, Told, ToldFile, offset_of
from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.leases.store import Store

BY_OFFSET = "the offsets in it"
BY_RANGE = "its manifest: the format keeps no offsets"


@dataclass(frozen=True, slots=True)
class Found:
    """Some offsets, and where they are."""

    offsets: str
    place: str
    """`file`, `dead letter`, `gap`, or why there is no file."""
    file: str | None = None
    told_by: str | None = None
    root: str | None = None
    by_route: bool = False
    """It is in no file, and the sink has routes: it may have been for another sink."""

    def row(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def locate_offset(subject: Subject, store: Store, topic: str, partition: str, offset: int) -> list[Found]:
    """Where the message is in this sink. Several files only if nothing tells which of them it is."""
    if not subject.offsets:
        raise UsageError("messages have offsets only in pipelines that read Kafka")
    manifests = Manifests(subject, store, topic, partition)
    told = manifests.holding(offset)
    if told is None:
        return [Found(str(offset), _why_nowhere(manifests, offset), root=subject.place.root)]
    return list(_in_commit(subject, manifests, told, offset))


def _why_nowhere(manifests: Manifests, offset: int) -> str:
    first, position = manifests.first_offset(), offset_of(manifests.row.progress.position)
    if position is None or offset >= position:
        return "not yet committed"
    if first is not None and offset < first:
        return f"before the first offset that was read, {first}"
    return "being published"


def _in_commit(subject: Subject, manifests: Manifests, told: Told, offset: int) -> Iterator[Found]:
    root = subject.place.root
    if any(first <= offset < end for first, end in told.gaps):
        yield Found(str(offset), f"gap: lost by the source, recorded in commit {told.sequence}", root=root)
        return
    candidates = [file for file in told.files if file.first <= offset <= file.last]
    places = [(file, whereabouts(manifests.plans, file)) for file in candidates]
    answers = [(file, at, _holds(subject, told, file, at, offset)) for file, at in places]
    certain = [(file, at) for file, at, holds in answers if holds]
    for file, at in certain:
        yield Found(str(offset), _kind(file, at), at, BY_OFFSET, root)
    if certain:
        return
    possible = [(file, at) for file, at, holds in answers if holds is None]
    for file, at in possible:
        kind = _kind(file, at) if len(possible) == 1 else f"one of {len(possible)} files"
        yield Found(str(offset), kind, at, BY_RANGE, root)
    if not possible:
        by_route = told.share is not None and told.share.elsewhere > 0
        reasons = "compacted, a transaction marker, or filtered out" + ", or not for this sink by its routes" * by_route
        place = f"no record at this offset in commit {told.sequence}: {reasons}"
        yield Found(str(offset), place, root=root, by_route=by_route)


def whereabouts(plans: list[Plan], file: ToldFile) -> str:
    """The key where a file is now; a plan may have moved it."""
    return next((plan.moves[file.key] for plan in plans if file.key in plan.moves), file.key)


def _kind(file: ToldFile, at: str) -> str:
    kind = "dead letter" if file.is_letters else "file"
    return kind if at == file.key else f"{kind}, replaced"


def _holds(subject: Subject, told: Told, file: ToldFile, at: str, offset: int) -> bool | None:
    """Whether the offset is in the file; None if the file does not tell."""
    offsets = offsets_in(subject.place, file, at, subject.format_of(told.stream))
    return None if offsets is None else bool((offsets == offset).any())
