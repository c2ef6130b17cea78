"""Settings of the sink `files`."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from holdfast.buckets.root import Root, S3Options, check_together, root_identity
from holdfast.config import ByteSize, Options, PositiveCount
from holdfast.config.units import VALUE_ERROR
from holdfast.formats.choice import FormatUse, TopicFormat
from holdfast.sinks.files.finalize_config import FinalizeConfig
from holdfast.sinks.files.layout import DEFAULT_LAYOUT, Layout, check_layout


def _checked_layout(text: str) -> str:
    try:
        return check_layout(text)
    except (ValueError, IndexError, KeyError) as error:
        raise PydanticCustomError(VALUE_ERROR, str(error)) from None


class FilesConfig(Options):
    """Where files go and how they look."""

    root: Root = Field(
        description="Folder for the files, or `s3://bucket/prefix`. It belongs to this sink of this pipeline alone."
    )
    s3: S3Options | None = Field(None, description="How to reach S3, for a root there.")
    format: FormatUse = Field(
        {"parquet": None},
        validate_default=True,
        description="Format of the files: a format's name, and if wanted below it the format's settings.",
    )
    topics: tuple[TopicFormat, ...] = Field(
        (), description="Topics whose files have another format; the first that matches counts."
    )
    layout: Annotated[str, AfterValidator(_checked_layout)] = Field(
        DEFAULT_LAYOUT,
        description=(
            "How files are called below the root: a template of {topic}, {place}, {generation}, {partition}, {offset} "
            "and {ext}, or `secor` for names without leading zeros."
        ),
    )
    max_files: PositiveCount = Field(
        1000,
        description="Files of one commit, dead letters apart; a batch whose records would become more is cut short "
        "between two records. A batch that cannot be cut, such as one of objects, is bounded by the store's row alone.",
    )
    max_open_files: PositiveCount = Field(
        64, description="Files that one task has open at a time; beyond it the one used longest ago is closed."
    )
    max_file_bytes: Annotated[ByteSize, Field(gt=0)] | None = Field(
        None, description="A file that is larger is closed and another one begun; no limit unless given."
    )
    finalize: FinalizeConfig | None = Field(
        None, description="Declare places final when all partitions have passed them; not done unless given."
    )

    def owned_roots(self) -> dict[tuple[str, ...], str]:
        return {("root",): root_identity(self.root, self.s3)}

    @model_validator(mode="after")
    def _final_places_have_folders(self) -> Self:
        if self.finalize is not None:
            Layout(self.layout).folder("topic", "place")
        return self

    @model_validator(mode="after")
    def _s3_is_for_roots_on_s3(self) -> Self:
        check_together(self.root, self.s3)
        return self
