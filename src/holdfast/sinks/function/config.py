"""Settings of the sink `function`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from holdfast.buckets.root import Root, S3Options, check_together, root_identity
from holdfast.config import ByteSize, Duration, Options
from holdfast.config.kafka_client import LetterTopicOptions
from holdfast.config.plugins import PLAIN_ERROR
from holdfast.functions.channel import Tls
from holdfast.functions.output import ColumnType
from holdfast.functions.settings import FunctionConfig


class FunctionLetterOptions(Options):
    """Where records that failed for the last time are kept."""

    file: Root = Field(
        description="Folder for files of dead letters, or `s3://bucket/prefix`. It belongs to this sink of this "
        "pipeline alone, and every worker must reach it."
    )
    s3: S3Options | None = Field(None, description="How to reach S3, for a folder there.")
    kafka: LetterTopicOptions | None = Field(None, description="A Kafka topic that gets a copy of each dead letter.")

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        check_together(self.file, self.s3)
        return self


class FunctionSinkConfig(FunctionConfig):
    """A handler that is called for each record of a stream, in order per shard, by long-lived workers."""

    code_by_generation: ClassVar[bool] = True
    """Only another generation keeps nodes with other code from the work, see `holdfast.config.digest`."""
    reads_shards: ClassVar[bool] = True
    dead_letters: FunctionLetterOptions | None = Field(
        None,
        description="Where records that failed for the last time are kept. Needed unless `on_error.after_retries` is "
        "`stop`.",
    )
    max_memory: Annotated[ByteSize, Field(gt=0)] | None = Field(
        None,
        description="Memory at which a worker is replaced: its shards are drained, and another worker continues.",
    )
    output_columns: dict[str, ColumnType] = Field(
        {"value": "string"},
        min_length=1,
        description="Columns of the records that the handler returns for the other sinks of the pipeline, with the "
        "type of each.",
    )
    drain_timeout: Annotated[Duration, Field(gt=0)] = Field(
        "5s",
        validate_default=True,
        description="How long a shard that is handed over waits for its handler and for acks that are out.",
    )
    certificate: str | None = Field(
        None, description="On a cluster: file with this node's certificate (PEM), for connections of its workers."
    )
    certificate_key: str | None = Field(None, description="On a cluster: file with the certificate's key (PEM).")
    plain_text: bool = Field(
        False,
        description="On a cluster: let workers connect without TLS. They still prove that they belong to the node.",
    )

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, given: Any) -> Any:
        if isinstance(given, dict) and "dead_letter_folder" in given:
            raise PydanticCustomError(
                PLAIN_ERROR,
                "dead_letter_folder is now `dead_letters: {file: …}`, whose letters `holdfast deadletters` shows",
            )
        return given

    @model_validator(mode="after")
    def _complete(self) -> FunctionSinkConfig:
        if self.on_error.after_retries == "dead_letter" and self.dead_letters is None:
            raise PydanticCustomError(
                PLAIN_ERROR,
                "records that fail must be kept: give `dead_letters: {file: …}`, or on_error: {after_retries: stop}",
            )
        if (self.certificate is None) != (self.certificate_key is None):
            raise PydanticCustomError(PLAIN_ERROR, "certificate and certificate_key belong together; give both or none")
        return self

    def owned_roots(self) -> dict[tuple[str, ...], str]:
        letters = self.dead_letters
        return {} if letters is None else {("dead_letters", "file"): root_identity(letters.file, letters.s3)}

    def tls(self) -> Tls | None:
        """The certificate of this node; None if none is given."""
        if self.certificate is None or self.certificate_key is None:
            return None
        return Tls(Path(self.certificate), Path(self.certificate_key))
