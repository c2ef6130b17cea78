"""Settings of the source `objects`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from holdfast.config import ByteSize, Duration, Options
from holdfast.sources.objects.finding import Selection


def _check_patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    if not all(patterns):
        raise ValueError("a pattern is empty; write **/* for every file")
    Selection(patterns)
    return patterns


Patterns = Annotated[tuple[str, ...], AfterValidator(_check_patterns)]
PositiveSize = Annotated[ByteSize, Field(gt=0)]


class ObjectsConfig(Options):
    """Which files are read, and how."""

    folder: Path = Field(description="Folder with the files; read with all folders below it.")
    include: Patterns = Field(
        ("**/*",), description="Files to read, as patterns of the path below the folder: * within a name, ** across."
    )
    exclude: Patterns = Field((), description="Files to leave out, as patterns of the path below the folder.")
    codec: Literal["jsonl", "text"] = Field(
        "jsonl", description="A record is a line: jsonl takes one JSON object a line, text any line."
    )
    schema_: str | None = Field(
        None,
        alias="schema",
        min_length=1,
        description="Columns of the records as in Spark's DDL, such as `id BIGINT, note STRING`; "
        "for jsonl only. Without it a record is one column, value, with the line as it is.",
    )
    compression: Literal["auto", "none", "gzip"] = Field(
        "auto", description="Compression of the files; auto goes by the name's ending and the first bytes."
    )
    scan: Literal["once", "follow"] = Field(
        "once", description="Look for files once, or again and again (follow) until the node is stopped."
    )
    interval: Annotated[Duration, Field(gt=0)] = Field(
        "30s", validate_default=True, description="Time between two looks when scan is follow."
    )
    max_line_bytes: PositiveSize = Field(
        "64MiB", validate_default=True, description="A longer line is not read but goes to the dead letters."
    )
    split_bytes: PositiveSize = Field(
        "64MiB", validate_default=True, description="One task reads about so much of a large file, and writes it apart."
    )

    @model_validator(mode="after")
    def _schema_needs_jsonl(self) -> ObjectsConfig:
        if self.schema_ is not None and self.codec != "jsonl":
            raise ValueError(f"schema is for the codec jsonl, not for {self.codec}")
        return self
