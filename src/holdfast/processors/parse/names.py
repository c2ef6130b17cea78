"""Partition names from times, numbers and texts. A name is made once for each distinct value, not for each row."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from holdfast.processors.parse.portion import Bad, Cells, CodedTexts, Numbers, Ticks, distinct, mask_without
from holdfast.processors.parse.time_patterns import DAY, NamePattern

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_CACHED = 100_000


class TimeNames:
    """Partition names of times in a time zone; names that were made are cached."""

    def __init__(self, pattern: NamePattern, zone: ZoneInfo) -> None:
        self._pattern = pattern
        self._zone = zone
        # A day or an hour of another time zone may begin at any minute of UTC.
        self._seconds = pattern.seconds if zone.key == "UTC" else min(pattern.seconds, 60)
        self._cache: dict[int, str] = {}

    def coded(self, ticks: Ticks) -> CodedTexts:
        """The names of these times."""
        if len(ticks.bad) == len(ticks.values):
            return CodedTexts(np.zeros(len(ticks.values), np.int64), [], ticks.bad)
        slots = ticks.values // (self._seconds * ticks.per_second)
        if ticks.bad:
            good = mask_without(ticks.bad, len(slots))
            slots = np.where(good, slots, slots[good][0])
        return _coded(slots, self._name, ticks)

    def _name(self, slot: int) -> str:
        if slot not in self._cache:
            if len(self._cache) >= _MAX_CACHED:
                self._cache.clear()
            moment = _EPOCH + timedelta(days=slot * self._seconds // DAY, seconds=slot * self._seconds % DAY)
            self._cache[slot] = self._pattern.names(moment.astimezone(self._zone))
        return self._cache[slot]


def names_of_ranges(numbers: Numbers, every: int, key: str) -> CodedTexts:
    """Partition names of ranges of `every` numbers: the name of a range is its first number."""
    return _coded(numbers // every, lambda slot: f"{key}{slot * every:020d}", Ticks(numbers, 1))


def names_of_values(cells: Cells, key: str) -> CodedTexts:
    """Partition names from texts and whole numbers."""
    values = cells.values
    if isinstance(values, list):
        try:
            values = pa.array(values, pa.string())
        except (ValueError, TypeError):
            values = pa.array([_text(value, row, cells) for row, value in enumerate(values)], pa.string())
    coded = coded_texts(values, cells.bad)
    if "" in coded.texts:
        for row in np.flatnonzero(coded.codes == coded.texts.index("")).tolist():
            coded.bad.setdefault(row, "the text for a partition name is empty")
    return CodedTexts(coded.codes, [key + escaped_segment(text) for text in coded.texts], coded.bad)


def coded_texts(texts: Any, bad: Bad) -> CodedTexts:
    """The texts of an Arrow array, in which bad rows are null."""
    made = texts.dictionary_encode()
    codes = made.indices.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return CodedTexts(codes, made.dictionary.to_pylist(), bad)


def escaped_segment(text: str) -> str:
    """The text with `/` escaped. Different texts stay different."""
    if "/" not in text and "%" not in text:
        return text
    return re.sub("%(?=2F|25)", "%25", text).replace("/", "%2F")


def with_invalid(coded: CodedTexts, name: str) -> CodedTexts:
    """The same texts, with this name for bad rows."""
    if not coded.bad:
        return coded
    codes = coded.codes.copy()
    codes[list(coded.bad)] = len(coded.texts)
    return CodedTexts(codes, [*coded.texts, name])


def joined_names(parts: Sequence[CodedTexts]) -> CodedTexts:
    """The names of all parts, joined by `/`. A row is bad if one part of it is; the first reason counts."""
    whole = parts[0]
    for part in parts[1:]:
        bad = part.bad | whole.bad
        if len(part.texts) == 1 or len(whole.texts) == 1:
            codes = whole.codes if len(part.texts) == 1 else part.codes
            texts = [f"{left}/{right}" for left in whole.texts for right in part.texts]
        else:
            pairs, codes = distinct(whole.codes * max(len(part.texts), 1) + part.codes)
            texts = [_pair(whole, part, int(pair)) for pair in pairs]
        whole = CodedTexts(codes, texts, bad)
    return whole


def output_folders(coded: CodedTexts, count: int) -> pa.DictionaryArray:
    """The column of output folders. A bad row gets the folder of a good row, so that it does not add a folder."""
    texts = list(coded.texts) or [""]
    codes = coded.codes.copy()
    if coded.bad and len(coded.bad) < count:
        good = mask_without(coded.bad, count)
        codes[~good] = codes[good][0]
    used, codes = distinct(codes)
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), [texts[number] for number in used])


def _pair(whole: CodedTexts, part: CodedTexts, pair: int) -> str:
    left, right = divmod(pair, max(len(part.texts), 1))
    return f"{_text_at(whole, left)}/{_text_at(part, right)}"


def _text_at(coded: CodedTexts, number: int) -> str:
    return coded.texts[number] if coded.texts else ""


def _coded(slots: Numbers, name: Callable[[int], str], ticks: Ticks) -> CodedTexts:
    present, which = distinct(slots)
    numbers: dict[str, int] = {}
    codes = np.array([numbers.setdefault(name(slot), len(numbers)) for slot in present.tolist()], np.int64)
    return CodedTexts(codes[which], list(numbers), ticks.bad)


def _text(value: object, row: int, cells: Cells) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or isinstance(value, int):
        return None if value is None else str(value)
    if isinstance(value, str):
        try:
            return value.encode().decode()
        except UnicodeEncodeError:
            cells.bad.setdefault(row, "the text for a partition name is not valid Unicode")
            return None
    cells.bad.setdefault(row, "a partition name is made of text or a whole number, not of " + type(value).__name__)
    return None
