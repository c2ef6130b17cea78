"""The period of an output folder."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.processors.parse.time_patterns import NamePattern
from holdfast.sinks.files.periods import USUAL, FolderTimes, Periods, check_template

BERLIN = "Europe/Berlin"


def period_texts(output_folder: str, periods: Periods = Periods()) -> tuple[str, str] | None:
    found = periods.of(output_folder)
    return found and tuple(f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%dT%H:%M}" for moment in found)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("output_folder", "begin", "end"),
    [
        ("dt=2026-01-31", "2026-01-31T00:00", "2026-02-01T00:00"),
        ("dt=2026-01-01/hr=23", "2026-01-01T23:00", "2026-01-02T00:00"),
        ("dt=2026-01-01/hr=23/min=59", "2026-01-01T23:59", "2026-01-02T00:00"),
        ("dt=2026-12", "2026-12-01T00:00", "2027-01-01T00:00"),
        ("dt=2026", "2026-01-01T00:00", "2027-01-01T00:00"),
        ("2026-02-28/05", "2026-02-28T05:00", "2026-02-28T06:00"),
        ("2026-02-28/05/07", "2026-02-28T05:07", "2026-02-28T05:08"),
        ("country=DE/dt=2026-01-31/shop=7", "2026-01-31T00:00", "2026-02-01T00:00"),
    ],
)
def test_the_names_that_parse_makes_are_understood(output_folder: str, begin: str, end: str) -> None:
    assert period_texts(output_folder) == (begin, end)


@pytest.mark.parametrize(
    "output_folder", ["", "dt=__invalid__", "dt=2026-13-01", "dt=2026-02-30", "xdt=2026-01-01", "DE", "20260101"]
)
def test_other_places_tell_no_time(output_folder: str) -> None:
    assert Periods().of(output_folder) is None


def test_a_template_of_ones_own() -> None:
    custom = Periods(("y=%Y/d=%j",))
    assert period_texts("eu/y=2026/d=032", custom) == ("2026-02-01T00:00", "2026-02-02T00:00")
    assert period_texts("dt=2026-01-01", custom) is None


def test_a_day_of_another_zone_has_its_own_length() -> None:
    assert period_texts("dt=2026-03-29", Periods(zone=BERLIN)) == ("2026-03-28T23:00", "2026-03-29T22:00")


def test_an_hour_that_comes_twice_ends_with_the_second() -> None:
    assert period_texts("dt=2026-10-25/hr=02", Periods(zone=BERLIN)) == ("2026-10-25T00:00", "2026-10-25T02:00")
    assert period_texts("dt=2026-10-25/hr=02/min=30", Periods(zone=BERLIN)) == ("2026-10-25T00:30", "2026-10-25T01:31")


@given(st.integers(631_152_000, 4_102_444_800), st.sampled_from(USUAL), st.sampled_from(["UTC", BERLIN]))
def test_every_moment_is_within_the_period_of_its_place(seconds: int, template: str, zone: str) -> None:
    moment = datetime.fromtimestamp(seconds, UTC)
    found = Periods(zone=zone).of(moment.astimezone(ZoneInfo(zone)).strftime(template))
    assert found is not None
    assert found[0] <= moment.timestamp() < found[1]
    assert found[1] - found[0] <= timedelta(days=367).total_seconds()


@pytest.mark.parametrize(
    "text", ["dt=%d", "%Y/%d", "dt=%Y/hr=%H", "%Y-%m-%d/%M", "%Y/%Y", "%Y/%q", "%Y//%m", "%Y%", "dt"]
)
def test_templates_from_which_no_period_follows_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"has|must"):
        check_template(text)


def test_usual_templates_pass_the_check_and_travel_to_tasks() -> None:
    for text in USUAL:
        check_template(text)
    travelled: Periods = pickle.loads(pickle.dumps(Periods()))  # noqa: S301 - made here
    assert travelled.of("dt=2026") == Periods().of("dt=2026")


PATTERNS = [*USUAL, "year=%Y/week=%V", "%G-W%V", "%b-%Y/%d", "y=%Y/dt=%Y-%m-%d", "%Y%%/%j", "%Y/%H%M%S"]


@given(st.integers(631_152_000, 4_102_444_800), st.sampled_from(PATTERNS), st.sampled_from(["UTC", BERLIN]))
def test_no_folder_begins_after_a_moment_that_it_is_named_after(seconds: int, pattern: str, zone: str) -> None:
    moment = datetime.fromtimestamp(seconds, UTC)
    folder = NamePattern(pattern).names(moment.astimezone(ZoneInfo(zone)))
    begin = FolderTimes(((pattern, zone),)).begin(f"eu/{folder}/customer=7")
    assert begin is not None
    assert 0 <= moment.timestamp() - begin <= timedelta(days=374).total_seconds()


def test_a_value_that_looks_like_a_year_does_not_make_a_folder_begin_later() -> None:
    times = FolderTimes((("%Y", "UTC"),))
    assert times.begin("2026/2071") == times.begin("2071/2026") == times.begin("2026")
    assert times.begin("0000") is times.begin("eu") is FolderTimes((("%y/%m", "UTC"),)).begin("26/01") is None
