"""What rewind and backfill have in common when they make a job: the generation, and roots of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from holdfast import assemble
from holdfast.buckets.root import bucket_of
from holdfast.config.digest import digest_of, parsing_of
from holdfast.config.models import Settings
from holdfast.errors import Refused, UsageError
from holdfast.flow.batch import Name
from holdfast.flow.generations import Generation, Generations
from holdfast.flow.names import OURS, folder
from holdfast.leases.store import Store

FILES = "files"


def coming_generation(settings: Settings, store: Store, pipeline: str, created_by: str) -> int:
    """A generation that is not current yet, for files that are written again by this file's parsing.

    It is the file's own where that comes next, so that what is written again and what is written from the roll-out on
    have the same number. The live pipeline goes on with its own.
    """
    chosen = settings.pipelines[pipeline]
    mine = Generation(chosen.generation, digest_of(chosen), parsing_of(chosen), created_by)
    return register_coming(assemble.generations(settings, store, pipeline), mine)


def register_coming(known: Generations, mine: Generation) -> int:
    """Make this parsing known under its own number where that comes next, else under the next one; the number."""
    number = _free_number(known, mine.number, mine.digest)
    known.register(replace(mine, number=number), switch=False)
    return number


def _free_number(known: Generations, own: int, digest: str) -> int:
    made = {one.number: one.digest for one in known.list()}
    current = known.current()[0] if made else 0
    if own > current and made.get(own, digest) == digest:
        return own
    same = [number for number, told in made.items() if number > current and told == digest]
    return same[0] if same else max([own - 1, *made]) + 1


def check_digest(settings: Settings, store: Store, pipeline: str, generation: int) -> None:
    """Raise `Refused` unless this file's parsing is that of the generation."""
    told = assemble.generations(settings, store, pipeline).show(generation).digest
    if told != (mine := digest_of(settings.pipelines[pipeline])):
        raise Refused(
            f"this file's parsing has digest {mine[:12]}, and generation {generation} has {told[:12]}; "
            "use the file and the code with which the run was begun"
        )


def new_roots(settings: Settings, pipeline: str, root: str | None, generation: int) -> dict[str, str]:
    """Roots for files that are written again, by sink: readers choose between these and the old ones."""
    chosen = [named for named in settings.pipelines[pipeline].sinks if named.use.name == FILES]
    if not chosen:
        raise UsageError(f"pipeline {pipeline!r} has no sink `files`; only files can be written again")
    if len(chosen) < len(settings.pipelines[pipeline].sinks):
        raise UsageError(f"pipeline {pipeline!r} has sinks besides `files`, which would get all records twice")
    if root is not None and len(chosen) > 1:
        raise UsageError(f"--root is for one sink of files; {pipeline!r} has {len(chosen)}")
    return {named.name: root or f"{named.use.config.root.rstrip('/')}-g{generation}" for named in chosen}


def check_roots_are_free(settings: Settings, pipeline: str, names: Sequence[Name]) -> None:
    """Raise `UsageError` if a sink's root holds files of one of these partitions already."""
    for named in settings.pipelines[pipeline].sinks:
        config = named.use.config
        bucket = bucket_of(config.root, config.s3)
        for name in names:
            if next(bucket.keys(f"{OURS}/commits/{folder(name)}/"), None) is not None:
                raise UsageError(
                    f"{config.root} has files of {name.stream}|{name.label} already, and they would be there twice; "
                    "choose another place with --root"
                )
