"""What the settings say of the sinks that are audited."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import assemble
from holdfast.audit.sink import AuditedSink
from holdfast.errors import UsageError

KAFKA = "kafka: {bootstrap_servers: 'localhost:1', topics: [orders]}"
NAMES = ("txt", "txt.gz", "jsonl.zst", "avro", "orc", "seq", "parquet", "odd")
FILES = "- files: {root: ROOT/out, format: text, topics: [{match: 'raw-.*', format: raw}]}"


def audited_sinks(
    folder: Path, *, source: str = KAFKA, processors: str = "[]", sinks: str = FILES
) -> list[AuditedSink]:
    path = folder / "archive.yaml"
    path.write_text(
        f"source_coordination: {{partition_prefix: prod, store: {{sqlite: {{path: {folder}/leases.db}}}}}}\n"
        f"pipelines:\n  archive:\n    generation: 3\n    source: {{{source}}}\n    processors: {processors}\n"
        f"    sinks:\n      {sinks}\n".replace("ROOT", str(folder))
    )
    return assemble.audited(assemble.load_settings(path), "archive")


def test_a_sink_is_known_by_pipeline_name_root_and_generation(tmp_path: Path) -> None:
    (audited,) = audited_sinks(tmp_path)
    assert (audited.pipeline, audited.sink, audited.generation) == ("prod|archive", "files", 3)
    assert audited.root.location == f"{tmp_path}/out"
    assert (audited.offsets, audited.multiplies) == (True, False)


def test_the_format_is_that_of_the_topic(tmp_path: Path) -> None:
    (audited,) = audited_sinks(tmp_path)
    assert audited.format_of("orders").extension == "txt"
    assert audited.format_of("raw-orders").extension == "parquet"
    assert audited.format_of("orders") is audited.format_of("payments")


def test_files_of_other_settings_are_known_by_their_names(tmp_path: Path) -> None:
    (audited,) = audited_sinks(tmp_path)
    named = {name: [form.extension for form in audited.other_formats(f"orders/1_0_0.{name}")] for name in NAMES}
    assert named == {**{name: [name] for name in NAMES}, "parquet": ["parquet", "parquet"], "odd": []}


def test_items_of_other_sources_are_no_offsets(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (audited,) = audited_sinks(tmp_path, source=f"objects: {{folder: {tmp_path}/in, codec: text}}")
    assert not audited.offsets


@pytest.mark.parametrize(
    ("processors", "multiplies"),
    [
        ("[{parse: {time: kafka}}, {filter: {where: 'true'}}]", False),
        ("[{parse: {arrow: 'my.module:function'}}]", True),
        ("[{parse: {time: kafka, topics: [{match: a, arrow: 'my.module:function'}]}}]", True),
        ("[{python: {function: 'my.module:function'}}]", True),
    ],
)
def test_whether_a_record_may_become_several_rows_follows_from_the_processors(
    tmp_path: Path, processors: str, multiplies: bool
) -> None:
    (audited,) = audited_sinks(tmp_path, processors=processors)
    assert audited.multiplies == multiplies


def test_every_sink_of_files_is_audited(tmp_path: Path) -> None:
    two = "- {name: a, files: {root: ROOT/a}}\n      - {name: b, files: {root: ROOT/b}}"
    found = audited_sinks(tmp_path, sinks=two)
    assert [audited.sink for audited in found] == ["a", "b"]


def test_a_pipeline_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no sink `files`"):
        audited_sinks(tmp_path, sinks="- tests.unit.cli.fakes:SINK:")
