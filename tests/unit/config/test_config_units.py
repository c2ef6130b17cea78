"""Durations and sizes in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from holdfast.config import ByteSize, Count, Duration, PositiveCount
from holdfast.config.units import format_duration, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("5m", 300),
        ("1h", 3600),
        ("2d", 172800),
        ("250ms", 0.25),
        ("1.5h", 5400),
        ("1h30m", 5400),
        ("30 s", 30),
        ("30sec", 30),
        ("5 min", 300),
        ("1h30mins", 5400),
        ("0s", 0),
        ("P7D", 604800),
        ("PT10M", 600),
        ("PT0.5S", 0.5),
        ("P1DT2H3M4S", 93784),
        ("pt30s", 30),
    ],
)
def test_a_duration(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "30", "30x", "s", "-30s", "5M", "P", "PT", "P1M", "P1Y", "P1H", "1e3s", "٣٠s", "30s ", " 30s", "1" * 40 + "s"],
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration; write 30s, 5m, 1h or PT30S"):
        parse_duration(text)


def test_a_duration_is_at_most_a_century() -> None:
    with pytest.raises(ValueError, match="is longer than 100 years"):
        parse_duration("40000d")


@given(st.floats(min_value=0.001, max_value=1e9).map(lambda seconds: round(seconds, 6)))
def test_a_duration_survives_being_written(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0s"), (90.0, "90s"), (3600.0, "1h"), (86400.0, "1d"), (0.25, "250ms"), (600.0, "10m")]
)
def test_a_duration_is_written_short(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_code_may_give_seconds_where_a_file_may_not() -> None:
    duration = TypeAdapter(Duration)
    assert duration.validate_python(1.5) == 1.5
    assert duration.dump_json(90.0) == b'"90s"'
    with pytest.raises(ValidationError):
        duration.validate_python(1.5, context={})
    with pytest.raises(ValidationError):
        duration.validate_python(-1)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("10B", 10),
        ("64MB", 64_000_000),
        ("64mb", 64_000_000),
        ("1 KB", 1000),
        ("1KiB", 1024),
        ("1GiB", 1 << 30),
        ("1.5MiB", 3 << 19),
        ("2TB", 2 * 10**12),
    ],
)
def test_a_size(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MB", "-1MB", "1XB", "1iB", "1M", "1e6", "64MB/s"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size; write 512KB, 64MB or 1GiB"):
        parse_size(text)


def test_a_size_fits_into_eight_bytes() -> None:
    with pytest.raises(ValueError, match="is more than 8 EiB"):
        parse_size("9223373TB")


def test_a_bare_number_is_a_size_in_bytes() -> None:
    size = TypeAdapter(ByteSize)
    assert size.validate_python(4096) == 4096
    for wrong in (True, -1, 1.5, None):
        with pytest.raises(ValidationError):
            size.validate_python(wrong)


def test_true_is_no_number() -> None:
    assert TypeAdapter(Count).validate_python(0) == 0
    with pytest.raises(ValidationError):
        TypeAdapter(Count).validate_python(True)
    with pytest.raises(ValidationError):
        TypeAdapter(PositiveCount).validate_python(0)
