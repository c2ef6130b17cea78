"""Settings of the sink `function`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from holdfast.config import Duration
from holdfast.config.plugins import PLAIN_ERROR
from holdfast.functions.channel import Tls
from holdfast.functions.settings import FunctionConfig


class FunctionSinkConfig(FunctionConfig):
    """A handler that is called for each record of a stream, in order per shard, by workers that live."""

    dead_letter_folder: str | None = Field(
        None,
        description="Folder for records that failed for the last time, as files of JSON lines; every worker must reach "
        "it. Needed unless on_error.after_retries is stop.",
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

    @model_validator(mode="after")
    def _complete(self) -> FunctionSinkConfig:
        if self.on_error.after_retries == "dead_letter" and self.dead_letter_folder is None:
            raise PydanticCustomError(
                PLAIN_ERROR,
                "records that fail need a place: give dead_letter_folder, or on_error: {after_retries: stop}",
            )
        if (self.certificate is None) != (self.certificate_key is None):
            raise PydanticCustomError(PLAIN_ERROR, "certificate and certificate_key belong together; give both or none")
        return self

    def tls(self) -> Tls | None:
        """The certificate of this node; None if none is given."""
        if self.certificate is None or self.certificate_key is None:
            return None
        return Tls(Path(self.certificate), Path(self.certificate_key))
