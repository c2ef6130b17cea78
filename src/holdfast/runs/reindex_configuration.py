"""The configuration of a reindex run: the JSON of OpenMetadata's reindex API, under its names, and more."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from holdfast.config import ByteSize, PositiveCount
from holdfast.errors import UsageError
from holdfast.leases.lease import Json
from holdfast.runs.reindex_state import KIND

ALL = "all"


class ReindexConfiguration(BaseModel):
    """What a run indexes, and how. Limits that are not given are those of the pipeline's sink."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)

    entities: tuple[str, ...] = ()
    """Entities by name; none, or `all`: every entity of the source."""
    recreate_index: bool = True
    """Whether staged indexes replace the former ones; if not, the live indexes are written in place."""
    batch_size: PositiveCount | None = None
    """Most documents of a bulk request. The size of a commit is another matter."""
    consumer_threads: PositiveCount = 4
    """How many batches each node carries at a time."""
    use_distributed_indexing: bool = True
    """Whether all nodes of the pipeline take part; if not, only the one that drives the run."""
    max_concurrent_requests: PositiveCount | None = None
    """Most bulk requests of a node that are in flight; fewer while the cluster is overloaded."""
    pay_load_size: ByteSize | None = None
    """Most bytes of a bulk request."""
    staged_index_prefix: str | None = None
    """Beginning of the names of staged indexes."""
    partition_size: PositiveCount | None = None
    """Rows of a partition."""
    promote_with_errors: bool = False
    """Whether a run with FAILED partitions is promoted."""
    min_ratio: Annotated[float, Field(ge=0.0, le=1.0)] = 0.99
    """Least share of the rows that must be documents of the staged index before it is promoted."""
    changed_since: Any = None
    """A mark: only rows that changed since then are copied, in place."""
    generation: PositiveCount = 1
    """Generation of the pipeline."""
    continues: str | None = None
    """A run that was not promoted: its staged indexes are brought up to date and promoted."""

    def encode(self) -> dict[str, Json]:
        """The configuration as it is stored in the run's row."""
        return {"kind": KIND, **self.model_dump(mode="json", by_alias=True, exclude_none=True)}

    def resolved(self, configured: Iterable[str]) -> ReindexConfiguration:
        """The same configuration with all entities named. Raises `UsageError` for an entity that is not known."""
        names = tuple(configured)
        wanted = names if not self.entities or self.entities == (ALL,) else tuple(dict.fromkeys(self.entities))
        unknown = [name for name in wanted if name not in names]
        if unknown:
            raise UsageError(f"there is no entity {unknown[0]!r}; there are {', '.join(names)}")
        return self.model_copy(update={"entities": wanted})


def parse_configuration(text: str) -> ReindexConfiguration:
    """The configuration in JSON text that a person wrote. Raises `UsageError`."""
    try:
        given = json.loads(text)
    except ValueError as error:
        raise UsageError(f"the configuration is not JSON: {error}") from error
    if not isinstance(given, dict):
        raise UsageError("the configuration is not a JSON object")
    return checked_configuration({name: value for name, value in given.items() if name != "kind"})


def checked_configuration(given: Mapping[str, Any]) -> ReindexConfiguration:
    """The configuration with these members. Raises `UsageError` that names the first wrong one."""
    try:
        return ReindexConfiguration.model_validate(dict(given))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            settings = ", ".join(to_camel(name) for name in ReindexConfiguration.model_fields)
            raise UsageError(f"{where} is not a member of the configuration; there are {settings}") from None
        raise UsageError(f"{where}: {first['msg']}") from None


def decode_configuration(stored: Json) -> ReindexConfiguration:
    """The configuration in a run's row. Members that this version does not know are ignored."""
    settings = {to_camel(name) for name in ReindexConfiguration.model_fields}
    return ReindexConfiguration.model_validate({name: value for name, value in stored.items() if name in settings})
