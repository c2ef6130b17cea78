"""Dead letters in files below a root: lines of JSON that are never changed, and marks in files beside them."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from holdfast.buckets.bucket import Bucket
from holdfast.errors import BatchError
from holdfast.flow.letter import CommittedLetters, Letter, LetterId, letter_of
from holdfast.flow.names import OURS, segment

LETTERS = f"{OURS}/deadletters/"
REDRIVEN = f"{OURS}/redriven/"
NOTES = f"{OURS}/deadletter-topics/"


class FileLetters(CommittedLetters):
    """The letters of all files below `_holdfast/deadletters/`. The number of a letter is its line, from 0."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def letters(self) -> Iterator[Letter]:
        marks = self._marks()
        for key in self._bucket.keys(LETTERS):
            yield from self.of_file(key, marks.get(key, {}))

    def fetch(self, ids: Sequence[LetterId]) -> list[Letter]:
        files = sorted({letter_id.container for letter_id in ids})
        found = {letter.id: letter for key in files for letter in self.of_file(key)}
        missing = next((letter_id for letter_id in ids if letter_id not in found), None)
        if missing is not None:
            raise BatchError(f"line {missing.number + 1} of {missing.container} does not hold a dead letter any more")
        return [found[letter_id] for letter_id in ids]

    def of_file(self, key: str, marks: Mapping[int, str] = {}) -> Iterator[Letter]:
        """The letters of one file. `marks`: by line, the run that has sent the letter again."""
        data, at = self._bucket.read(key), self._bucket.written_at(key)
        for number, line in enumerate((data or b"").splitlines()):
            if line:
                yield letter_of(json.loads(line), LetterId(key, number), at, marks.get(number))

    def read_spilled(self, letter: Letter) -> bytes | None:
        where = letter.spilled or {}
        return self._bucket.read_range(where["file"], where["start"], where["size"])

    def mark(self, ids: Iterable[LetterId], run: str) -> None:
        lines: dict[str, list[int]] = defaultdict(list)
        for letter_id in ids:
            lines[letter_id.container].append(letter_id.number)
        for key, numbers in lines.items():
            data = json.dumps({"file": key, "run": run, "lines": sorted(numbers)}, sort_keys=True).encode()
            # Named by their content: marking twice changes nothing, and a run may mark more lines later.
            self._bucket.create(f"{REDRIVEN}{run}/{hashlib.sha256(data).hexdigest()[:32]}.json", data)

    def note_name(self, receipt: Any, commit: str) -> str | None:  # noqa: ARG002 - files keep their names
        files = _files_of(receipt)
        return files[0].removeprefix(LETTERS) if files else None

    def of_receipt(self, receipt: Any) -> Iterator[Letter]:
        for file in _files_of(receipt):
            is_gone = True
            for letter in self.of_file(file):
                yield letter
                is_gone = False
            if is_gone:
                raise BatchError(f"{file} is gone")

    def note(self, topic: str, name: str, text: bytes) -> bytes | None:
        key = f"{NOTES}{segment(topic)}/{name}.json"
        return None if self._bucket.create(key, text) else self._bucket.read(key) or b"{}"

    def _marks(self) -> dict[str, dict[int, str]]:
        """By file and line, the run that has sent the letter again."""
        marks: dict[str, dict[int, str]] = defaultdict(dict)
        for key in self._bucket.keys(REDRIVEN):
            mark = json.loads(self._bucket.read(key) or b"{}")
            for line in mark.get("lines", ()):
                marks[mark["file"]][line] = mark["run"]
        return marks


def _files_of(receipt: Any) -> list[str]:
    """The files of letters in a receipt, in order."""
    return sorted(file["key"] for file in receipt["files"] if file["key"].startswith(LETTERS))
