"""Names of files: by template, escaped, and never two files under one name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.flow.batch import Name
from holdfast.flow.format import Formats
from holdfast.flow.names import DEFAULT_LAYOUT, Layout, check_layout, folder_path, folder_refusal
from holdfast.formats.jsonl import Jsonl
from holdfast.formats.parquet import Parquet

NAME = Name("orders", "3")


def test_the_default_sorts_by_offset_and_tells_which_file_holds_a_message() -> None:
    assert Layout().key(NAME, 2, 42, "parquet") == "orders/2_3_00000000000000000042.parquet"
    placed = Layout().key(NAME, 2, 42, "txt.gz", "dt=2026-01-01/hr=05")
    assert placed == "orders/dt=2026-01-01/hr=05/2_3_00000000000000000042.txt.gz"


def test_the_preset_of_secor_names_files_as_secor_does() -> None:
    key = Layout(check_layout("secor")).key(NAME, 1, 42, "seq", "dt=1")
    assert key == "orders/dt=1/1_3_00000000000000000042.seq"


def test_a_template_may_order_the_parts_in_another_way() -> None:
    template = check_layout("raw/{place}/{topic}/{partition}-{offset:020}-{generation}.{ext}")
    assert Layout(template).key(NAME, 1, 7, "seq", "dt=1") == "raw/dt=1/orders/3-00000000000000000007-1.seq"


@pytest.mark.parametrize(
    "wrong",
    ["{topic}/{offset}", "{topic}/{place}/{generation}_{partition}_{offset}_{hour}.{ext}", "/" + DEFAULT_LAYOUT, "{"],
)
def test_a_template_with_which_two_files_could_get_one_name_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        check_layout(wrong)


@given(st.text(min_size=1), st.text(min_size=1))
def test_what_comes_from_data_never_leaves_its_folder(topic: str, output_folder: str) -> None:
    key = Layout().key(Name(topic, "0"), 1, 0, "txt", output_folder)
    parts = key.split("/")
    assert all(part not in {"", ".", ".."} and not part.startswith(("_", ".")) for part in parts)


def test_the_first_rule_that_matches_a_whole_topic_decides_its_format() -> None:
    audit, rest = Jsonl(), Parquet()
    formats = Formats(rest, [("audit.*", audit), (".*", rest)])
    assert formats.of("audit.log") is audit
    assert formats.of("my-audit") is rest


HOSTILE = st.one_of(
    st.text(),
    st.text(alphabet="/.\0\n\x1f%~é漢🙂\ud800", max_size=2000),
    st.lists(st.text(min_size=1, max_size=300), max_size=12).map("/".join),
)


@given(HOSTILE)
def test_no_value_makes_a_key_longer_than_s3_and_file_systems_take(value: str) -> None:
    if folder_refusal(value) is not None:
        return
    key = f"{'p' * 100}/_late/" + Layout().key(Name("t" * 300, "l" * 300), 10**9, 1 << 63, "parquet.zst", value)
    assert len(key.encode()) <= 1024
    assert all(len(part.encode()) <= 255 for part in key.split("/"))
    assert key.isascii()
    assert key.isprintable()


@given(HOSTILE, HOSTILE)
def test_different_values_get_different_folders_however_long(left: str, right: str) -> None:
    if left != right and folder_refusal(left) is None and folder_refusal(right) is None:
        assert folder_path(left) != folder_path(right)


def test_a_long_value_is_its_beginning_and_a_hash_and_keeps_its_level() -> None:
    names = [f"key{number}={'v' * 120}" for number in range(7)]
    path = folder_path("/".join(names)).split("/")
    assert [part[:5] for part in path] == [name[:5] for name in names]
    assert all("%~" in part for part in path)
    assert folder_path("user=" + "v" * 200).startswith("user=vvvv")
    assert folder_path("a" * 128) == "a" * 128


def test_a_value_of_any_size_is_judged_at_once() -> None:
    assert folder_refusal("dt=2026-01-01/user=" + "é" * 2000) is None
    assert folder_refusal("x" * 5_000_000) == "its partition names have 5000000 bytes, and a folder may have 4096"
    assert folder_refusal("/".join(["é" * 60] * 30)) == "it has 30 partition names, which are too many for one path"
