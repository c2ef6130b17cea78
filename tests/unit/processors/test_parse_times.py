"""Times and the names made of them: every unit, every zone, and nothing that is no time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.processors.rig import as_json, folders, folders_of, message_rows, parsed

UNITS = {"seconds": 1, "millis": 10**3, "micros": 10**6, "nanos": 10**9}
DAY = "dt=2026-01-01"
moments = st.datetimes(datetime(1980, 1, 2), datetime(2200, 12, 30), timezones=st.just(UTC))  # noqa: DTZ001 - bounds
zones = st.sampled_from(
    ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe", "Pacific/Apia"]
)


def by_field(**settings: Any) -> dict[str, Any]:
    return {"json": {"field": "t", **settings}}


@settings(deadline=None)
@given(moments, st.sampled_from(sorted(UNITS)), zones)
def test_an_epoch_gives_the_local_minute_of_the_zone(moment: datetime, unit: str, zone: str) -> None:
    ticks = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * UNITS[unit] // 10**6
    found = folders(as_json({"t": ticks}), time=by_field(unit=unit), zone=zone, granularity="minute")
    assert found == [moment.astimezone(ZoneInfo(zone)).strftime("dt=%Y-%m-%d/hr=%H/min=%M")]


@settings(deadline=None)
@given(st.lists(moments, min_size=1, max_size=5), zones)
def test_iso_8601_with_a_zone_is_understood_in_any_mixture(moments: list[datetime], zone: str) -> None:
    texts = [moment.astimezone(ZoneInfo(zone)).isoformat() for moment in moments]
    found = folders(as_json(*({"t": text} for text in texts)), time=by_field(unit="iso8601"), granularity="hour")
    assert found == [moment.strftime("dt=%Y-%m-%d/hr=%H") for moment in moments]


values = st.one_of(
    st.sampled_from(["2026-01-01", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00+14", "0x10", "1767268800", "1e3", ""]),
    st.integers(),
    st.integers(0, 2**33),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.none(),
    moments.map(datetime.isoformat),
    st.text(max_size=5),
)
readers = st.sampled_from([{"unit": unit} for unit in (*UNITS, "iso8601")] + [{"format": "%Y-%m-%d"}])


@settings(deadline=None)
@given(st.lists(values, min_size=1, max_size=6), readers, st.sampled_from(["dead_letter", "invalid"]))
def test_a_time_is_the_same_in_any_company(found: list[Any], reader: dict[str, str], on_error: str) -> None:
    messages = as_json(*({"t": value} for value in found))
    rule: dict[str, Any] = {"time": by_field(**reader), "on_error": on_error}
    assert folders(messages, **rule) == [folder for message in messages for folder in folders([message], **rule)]
    texts = [b"<" + message + b">" for message in messages]
    rule["time"] = {"regex": {"pattern": '"t": "?(?P<t>[^"}]*)', **reader}}
    assert folders(texts, **rule) == [folder for text in texts for folder in folders([text], **rule)]


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-01",
        "2026-01-01T05:30:00",
        "2026-01-01 05:30:00",
        "2026-01-01T05:30:00Z",
        "2026-01-01T05:30:00.123456789Z",
        "2026-01-01T05:30:00+05",
        "2026-01-01T05:30:00-0500",
        "2026-01-01T05:30:00+05:30",
    ],
)
def test_forms_of_iso_8601_among_others(text: str) -> None:
    others = {"t": "2026-01-01T00:00:00Z"}, {"t": "never"}, {"t": 5}
    found = folders(as_json({"t": text}, *others), time=by_field(unit="iso8601"))
    assert found == [DAY, DAY, "<the time 'never' is not in ISO 8601>", "<the time 5 is not text>"]
    assert folders(as_json({"t": text}), time=by_field(unit="iso8601")) == [DAY]


@pytest.mark.parametrize("text", ["2026-02-30", "2026-01-01T25:00:00Z", "2026-13-01", "", "1/1/2026", "1767268800"])
def test_what_is_no_such_time_is_no_time(text: str) -> None:
    assert folders(as_json({"t": text}), time=by_field(unit="iso8601")) == [f"<the time {text!r} is not in ISO 8601>"]


def test_a_text_without_a_zone_is_of_the_zone_that_the_settings_say() -> None:
    # New York was five hours behind UTC that day, so it was already the next day in UTC.
    found = folders(as_json({"t": "2025-12-31T23:30:00"}), time=by_field(unit="iso8601"), text_zone="America/New_York")
    assert found == [DAY]


def test_the_hour_that_comes_twice_in_autumn_has_one_name_and_the_missing_one_none() -> None:
    hours = as_json(*({"t": int(datetime(2025, 10, 26, hour, 30, tzinfo=UTC).timestamp())} for hour in range(3)))
    settings: dict[str, Any] = {
        "time": by_field(unit="seconds"),
        "granularity": "hour",
        "zone": "Europe/Berlin",
        "style": "plain",
    }
    assert folders(hours, **settings) == ["2025-10-26/02", "2025-10-26/02", "2025-10-26/03"]
    spring = as_json(*({"t": int(datetime(2025, 3, 30, hour, 30, tzinfo=UTC).timestamp())} for hour in range(2)))
    assert folders(spring, **settings) == ["2025-03-30/01", "2025-03-30/03"]


@pytest.mark.parametrize(
    ("pattern", "text", "folder"),
    [
        ("%d/%b/%Y:%H:%M:%S %z", "01/Jan/2026:00:30:00 +0100", "dt=2025-12-31/hr=23"),
        ("%Y%m%d%H", "2026010105", f"{DAY}/hr=05"),
        ("%Y-%j", "2026-001", f"{DAY}/hr=00"),
        ("%Y.%m.%d %H.%M.%S.%f", "2026.01.01 05.00.00.123456789", f"{DAY}/hr=05"),
        ("100%% %Y-%m-%d", "100% 2026-1-1", f"{DAY}/hr=00"),
    ],
)
def test_a_pattern_reads_other_forms(pattern: str, text: str, folder: str) -> None:
    assert folders(as_json({"t": text}), time=by_field(format=pattern), granularity="hour") == [folder]


@pytest.mark.parametrize(
    ("pattern", "text"),
    [("%Y-%m-%d", "2026-01-01x"), ("%Y-%m-%d", "2026-02-30"), ("%Y-%j", "2026-366"), ("%d/%b/%Y", "01/Jän/2026")],
)
def test_what_does_not_look_like_the_pattern_is_no_time(pattern: str, text: str) -> None:
    (found,) = folders(as_json({"t": text}), time=by_field(format=pattern))
    assert found.startswith("<the time ")


def test_the_kafka_timestamp_needs_nothing_of_the_message() -> None:
    stamps = [
        datetime(2026, 1, 1, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC),
        None,
    ]
    rows = message_rows([b"x", b"y", b"z"], stamps=stamps)
    assert folders_of(parsed(rows, time="kafka", granularity="hour")) == [
        f"{DAY}/hr=23",
        "<the time is outside the years 1980 to 2200>",
        "<the message has no Kafka timestamp>",
    ]


def test_a_regular_expression_finds_a_time_in_any_text() -> None:
    messages = [b"GET / [1767268800]", b"no time", None, b"\xff [1767268801]", b"[\xff]"]
    time = {"regex": {"pattern": r"\[(?P<t>[^\]]+)\]", "unit": "seconds"}}
    assert folders(messages, time=time) == [
        DAY,
        "<the regular expression does not match>",
        "<the message has no value>",
        DAY,
        "<the match of the regular expression is not UTF-8>",
    ]


def test_years_can_be_bounded() -> None:
    messages = as_json({"t": "1999-12-31"}, {"t": "2000-01-01"}, {"t": "2030-12-31"}, {"t": "2031-01-01"})
    found = folders(messages, time=by_field(unit="iso8601"), min_year=2000, max_year=2030)
    assert [folder[:4] for folder in found] == ["<the", "dt=2", "dt=2", "<the"]


@pytest.mark.parametrize(
    ("settings", "folder"),
    [
        ({}, "dt=2026-01-01"),
        ({"granularity": "year"}, "dt=2026"),
        ({"granularity": "month", "style": "plain"}, "2026-01"),
        ({"granularity": "minute"}, "dt=2026-01-01/hr=12/min=00"),
        ({"granularity": "hour", "style": "plain"}, "2026-01-01/12"),
        ({"template": "year=%Y/week=%G-%V/at=%H:%M:%S"}, "year=2026/week=2026-01/at=12:00:00"),
        ({"template": "%y%b%j"}, "26Jan001"),
        ({"prefix": "eu/raw"}, "eu/raw/dt=2026-01-01"),
        ({"zone": "Pacific/Kiritimati"}, "dt=2026-01-02"),
    ],
)
def test_names_look_as_the_settings_say(settings: dict[str, Any], folder: str) -> None:
    assert folders([b"x"], time="kafka", **settings) == [folder]
