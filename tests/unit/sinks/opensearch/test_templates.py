"""Texts made from fields."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from holdfast.sinks.opensearch.templates import IndexName, Template, formatted_time, index_name_of


def texts(template: str, **fields: list[Any]) -> list[Any]:
    rows = len(next(iter(fields.values())))
    found: list[Any] = Template(template).texts(lambda name: pa.array(fields[name], pa.string()), rows).to_pylist()
    return found


def test_a_template_without_fields_is_constant() -> None:
    assert Template("orders").constant == "orders"
    assert Template("{{orders}}").constant == "{orders}"
    assert Template("a-{b}").constant is None


def test_fields_and_times_are_put_in_and_what_lacks_one_has_no_text() -> None:
    times = ["2026-01-31T23:30:00-01:00", "2026-02-01", "no time", None]
    assert texts("{a}-{t:%Y.%m.%d}", a=["x", "y", "z", "w"], t=times) == ["x-2026.02.01", "y-2026.02.01", None, None]
    assert texts("{a}", a=["x", None]) == ["x", None]


@pytest.mark.parametrize(
    ("text", "day"),
    [
        ("1767225600", "2026-01-01"),
        ("1767225600000", "2026-01-01"),
        ("2026-01-01T00:00:00Z", "2026-01-01"),
        ("2026-01-01 10:00:00", "2026-01-01"),
        ("-1", "1969-12-31"),
        ("99999999999999999999", None),
        ("", None),
    ],
)
def test_times_are_iso_texts_or_seconds_or_milliseconds(text: str, day: str | None) -> None:
    assert formatted_time(text, "%Y-%m-%d") == day


@pytest.mark.parametrize("wrong", ["{", "a}", "{}", "{a!r}", "{a:{b}}"])
def test_what_is_no_template_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="is not a template"):
        Template(wrong)


def test_records_may_only_name_indexes_that_begin_as_the_template_or_are_allowed() -> None:
    named = IndexName(Template("logs-{tenant}"))
    assert (named.allows("logs-a"), named.allows("logs-../x"), named.allows("other")) == (True, False, False)
    free = IndexName(Template("{tenant}"), ("team-*",))
    assert (free.allows("team-a"), free.allows(".security"), free.allows("other")) == (True, False, False)
    with pytest.raises(ValueError, match="allowed_indexes"):
        IndexName(Template("{tenant}"))
    with pytest.raises(ValueError, match="not an index name"):
        IndexName(Template("Orders"))
    with pytest.raises(ValueError, match="not a pattern"):
        IndexName(Template("{tenant}"), (".*",))


def test_any_text_can_become_an_index_name() -> None:
    assert index_name_of("prod|Orders-deadletters") == "prod-orders-deadletters"
    assert index_name_of("__") == "holdfast"
