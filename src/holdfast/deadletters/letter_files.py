"""Dead letters in files below a root: lines of JSON that are never changed, and marks beside them."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from holdfast.buckets.bucket import Bucket
from holdfast.errors import BatchError
from holdfast.flow.letter import Letter, LetterBox, LetterId, letter_of
from holdfast.flow.names import OURS

LETTERS = f"{OURS}/deadletters/"
REDRIVEN = f"{OURS}/redriven/"


class FileLetters(LetterBox):
    """Every file below `_holdfast/deadletters/`; a letter's number is that of its line, from 0 on."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def letters(self) -> Iterator[Letter]:
        marks = self._marks()
        for key in self._bucket.keys(LETTERS):
            yield from self._of_file(key, marks.get(key, {}))

    def fetch(self, ids: Sequence[LetterId]) -> list[Letter]:
        wanted = {one.place for one in ids}
        found = {letter.id: letter for place in sorted(wanted) for letter in self._of_file(place, {})}
        missing = next((one for one in ids if one not in found), None)
        if missing is not None:
            raise BatchError(f"there is no dead letter in line {missing.number + 1} of {missing.place} any more")
        return [found[one] for one in ids]

    def mark(self, ids: Iterable[LetterId], run: str) -> None:
        lines: dict[str, list[int]] = defaultdict(list)
        for one in ids:
            lines[one.place].append(one.number)
        for place, numbers in lines.items():
            told = {"file": place, "run": run, "lines": sorted(numbers)}
            data = json.dumps(told, sort_keys=True).encode()
            # By their content: what is told twice is there once, and a run may tell of more lines later.
            self._bucket.create(f"{REDRIVEN}{run}/{hashlib.sha256(data).hexdigest()[:32]}.json", data)

    def _marks(self) -> dict[str, dict[int, str]]:
        """By file and line the run that has sent the letter again."""
        marks: dict[str, dict[int, str]] = defaultdict(dict)
        for key in self._bucket.keys(REDRIVEN):
            told = json.loads(self._bucket.read(key) or b"{}")
            for line in told.get("lines", ()):
                marks[told["file"]][line] = told["run"]
        return marks

    def _of_file(self, key: str, marks: dict[int, str]) -> Iterator[Letter]:
        data, at = self._bucket.read(key), self._bucket.written_at(key)
        for number, line in enumerate((data or b"").splitlines()):
            if line:
                yield letter_of(json.loads(line), LetterId(key, number), at, marks.get(number))
