"""Selects the dead letters of a redrive, without letters that were sent before or cannot be sent."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.assemble import StoredPipeline
from holdfast.deadletters.source import PartitionLetters, redriven_name, sent_ids, spilled_size
from holdfast.errors import Refused, SelectionChanged, TransitionRefused
from holdfast.flow.letter import Letter, LetterBox, LetterId, Rebuilder
from holdfast.flow.run import Run
from holdfast.flow.sink import Publication, Sink
from holdfast.flow.source import Source
from holdfast.flow.tables import LiveTables
from holdfast.leases import transitions
from holdfast.leases.lease import FINISHED, Json, Key, Lease, Partition, new_lease
from holdfast.leases.operator import Operator

KIND = "redrive"
MAX_LETTERS = 5000
MAX_CONTAINERS = 1000
"""Most files or index prefixes whose letters one run sends for a partition: its row keeps their names. Other letters
wait for the next run."""
MAX_NAME_BYTES = 150_000
"""Bytes of those names at most, so that they fit into the row of every store."""
MAX_PARTITIONS = 5000
ROWS_PER_READ = 500


@dataclass(frozen=True)
class Choice:
    """Letters of one sink, chosen by partition and by text in the reason."""

    sink: str
    key: str | None = None
    reason: str | None = None

    def takes(self, letter: Letter) -> bool:
        return self.key in {None, letter.key} and (self.reason is None or self.reason in letter.reason)


@dataclass(frozen=True, slots=True, order=True)
class WaitingLetter:
    """A letter that can be sent; letters are sent in the order of their items."""

    item: int
    id: LetterId
    spilled_size: int
    digest: bytes


@dataclass
class Taken:
    """The letters that a redrive takes, and counts of the others by reason."""

    partitions: list[PartitionLetters] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    left: int = 0

    @property
    def number(self) -> int:
        return sum(len(chosen.ids) for chosen in self.partitions)

    def row(self) -> dict[str, Json]:
        """Return the selection as JSON, with the letters of each partition as a number."""
        partitions = [{"key": chosen.row.key, "letters": len(chosen.ids)} for chosen in self.partitions]
        return {"number": self.number, "partitions": partitions, "refused": dict(self.refused), "left": self.left}


@dataclass(frozen=True)
class Waiting:
    """The waiting letters of one sink. Iterating yields the partitions of a run; the run's lock must be held."""

    pipeline: StoredPipeline
    choice: Choice
    box: LetterBox
    rebuilder: Rebuilder
    live: Source
    sinks: Mapping[str, Sink]
    """Those of the live pipeline."""
    needed: frozenset[str] = frozenset()
    """Columns of the source that the pipeline may need."""
    expect: int | None = None
    """How many letters the person has seen; a run that would take another number takes none."""

    def __iter__(self) -> Iterator[Partition]:
        for run in self._former():
            self._fence(run)
        taken = self.look()
        if self.expect is not None and taken.number != self.expect:
            raise SelectionChanged(taken.number, self.expect, "letters")
        return iter([chosen.partition() for chosen in taken.partitions])

    def look(self) -> Taken:
        """Return the letters that would be taken now. Changes nothing."""
        sent = {letter for run in self._former() for row in self._rows(run).rows() for letter in sent_ids(row)}
        taken, by_key = Taken(), defaultdict[str, list[WaitingLetter]](list)
        for letter in self.box.letters():
            if letter.redriven is not None or letter.id in sent or not self.choice.takes(letter):
                continue
            why = letter.refusal or self.rebuilder.refusal(letter) or self._lacking(letter)
            if why is None:
                by_key[letter.key].append(WaitingLetter(letter.item, letter.id, spilled_size(letter), letter.digest()))
            else:
                taken.refused[why] += 1
        keys = list(by_key)
        taken.left += sum(len(by_key.pop(key)) for key in keys[MAX_PARTITIONS:])
        keys = keys[:MAX_PARTITIONS]
        for at in range(0, len(keys), ROWS_PER_READ):
            self._gather(taken, {key: by_key[key] for key in keys[at : at + ROWS_PER_READ]})
        return taken

    def _lacking(self, letter: Letter) -> str | None:
        """Why the letter holds less of its record than the pipeline may need; None if it holds enough."""
        keeps = self.rebuilder.keeps
        missing = frozenset() if letter.is_whole or keeps is None else self.needed - keeps
        if not missing:
            return None
        return (
            f"it does not keep {', '.join(sorted(missing))} of its record, which this pipeline may need; write the "
            "records again from Kafka or from a backup, see `holdfast rewind` and `holdfast backfill`"
        )

    def _gather(self, taken: Taken, letters: dict[str, list[WaitingLetter]]) -> None:
        rows = self.pipeline.store.get([Key(self.pipeline.identifier, "", key) for key in letters])
        for stored, (key, found) in zip(rows, letters.items(), strict=True):
            row = self._row_of_runs(key) if stored is None else stored
            if row is None or row.unreadable is not None or transitions.is_stripped(row):
                taken.refused[f"the store no longer has its partition {key}"] += len(found)
                continue
            if transitions.set_aside_for(row) is not None:
                taken.refused[f"files of its partition {key} are being replaced"] += len(found)
                continue
            found.sort()
            ids = _bounded([letter.id for letter in found])
            taken.left += len(found) - len(ids)
            sizes = [letter.spilled_size for letter in found[: len(ids)]]
            repeats = _repeats([letter.digest for letter in found[: len(ids)]])
            taken.partitions.append(PartitionLetters(row, self.live.name(row), ids, sizes, repeats))

    def _row_of_runs(self, key: str) -> Lease | None:
        """A stand-in for the row of a live table's partition, which only runs have: its key begins with the entity."""
        if not isinstance(self.live, LiveTables):
            return None
        entity = key.partition("/")[0]
        partition = Partition(key, entity, {"entity": entity})
        return new_lease(self.pipeline.identifier, partition, "", now=0.0)

    # --- former runs -------------------------------------------------------------------------------------------

    def _former(self) -> list[Run]:
        return [run for run in self.pipeline.runs().list() if of_sink(run, self.choice.sink)]

    def _rows(self, run: Run) -> Operator:
        return self.pipeline.operator(run.id)

    def _fence(self, run: Run) -> None:
        """Stop a run that has lost the lock, and publish what it has committed."""
        rows = self._rows(run)
        for row in list(rows.rows()):
            fence(rows, row, self.sinks, "another redrive has begun")


