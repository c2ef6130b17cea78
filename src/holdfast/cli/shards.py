"""`holdfast shards`: the members of a pipeline that reads a stream, as a consumer group shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.cli import output
from holdfast.cli.options import AsJson, File, PipelineName, opened_pipeline
from holdfast.errors import SourceUnavailable, UsageError

if TYPE_CHECKING:
    from holdfast.assemble import StoredPipeline
    from holdfast.flow.shards import Lag
    from holdfast.leases.lease import Lease

COLUMNS = ("MEMBER", "SHARDS", "LAG", "LAST HEARTBEAT")


def list_shards(file: File, pipeline: PipelineName = None, json: AsJson = False) -> None:
    """List the nodes that share a stream, the shards that each holds, and how far they are behind its end.

    Shards that no node holds are shown without a member. The lag is looked up in the stream: the records after the
    positions, or if the stream does not count them, the milliseconds of the shard that is furthest behind.
    """
    with opened_pipeline(file, pipeline) as opened:
        members = _members(opened)
    if json:
        output.say_json(members)
    else:
        output.say_table(COLUMNS, [_cells(member) for member in members])


def _members(opened: StoredPipeline) -> list[dict[str, Any]]:
    from holdfast.assemble import fleet
    from holdfast.leases.lease import Status
    from holdfast.observe import insights

    rows = [row for row in opened.operator().rows() if row.status is not Status.COMPLETED]
    lags = _lags(opened, rows)
    nodes = insights.nodes(opened.store, fleet(opened.settings), [opened.identifier])
    taking_part = [node for node in nodes if not node.ended and opened.identifier in node.pipelines]
    owners = {node.session for node in taking_part}
    free = [row for row in rows if row.owner not in owners]
    return [
        _member(node.name, [row for row in rows if row.owner == node.session], lags, node.last_heartbeat)
        for node in taking_part
    ] + ([_member(None, free, lags, None)] if free else [])


def _member(
    name: str | None, rows: Sequence[Lease], lags: Mapping[str, Lag], last_heartbeat: str | None
) -> dict[str, Any]:
    from holdfast.observe import insights

    found = [lags[row.key] for row in rows if row.key in lags]
    records = [lag.records for lag in found if lag.records is not None]
    behind = [lag.milliseconds for lag in found if lag.milliseconds is not None]
    return {
        "member_id": name,
        "shards": insights.shards(rows),
        "last_heartbeat": last_heartbeat,
        "lag_records": sum(records) if records else None,
        "lag_milliseconds": max(behind, default=None),
    }


def _lags(opened: StoredPipeline, rows: Sequence[Lease]) -> dict[str, Lag]:
    """By key, how far the shards are behind; empty if the stream does not respond."""
    from holdfast.flow.shards import ReportsLags

    source = opened.build().source
    if not isinstance(source, ReportsLags):
        raise UsageError(f"the source of pipeline {opened.name!r} has no shards; see `holdfast nodes`")
    try:
        return dict(zip((row.key for row in rows), source.lags(rows), strict=True))
    except SourceUnavailable as error:
        output.tell(f"warning: the lag is not known: {error}")
        return {}
    finally:
        source.close()


def _cells(member: Mapping[str, Any]) -> tuple[object, ...]:
    records, milliseconds = member["lag_records"], member["lag_milliseconds"]
    lag = records if records is not None else None if milliseconds is None else f"{milliseconds} ms"
    return (member["member_id"], member["shards"], lag, member["last_heartbeat"])
