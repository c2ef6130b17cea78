"""Which dead letters a redrive takes: all that wait, but for those that were sent before and those that cannot be."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from holdfast.assemble import StoredPipeline
from holdfast.deadletters.source import PartitionLetters, redriven_name, sent_ids
from holdfast.errors import Refused, TransitionRefused
from holdfast.flow.letter import Letter, LetterBox, LetterId, Rebuilder
from holdfast.flow.run import Run
from holdfast.flow.sink import Publication, Sink
from holdfast.flow.source import Source
from holdfast.leases import transitions
from holdfast.leases.lease import FINISHED, Key, Lease, Partition
from holdfast.leases.operator import Operator

KIND = "redrive"
MOST_LETTERS = 5000
MOST_PLACES = 1000
"""Of one partition in one run, because their names are kept in its row; the others are left for the next run."""
MOST_NAME_BYTES = 150_000
"""What those names take at most, so that they fit into the row of every store."""
MOST_PARTITIONS = 5000
AT_ONCE = 500


@dataclass(frozen=True)
class Choice:
    """Letters of one sink, chosen by their partition and by words of their reason."""

    sink: str
    key: str | None = None
    reason: str | None = None

    def takes(self, letter: Letter) -> bool:
        return self.key in {None, letter.key} and (self.reason is None or self.reason in letter.reason)


@dataclass
class Taken:
    """What a redrive takes, and why it leaves the others."""

    partitions: list[PartitionLetters] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    left: int = 0

    @property
    def number(self) -> int:
        return sum(len(chosen.ids) for chosen in self.partitions)


@dataclass(frozen=True)
class Waiting:
    """The letters of one sink that wait. Iterated, it gives the partitions of a run; the run's lock must be held."""

    pipeline: StoredPipeline
    choice: Choice
    box: LetterBox
    rebuilder: Rebuilder
    live: Source
    sink: Sink

    def __iter__(self) -> Iterator[Partition]:
        for run in self._former():
            self._fence(run)
        return iter([chosen.partition() for chosen in self.look().partitions])

    def look(self) -> Taken:
        """What would be taken now. Changes nothing."""
        sent = {one for run in self._former() for row in self._rows(run).rows() for one in sent_ids(row)}
        taken, by_key = Taken(), defaultdict[str, list[tuple[int, LetterId]]](list)
        for letter in self.box.letters():
            if letter.redriven is not None or letter.id in sent or not self.choice.takes(letter):
                continue
            why = letter.refusal or self.rebuilder.refusal(letter)
            if why is None:
                by_key[letter.key].append((letter.item, letter.id))
            else:
                taken.refused[why] += 1
        keys = list(by_key)
        taken.left += sum(len(by_key.pop(key)) for key in keys[MOST_PARTITIONS:])
        keys = keys[:MOST_PARTITIONS]
        for at in range(0, len(keys), AT_ONCE):
            self._gather(taken, {key: by_key[key] for key in keys[at : at + AT_ONCE]})
        return taken

    def _gather(self, taken: Taken, letters: dict[str, list[tuple[int, LetterId]]]) -> None:
        rows = self.pipeline.store.get([Key(self.pipeline.identifier, "", key) for key in letters])
        for row, (key, some) in zip(rows, letters.items(), strict=True):
            if row is None or row.unreadable is not None or transitions.is_stripped(row):
                taken.refused[f"the store does not know its partition {key} any more"] += len(some)
                continue
            if transitions.set_aside_for(row) is not None:
                taken.refused[f"what was written of its partition {key} is being replaced"] += len(some)
                continue
            ids = _bounded([one for _, one in sorted(some)])
            taken.left += len(some) - len(ids)
            taken.partitions.append(PartitionLetters(row, self.live.name(row), ids))

    # --- former runs -------------------------------------------------------------------------------------------

    def _former(self) -> list[Run]:
        return [run for run in self.pipeline.runs().list() if of_sink(run, self.choice.sink)]

    def _rows(self, run: Run) -> Operator:
        return self.pipeline.operator(run.id)

    def _fence(self, run: Run) -> None:
        """No node may go on with this run, which has lost the lock; and what it has committed is published."""
        rows = self._rows(run)
        for row in list(rows.rows()):
            fence(rows, row, self.sink, self.choice.sink, "another redrive has begun")


def fence(rows: Operator, row: Lease, sink: Sink | None, name: str, why: str) -> None:
    """No node may go on with this row of a redrive into that sink, and what it has committed is published.

    Raises `Refused` if it cannot be published. May be repeated.
    """
    fenced = row if row.status in FINISHED else _failed(rows, row, why)
    if fenced.commit.receipts is None or sink is None:
        return
    (trouble,) = sink.publish([Publication(fenced, redriven_name(fenced), fenced.commit.receipts[name])])
    if trouble is not None:
        raise Refused(f"what run {row.run} has committed of {row.key} cannot be published: {trouble}")
    rows.change(row.key, lambda now_there, now: transitions.published(now_there, fenced.commit.commit_id, now))


def _failed(rows: Operator, row: Lease, why: str) -> Lease:
    try:
        return rows.fail(row.key, why)
    except TransitionRefused:
        return rows.show(row.key)  # its node has completed it meanwhile


def of_sink(run: Run, sink: str) -> bool:
    """Whether a run is a redrive of this sink."""
    told = run.configuration
    return isinstance(told, dict) and told.get("kind") == KIND and told.get("sink") == sink


def _bounded(ids: Sequence[LetterId]) -> list[LetterId]:
    chosen, places, size = list[LetterId](), set[str](), 0
    for one in ids[:MOST_LETTERS]:
        places.add(one.place)
        # As `encode_ids` tells them: a name for each change of place, and two numbers for each span.
        size += 20 if chosen and chosen[-1].place == one.place else 30 + len(json.dumps(one.place))
        if len(places) > MOST_PLACES or size > MOST_NAME_BYTES:
            break
        chosen.append(one)
    return chosen
