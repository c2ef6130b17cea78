"""Text: messages and delimiters, and messages that contain a delimiter."""

from __future__ import annotations

import gzip
import io
from typing import Any, get_args

import pyarrow as pa
import pytest
from pydantic import ValidationError

from holdfast.errors import BatchError
from holdfast.flow.format import Format
from holdfast.formats._compression import Compression
from holdfast.formats.text import PLUGIN, Text, TextConfig
from holdfast.testing.formats import FormatBehaviour


def messages(*values: bytes | str | None) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values)], ["value"])


def written(form: Format, rows: pa.RecordBatch) -> bytes:
    raw = io.BytesIO()
    writer = form.open(raw, rows.schema)
    writer.write(rows)
    writer.close()
    return raw.getvalue()


def read(form: Format, data: bytes) -> list[Any]:
    return [value for rows in form.read(io.BytesIO(data)) for value in rows.column("value").to_pylist()]


def built(**settings: Any) -> Text:
    made = PLUGIN.build(TextConfig(**settings))
    assert isinstance(made, Text)
    return made


class TestText(FormatBehaviour):
    only_messages = True

    def make_format(self) -> Format:
        return Text()


class TestEscapedText(FormatBehaviour):
    only_messages = True

    def make_format(self) -> Format:
        return Text(containing="escape")


class TestTextWithLengths(FormatBehaviour):
    only_messages = True

    def make_format(self) -> Format:
        return Text(containing="length_prefix")


class TestTextWithLongDelimiter(FormatBehaviour):
    only_messages = True

    def make_format(self) -> Format:
        return Text(b"\xff\xff", compression="lz4")


class TestTextThatSkips(FormatBehaviour):
    only_messages = True

    def make_format(self) -> Format:
        return Text(containing="skip", tombstones="skip")


class TestTextWithEscapedTombstones(FormatBehaviour):
    only_messages = True
    unfit = 0

    def make_format(self) -> Format:
        return Text(containing="escape", tombstones="escape")


@pytest.mark.parametrize("compression", get_args(Compression))
class TestCompressedText(FormatBehaviour):
    only_messages = True

    @pytest.fixture
    def form(self, compression: Compression) -> Format:
        return Text(compression=compression, containing="escape")


def test_messages_stand_one_under_the_other() -> None:
    assert written(Text(), messages(b"a", b"", "é".encode())) == b"a\n\n\xc3\xa9\n"
    assert written(Text(), messages("a", "é")) == b"a\n\xc3\xa9\n"
    assert written(Text(b"--"), messages(b"a", b"-b")) == b"a---b--"


def test_a_message_that_contains_the_delimiter_is_a_dead_letter_by_default() -> None:
    rows = messages(b"a\nb", b"c", b"\n", b"")
    reasons = Text().faults(rows)
    assert reasons is not None
    assert reasons.to_pylist() == [
        "the message contains the delimiter",
        None,
        "the message contains the delimiter",
        None,
    ]
    with pytest.raises(BatchError, match="not taken out"):
        written(Text(), rows)


def test_a_message_that_ends_with_the_beginning_of_the_delimiter_contains_it_too() -> None:
    reasons = Text(b"||").faults(messages(b"a|", b"|a", b"a"))
    assert reasons is not None
    assert [reason is None for reason in reasons.to_pylist()] == [False, True, True]
    assert Text(b"|-").faults(messages(b"a|", b"|a", b"-|")) is None


def test_escapes_are_the_well_known_ones() -> None:
    assert written(Text(containing="escape"), messages(b"a\nb\\n")) == b"a\\nb\\\\n\n"
    assert written(Text(b"\t", "escape"), messages(b"a\tb\n")) == b"a\\tb\n\t"
    assert written(Text(b"||", "escape"), messages(b"a|")) == b"a\\d||"


