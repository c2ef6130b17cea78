"""REST for reading: the same JSON as commands print with `--json`. The header `Age` says how old the data are."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from holdfast.assemble import StoredPipeline, audit_log_of
from holdfast.leases.lease import Status
from holdfast.leases.query import Query as RowQuery
from holdfast.observe import insights, listings
from holdfast.runs.letter_counts import letter_rows
from holdfast.web.dashboard import Dashboard
from holdfast.web.maps import Maps
from holdfast.web.page import Templates
from holdfast.web.pages_functions import all_functions
from holdfast.web.pages_health import open_alerts
from holdfast.web.readings import Readings
from holdfast.web.responses import age_headers, json_response

MOST_ROWS = 1000

PipelineName = Annotated[str, Path(description="Name of the pipeline in the file.")]
OfRun = Annotated[str, Query(description="Partitions of this run, instead of those of the live pipeline.")]


class Api:
    """The routes that read."""

    def __init__(self, dashboard: Dashboard, readings: Readings, maps: Maps, templates: Templates) -> None:
        self._dashboard = dashboard
        self._readings = readings
        self._maps = maps
        self._link = templates.link

    def router(self, prefix: str) -> APIRouter:
        """Return the routes below a prefix."""
        router = APIRouter(prefix=prefix, default_response_class=Response)
        of_pipeline = "/pipelines/{pipeline}"
        for path, route in (
            ("/overview", self.overview),
            ("/nodes", self.nodes),
            ("/pipelines", self.pipelines),
            ("/audit", self.audit),
            ("/alerts", self.alerts),
            ("/functions", self.functions),
            (f"{of_pipeline}/partitions", self.partitions),
            (f"{of_pipeline}/partition", self.partition),
            (f"{of_pipeline}/map", self.map),
            (f"{of_pipeline}/runs", self.runs),
            (f"{of_pipeline}/run", self.run),
            (f"{of_pipeline}/generations", self.generations),
            (f"{of_pipeline}/letters", self.letters),
        ):
            router.add_api_route(path, route, methods=["GET"], response_model=None, name=route.__name__)
        return router

    async def overview(self) -> Response:
        """Pipelines, nodes, runs and failures, as `holdfast status --json`."""
        return await self._found("overview", self._dashboard.overview)

    async def nodes(self, ended: Annotated[bool, Query(alias="all")] = False) -> Response:
        """Nodes, as `holdfast nodes --json`; with `all`, also sessions that have ended."""
        board = self._dashboard
        return await self._found(
            ("nodes", ended),
            lambda: listings.rows_of_nodes(board.store, board.fleet, board.nodes(board.pipelines), ended=ended),
        )

    async def pipelines(self) -> Response:
        """Pipelines and whether they are paused, as `holdfast pipelines list --json`."""
        board = self._dashboard
        return await self._found(
            "pipelines", lambda: listings.pipeline_states(board.store, board.fleet, board.pipelines)
        )

    async def audit(
        self,
        before: Annotated[str | None, Query(description="Only actions before the one with this id.")] = None,
        limit: Annotated[int, Query(ge=1, le=MOST_ROWS)] = 50,
    ) -> Response:
        """What people have done, the latest first, as `holdfast audit-log --json`."""
        log = audit_log_of(self._dashboard.settings, self._dashboard.store)
        return await self._found(("audit", before, limit), lambda: [entry.row() for entry in log.list(before, limit)])

    async def alerts(self) -> Response:
        """Alerts that are open, with the address of their runbooks, as the page of alerts shows them."""
        return await self._found("alerts", lambda: open_alerts(self._dashboard))

    async def functions(self) -> Response:
        """Functions with their triggers, shards and nodes, as the page of functions shows them."""
        return await self._found("functions", lambda: all_functions(self._dashboard))

    async def partitions(
        self,
        pipeline: PipelineName,
        status: Annotated[list[Status] | None, Query(description="May be given several times.")] = None,
        run: OfRun = "",
        after: Annotated[str | None, Query(description="Only keys after this one.")] = None,
        limit: Annotated[int, Query(ge=1, le=MOST_ROWS)] = 200,
    ) -> Response:
        """Partitions in the order of their keys, as `holdfast partitions list --json`; `Link` names the next page."""
        query = RowQuery(self._dashboard.identifier(pipeline), run, tuple(status or ()), after_key=after, limit=limit)
        store = self._dashboard.store
        reading = await self._readings.get(query, lambda: [insights.partition(row) for row in store.find(query)])
        headers = age_headers(reading)
        if len(reading.value) == limit:
            last = reading.value[-1]["sourcePartitionKey"]
            given = [("status", each.value) for each in status or ()] + [("run", run)] * bool(run)
            words = urlencode([*given, ("after", last), ("limit", limit)])
            path = self._link(f"/api/v1/pipelines/{urlencode({'': pipeline})[1:]}/partitions")
            headers["Link"] = f'<{path}?{words}>; rel="next"'
        return json_response(reading.value, headers=headers)

    async def partition(self, pipeline: PipelineName, key: str, run: OfRun = "") -> Response:
        """Everything that is stored about one partition, as `holdfast partitions show --json`."""
        stored = self._stored(pipeline)
        return await self._found(
            ("partition", pipeline, run, key), lambda: insights.partition(stored.operator(run).show(key))
        )

    async def map(self, pipeline: PipelineName, run: OfRun = "") -> Response:
        """The state of every partition in the order of their keys, one byte each.

        0 UNASSIGNED, 1 ASSIGNED, 2 CLOSED, 3 COMPLETED, 4 FAILED, 5 assigned to a node that is silent. The header
        `X-Holdfast-Snapshot` has the number that messages of the live channel continue.
        """
        self._dashboard.identifier(pipeline)
        found, reading = await self._maps.get(pipeline, run)
        headers = {**age_headers(reading), "X-Holdfast-Snapshot": str(found.number)}
        return Response(found.cells, 200, headers, media_type="application/octet-stream")

    async def runs(self, pipeline: PipelineName) -> Response:
        """Runs, as `holdfast runs list --json`."""
        stored = self._stored(pipeline)
        return await self._found(("runs", pipeline), lambda: listings.run_rows(stored.runs().list()))

    async def run(self, pipeline: PipelineName, run: Annotated[str, Query(description="The id.")]) -> Response:
        """Everything that is stored about a run, as `holdfast runs show --json`."""
        stored = self._stored(pipeline)
        return await self._found(("run", pipeline, run), lambda: listings.run_row(stored.runs().show(run)))

    async def generations(self, pipeline: PipelineName) -> Response:
        """Generations, as `holdfast generation list --json`."""
        stored = self._stored(pipeline)
        return await self._found(("generations", pipeline), lambda: listings.generation_rows(stored.generations()))

    async def letters(self, pipeline: PipelineName, sink: str | None = None, by_partition: bool = False) -> Response:
        """Numbers of dead letters by sink and reason, as `holdfast deadletters list --json`. Reads all of them."""
        settings = self._stored(pipeline).settings
        return await self._found(
            ("letters", pipeline, sink, by_partition),
            lambda: letter_rows(settings, pipeline, sink, by_partition=by_partition),
        )

    def _stored(self, pipeline: str) -> StoredPipeline:
        self._dashboard.identifier(pipeline)
        return StoredPipeline(self._dashboard.settings, self._dashboard.store, pipeline)

    async def _found(self, key: Hashable, read: Callable[[], Any]) -> Response:
        reading = await self._readings.get(("api", key), read)
        return json_response(reading.value, headers=age_headers(reading))