def fence(rows: Operator, row: Lease, sinks: Mapping[str, Sink], why: str) -> None:
    """Stop work on this row of a redrive, and publish what it has committed to these sinks. May be repeated.

    Raises `Refused` if it cannot be published, for example because one of its sinks does not exist any more.
    """
    fenced = row if row.status in FINISHED else _failed(rows, row, why)
    receipts = fenced.commit.receipts
    if receipts is None:
        return
    for name, receipt in receipts.items():
        if name not in sinks:
            raise Refused(f"run {row.run} has an unpublished commit of sink {name!r}, which no longer exists")
        (trouble,) = sinks[name].publish([Publication(fenced, redriven_name(fenced), receipt)])
        if trouble is not None:
            raise Refused(f"the commit of run {row.run} for {row.key} cannot be published: {trouble}")
    rows.change(row.key, lambda now_there, now: transitions.published(now_there, fenced.commit.commit_id, now))


def _failed(rows: Operator, row: Lease, why: str) -> Lease:
    try:
        return rows.fail(row.key, why)
    except TransitionRefused:
        return rows.show(row.key)  # its node has completed it in the meantime


def of_sink(run: Run, sink: str) -> bool:
    """Return whether a run is a redrive of this sink."""
    configuration = run.configuration
    return isinstance(configuration, dict) and (configuration.get("kind"), configuration.get("sink")) == (KIND, sink)


def _repeats(digests: Sequence[bytes]) -> list[int]:
    """Return the indexes of letters whose record is also in an earlier letter."""
    first: dict[bytes, int] = {}
    return [index for index, digest in enumerate(digests) if first.setdefault(digest, index) != index]


def _bounded(ids: Sequence[LetterId]) -> list[LetterId]:
    chosen, containers, size = list[LetterId](), set[str](), 0
    for letter in ids[:MAX_LETTERS]:
        name = letter.container
        containers.add(name)
        # As `encode_ids` writes them: the name at each change of container, and two numbers for each range.
        size += 20 if chosen and chosen[-1].container == name else 30 + len(json.dumps(name))
        if len(containers) > MAX_CONTAINERS or size > MAX_NAME_BYTES:
            break
        chosen.append(letter)
    return chosen
