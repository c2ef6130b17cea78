"""`holdfast lag`: how far the pipelines of a file are behind their sources."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import output
from holdfast.cli.options import AsJson, File, PipelineName, chosen_pipeline, opened_store
from holdfast.errors import SourceUnavailable

if TYPE_CHECKING:
    from holdfast.assemble import StoredPipeline
    from holdfast.flow.shards import Lag
    from holdfast.leases.lease import Lease

ByPartition = Annotated[bool, typer.Option("--by-partition", metavar="", help="Show each partition apart.")]
COLUMNS = ("PIPELINE", "GROUP", "PARTITION", "UNFINISHED", "LAG")


def lag(file: File, pipeline: PipelineName = None, by_partition: ByPartition = False, json: AsJson = False) -> None:
    """Show how far pipelines are behind: records that the source has and that are not committed, by topic or stream.

    The ends are looked up in the source, so that this also works while no node runs. Of sources that have no ends, such
    as objects and tables, the unfinished partitions are counted. Exits with 0 whatever the lag is.
    """
    from holdfast.assemble import StoredPipeline, load_settings

    settings = load_settings(file)
    names = [chosen_pipeline(settings, pipeline)] if pipeline else list(settings.pipelines)
    with opened_store(settings) as store:
        found = [
            row for name in names for row in _rows(StoredPipeline(settings, store, name), by_partition=by_partition)
        ]
    if json:
        output.say_json(found)
    else:
        shown = [name for name in COLUMNS if by_partition or name != "PARTITION"]
        output.say_table(shown, [_cells(row, by_partition=by_partition) for row in found])


def _rows(opened: StoredPipeline, *, by_partition: bool) -> Iterator[dict[str, Any]]:
    from holdfast.leases.lease import FINISHED

    unfinished = [row for row in opened.operator().rows() if row.status not in FINISHED]
    lags = _lags(opened, unfinished)
    groups: dict[tuple[str, str | None], list[tuple[Lease, Lag | None]]] = defaultdict(list)
    for row, behind in zip(unfinished, lags, strict=True):
        groups[row.group, row.key if by_partition else None].append((row, behind))
    for (group, key), members in sorted(groups.items(), key=lambda item: (item[0][0], item[0][1] or "")):
        yield _row(opened.name, group, key, [behind for _, behind in members])
    if not groups:
        yield _row(opened.name, "", None, [])


def _row(pipeline: str, group: str, key: str | None, lags: Sequence[Lag | None]) -> dict[str, Any]:
    found = [behind for behind in lags if behind is not None]
    records = [behind.records for behind in found if behind.records is not None]
    milliseconds = [behind.milliseconds for behind in found if behind.milliseconds is not None]
    return {
        "pipeline": pipeline,
        "group": group,
        "key": key,
        "unfinished": len(lags),
        "lag_records": sum(records) if records else None,
        "lag_seconds": max(milliseconds) / 1000 if milliseconds else None,
    }


def _lags(opened: StoredPipeline, rows: Sequence[Lease]) -> Sequence[Lag | None]:
    """For each row, how far it is behind; None if the source has no ends or does not respond."""
    from holdfast.flow.shards import ReportsLags

    source = opened.build().source
    try:
        if isinstance(source, ReportsLags) and rows:
            return list(source.lags(rows))
    except SourceUnavailable as error:
        output.tell(f"warning: the lag of {opened.name} is not known: {error}")
    finally:
        source.close()
    return [None] * len(rows)


def _cells(row: dict[str, Any], *, by_partition: bool) -> tuple[Any, ...]:
    from holdfast.cli.status import lag_text

    return (row["pipeline"], row["group"], *([row["key"]] if by_partition else []), row["unfinished"], lag_text(row))
