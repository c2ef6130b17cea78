"""Functions of the user's: on one message, and on Arrow batches."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from holdfast.errors import BatchError, SourceUnavailable, UsageError
from holdfast.processors.parse import PLUGIN
from holdfast.processors.parse.messages import Message
from tests.unit.processors import user_functions
from tests.unit.processors.rig import folders, folders_of, message_rows, parsed

HERE = "tests.unit.processors.user_functions"


def test_a_function_gets_messages_and_gives_names_and_payload() -> None:
    user_functions.SEEN.clear()
    result = parsed(message_rows([b"ab", None, b"c"], first=7), python=f"{HERE}:by_length")
    assert folders_of(result) == ["topic=orders/len=2", f"<{HERE}:by_length: KeyError: 'value'>", "topic=orders/len=1"]
    assert result.column("value").to_pylist() == [b"AB", None, b"C"]
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert user_functions.SEEN[0] == Message("orders", 3, 7, noon, b"k", b"ab", ())


def test_headers_come_along() -> None:
    user_functions.SEEN.clear()
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None], kind)
    parsed(message_rows([b"a", b"b"]).append_column("headers", headers), python=f"{HERE}:by_length")
    assert [message.headers for message in user_functions.SEEN] == [(("h", b"1"), ("h", None)), ()]


def test_names_alone_leave_the_payload_and_cannot_make_folders_of_their_own() -> None:
    assert folders([b"a/b", b"x"], python=f"{HERE}:names_only") == ["a%2Fb", "x"]
    (empty,) = folders([b""], python=f"{HERE}:names_only")
    assert "it returned a partition name that is empty or not text" in empty


def test_a_name_that_is_not_unicode_concerns_its_message_alone() -> None:
    escaped = [rb'"\ud800"', b'"x"']
    broken, good = folders(escaped, python=f"{HERE}:names_in_json")
    assert "a partition name that is not valid Unicode" in broken
    assert good == "x"


def test_what_a_function_cannot_parse_can_go_to_the_invalid_place() -> None:
    found = folders([None, b"x"], python=f"{HERE}:by_length", on_error="invalid")
    assert found == ["__invalid__", "topic=orders/len=1"]


def test_a_function_that_needs_something_that_is_away_makes_the_batch_wait() -> None:
    with pytest.raises(SourceUnavailable):
        folders([b"x"], python=f"{HERE}:unreachable")


def test_a_row_with_a_fault_is_not_shown_to_the_function() -> None:
    user_functions.SEEN.clear()
    rows = message_rows([b"a", b"b"])
    rows = rows.set_column(2, "_fault", pa.array(['{"kind": "record", "reason": "before"}', None], pa.string()))
    assert folders_of(parsed(rows, python=f"{HERE}:by_length")) == ["<before>", "topic=orders/len=1"]
    assert [message.value for message in user_functions.SEEN] == [b"b"]


def test_a_function_on_arrow_batches() -> None:
    assert folders([b"a", b"abc"], arrow=f"{HERE}:on_batches") == ["orders-1", "orders-3"]


@pytest.mark.parametrize(
    ("name", "error"), [("drops_columns", "dropped _batch, _item, _fault"), ("returns_nothing", "not a RecordBatch")]
)
def test_a_function_on_arrow_batches_must_keep_the_rules(name: str, error: str) -> None:
    with pytest.raises(BatchError, match=error):
        folders([b"a"], arrow=f"{HERE}:{name}")


@pytest.mark.parametrize("folder", ["no_such_module:f", f"{HERE}:nothing", f"{HERE}:NOT_A_FUNCTION"])
def test_a_function_that_is_not_there_is_told_at_the_start(folder: str) -> None:
    with pytest.raises(UsageError, match=folder.partition(":")[2]):
        PLUGIN.build(PLUGIN.config(python=folder))


def test_a_function_of_batches_may_make_several_rows_of_a_message() -> None:
    names = (None, "python", "arrow")
    steps = [
        PLUGIN.build(PLUGIN.config(time="kafka") if name is None else PLUGIN.config(**{name: f"{HERE}:by_length"}))
        for name in names
    ]
    assert [step.keeps_rows for step in steps] == [True, True, False]
