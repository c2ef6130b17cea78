"""The next generation of a pipeline, for files that a run writes again: its number, and the roots for its files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from holdfast.assemble import StoredPipeline
from holdfast.buckets.root import bucket_of
from holdfast.config.digest import digest_of, parsing_of
from holdfast.errors import Refused, UsageError
from holdfast.flow.batch import Name
from holdfast.flow.generations import Generation, Generations
from holdfast.flow.names import OURS, folder

FILES = "files"
ChooseRoots: TypeAlias = Callable[[StoredPipeline, str | None, Sequence[Name]], tuple[int, dict[str, str]]]
"""Returns a generation, and free roots by sink: `expected_roots`, or `registered_roots`."""


def next_generation(pipeline: StoredPipeline, created_by: str) -> int:
    """Return a generation that is not current yet, for files that are written again with this file's parsing.

    It is the file's own generation if that comes next, so that files of the run and files written after the roll-out
    have the same number. The live pipeline keeps its generation.
    """
    return register_next(pipeline.generations(), parsing_as(pipeline, pipeline.configured.generation, created_by))


def expected_generation(pipeline: StoredPipeline) -> int:
    """Return the number that `next_generation` would return now. Changes nothing."""
    chosen = pipeline.configured
    return _free_number(pipeline.generations(), chosen.generation, digest_of(chosen))


def register_next(generations: Generations, mine: Generation) -> int:
    """Register this parsing under its own number if that comes next, else under the next one. Returns the number."""
    number = _free_number(generations, mine.number, mine.digest)
    chosen = replace(mine, number=number)
    generations.register(chosen, switch=False)
    seal(generations, chosen)
    return number


def seal(generations: Generations, mine: Generation) -> None:
    """Fix the parsing of a generation for a run. Raises `Refused` if a node has given it another one meanwhile."""
    if not generations.seal(mine):
        raise Refused(
            f"generation {mine.number} has the parsing of another file, which a node has just registered; start the "
            "nodes and the run with the same file"
        )


def parsing_as(pipeline: StoredPipeline, number: int, created_by: str) -> Generation:
    """Return this file's parsing under that number."""
    chosen = pipeline.configured
    return Generation(number, digest_of(chosen), parsing_of(chosen), created_by)


def _free_number(generations: Generations, wanted: int, digest: str) -> int:
    digests = {generation.number: generation.digest for generation in generations.list()}
    current = generations.current()[0] if digests else 0
    if wanted > current and (digests.get(wanted, digest) == digest or generations.is_free(wanted)):
        return wanted
    same = [number for number, other in digests.items() if number > current and other == digest]
    return same[0] if same else max([wanted - 1, *digests]) + 1


def check_digest(pipeline: StoredPipeline, generation: int) -> None:
    """Raise `Refused` unless this file's parsing is that of the generation."""
    digest = pipeline.generations().show(generation).digest
    if digest != (mine := digest_of(pipeline.configured)):
        raise Refused(
            f"this file's parsing has digest {mine[:12]}, and generation {generation} has {digest[:12]}; "
            "use the file and the code with which the run was started"
        )


def expected_roots(pipeline: StoredPipeline, root: str | None, names: Sequence[Name]) -> tuple[int, dict[str, str]]:
    """Return the number that `next_generation` would return now, and roots for its files. Changes nothing.

    Raises `UsageError` if the roots are not free.
    """
    number = expected_generation(pipeline)
    return number, _free_roots(pipeline, root, number, names)


def registered_roots(
    pipeline: StoredPipeline, root: str | None, names: Sequence[Name], *, by: str
) -> tuple[int, dict[str, str]]:
    """Return what `next_generation` returns, and roots for its files.

    Raises `UsageError` if the roots are not free; nothing is registered then.
    """
    expected, roots = expected_roots(pipeline, root, names)
    number = next_generation(pipeline, by)
    # A node may have registered another parsing under the expected number meanwhile.
    return number, roots if number == expected else _free_roots(pipeline, root, number, names)


def _free_roots(pipeline: StoredPipeline, root: str | None, number: int, names: Sequence[Name]) -> dict[str, str]:
    roots = new_roots(pipeline, root, number)
    check_roots_are_free(pipeline.with_roots(roots), names)
    return roots


def new_roots(pipeline: StoredPipeline, root: str | None, generation: int) -> dict[str, str]:
    """Return roots for files that are written again, by sink: readers choose between these and the old ones."""
    sinks = pipeline.configured.sinks
    chosen = [named for named in sinks if named.use.name == FILES]
    if not chosen:
        raise UsageError(f"pipeline {pipeline.name!r} has no sink `files`; only files can be written again")
    if len(chosen) < len(sinks):
        raise UsageError(f"pipeline {pipeline.name!r} has sinks besides `files`, which would get all records twice")
    if root is not None and len(chosen) > 1:
        raise UsageError(f"--root needs a pipeline with one `files` sink; {pipeline.name!r} has {len(chosen)}")
    return {named.name: root or f"{named.use.config.root.rstrip('/')}-g{generation}" for named in chosen}


def check_roots_are_free(pipeline: StoredPipeline, names: Sequence[Name]) -> None:
    """Raise `UsageError` if a sink's root already holds files of one of these partitions."""
    for named in pipeline.configured.sinks:
        config = named.use.config
        bucket = bucket_of(config.root, config.s3)
        for name in names:
            if next(bucket.keys(f"{OURS}/commits/{folder(name)}/"), None) is not None:
                raise UsageError(
                    f"{config.root} already has files of {name.stream}|{name.label}, and their records "
                    "would be there twice; choose another root with --root"
                )
