"""Leases in a bucket or a shared folder, without any database. Settings and plugin; `store` has the store itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, model_validator

from holdfast.buckets.root import Root, S3Reach, access_of, check_together
from holdfast.config import Duration, Options
from holdfast.registry import Plugin
from holdfast.s3.access import SCHEME

if TYPE_CHECKING:
    from holdfast.stores.object.objects import TaggedObjects
    from holdfast.stores.object.store import ObjectStore

HIDDEN = "_holdfast/store/"
"""Folder below the root, hidden from readers of a root that also holds files."""


class ObjectConfig(Options):
    """Where the objects are, how to reach them, and how long to wait."""

    root: Root = Field(
        description="Folder that all nodes share, which must exist, or `s3://bucket/prefix`. The leases are below "
        "`_holdfast/store/`, so that it may also be the root of a sink."
    )
    s3: S3Reach | None = Field(None, description="How to reach S3, for a root there.")
    skip_table_creation: bool = Field(
        False, description="Never create a store; refuse to start if there is none at the root."
    )
    request_timeout: Annotated[Duration, Field(gt=0)] = Field(
        "10s", validate_default=True, description="How long to wait for a response, or for a lock in a folder."
    )

    @model_validator(mode="after")
    def _s3_is_for_roots_on_s3(self) -> Self:
        check_together(self.root, self.s3)
        return self


def build(config: ObjectConfig) -> ObjectStore:
    """The store that the settings describe, not yet opened."""
    from holdfast.stores.object.store import ObjectStore

    return ObjectStore(objects_of(config), skip_table_creation=config.skip_table_creation)


def objects_of(config: ObjectConfig) -> TaggedObjects:
    """The storage of the objects. Sends no request."""
    if not config.root.startswith(SCHEME):
        from holdfast.stores.object.folder import FolderObjects

        return FolderObjects(Path(config.root) / HIDDEN, config.request_timeout, config.root)
    from holdfast.stores.object.s3 import S3TaggedObjects

    access, prefix = access_of(config.root, config.s3 or S3Reach(), config.request_timeout)
    return S3TaggedObjects(access, prefix + HIDDEN)


PLUGIN = Plugin(
    name="object",
    config=ObjectConfig,
    build=build,
    summary="Leases in an S3 bucket or a shared folder, without any database.",
)
