"""Dead letters of a function, as files of JSON lines in a folder."""

from __future__ import annotations

import base64
import json
import os
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.functions.shard_calls import DeadRecord


@dataclass(frozen=True, slots=True)
class LetterFolder:
    """Keeps letters in this folder: one file for each call of `keep`, complete or not there at all.

    A worker that dies after it has kept letters and before their position is committed keeps them a second time.
    """

    folder: Path

    def keep(self, shard: str, letters: Sequence[DeadRecord]) -> None:
        """Write the letters, and return when they are on disk. Raises `OSError`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        label = re.sub(r"[^A-Za-z0-9._-]", "_", shard)
        file = self.folder / f"{label}-{letters[0].record.offset:020d}-{uuid.uuid4().hex[:8]}.jsonl"
        hidden = file.with_name(f".{file.name}")
        with hidden.open("w", encoding="utf-8") as written:
            written.writelines(json.dumps(_line(shard, letter)) + "\n" for letter in letters)
            written.flush()
            os.fsync(written.fileno())
        hidden.rename(file)


def _line(shard: str, letter: DeadRecord) -> dict[str, Any]:
    record = letter.record
    return {
        "shard": shard,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _base64(record.key),
        "headers": [[name, _base64(value)] for name, value in record.headers],
        "body": _base64(record.body),
        "error": letter.error,
        "attempts": letter.attempts,
    }


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()