@pytest.mark.parametrize("delimiter", [b"\n", b"||", b"\x00", b"\r\n", b"\xff", b"|a|"])
@pytest.mark.parametrize("containing", ["escape", "length_prefix"])
def test_any_message_comes_back_beside_any_delimiter(delimiter: bytes, containing: Any) -> None:
    values = [delimiter * count + tail for count in range(4) for tail in (b"", b"\\", b"\\\\n", b"|", b"\r", b"\\d")]
    form = Text(delimiter, containing)
    assert read(form, written(form, messages(*values))) == values


def test_lengths_distinguish_null_from_empty() -> None:
    form = Text(containing="length_prefix")
    assert written(form, messages(b"ab", b"", None)) == b"\0\0\0\x02ab\0\0\0\0\xff\xff\xff\xff"
    assert read(form, written(form, messages(None, b"", b"\n"))) == [None, b"", b"\n"]


def test_a_tombstone_is_a_dead_letter_or_empty_but_never_dropped() -> None:
    rows = messages(b"a", None)
    reasons = Text().faults(rows)
    assert reasons is not None
    assert [reason and reason[:19] for reason in reasons.to_pylist()] == [None, "the message is null"]
    assert Text(tombstones="empty").faults(rows) is None
    assert written(Text(tombstones="empty"), rows) == b"a\n\n"
    both = Text().faults(messages(None, b"\n", b""))
    assert both is not None
    assert [reason is None for reason in both.to_pylist()] == [False, False, True]


def test_other_columns_are_left_aside_and_a_missing_one_is_named() -> None:
    rows = pa.record_batch({"day": ["2026"], "value": [b"a"]})
    assert written(Text(), rows) == b"a\n"
    with pytest.raises(BatchError, match="needs the column value, and the rows have day"):
        written(Text(), rows.select(["day"]))


def test_a_backslash_that_nobody_escaped_is_refused() -> None:
    for data in (b"a\\x\n", b"a\\\nnext\n"):
        with pytest.raises(ValueError, match="backslash"):
            read(Text(containing="escape"), data)


def test_file_names_show_the_compression() -> None:
    names = [built(compression=compression).extension for compression in get_args(Compression)]
    assert names == ["txt", "txt.gz", "txt.zst", "txt.snappy", "txt.lz4"]


@pytest.mark.parametrize("level", [None, 1, 3, 4, 9])
def test_gzip_is_gzip_at_every_level_and_has_no_time_in_it(level: int | None) -> None:
    rows = messages(*(b"%d" % number for number in range(100_000)))
    packed = written(Text(compression="gzip", level=level), rows)
    assert gzip.decompress(packed) == written(Text(), rows)
    assert packed[4:8] == bytes(4)


def test_settings() -> None:
    assert written(built(delimiter="hex:00ff"), messages(b"a")) == b"a\x00\xff"
    assert written(built(delimiter="é"), messages(b"a")) == b"a\xc3\xa9"
    for wrong in (
        {"delimiter": ""},
        {"delimiter": "hex:"},
        {"delimiter": "hex:0"},
        {"delimiter": "n", "containing": "escape"},
        {"delimiter": "\\", "containing": "escape"},
        {"compression": "brotli"},
        {"level": 10},
    ):
        with pytest.raises(ValidationError):
            TextConfig(**wrong)


def test_an_escaped_tombstone_is_like_no_other_message() -> None:
    form = Text(containing="escape", tombstones="escape")
    assert written(form, messages(None, b"\\N", b"")) == b"\\N\n\\\\N\n\n"
    assert read(form, written(form, messages(None, b"\\N", b"", b"N", b"\\\\N"))) == [None, b"\\N", b"", b"N", b"\\\\N"]
    with pytest.raises(ValidationError, match="needs containing: escape"):
        TextConfig(tombstones="escape")


def test_what_text_cannot_hold_is_said_with_the_setting_that_decides() -> None:
    delimiter, tombstones = Text().limits()
    assert delimiter.startswith("messages that contain the delimiter become dead letters (containing: dead_letter;")
    assert delimiter.endswith("may be escape, length_prefix, skip)")
    assert tombstones.endswith("become dead letters (tombstones: dead_letter; may be empty, escape, skip)")
    assert "are left out and counted" in Text(tombstones="skip").limits()[1]
    assert Text(containing="length_prefix").limits() == []
