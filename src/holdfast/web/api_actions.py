"""REST for actions: each has a reason, is audited, and is carried out once for an Idempotency-Key.

All need the role operator. The response is the entry of the audit log. An action that a run carries out returns 202
with the id of the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from holdfast.errors import UsageError
from holdfast.leases.action import Request as Wish
from holdfast.leases.action import Verdict
from holdfast.leases.lease import Status
from holdfast.runs.actions import Actions, PipelineActions
from holdfast.runs.audited import Report
from holdfast.runs.partition_actions import Selection
from holdfast.web.dashboard import Dashboard
from holdfast.web.readings import Readings
from holdfast.web.responses import json_response

IdempotencyKey = Annotated[
    str | None,
    Header(alias="Idempotency-Key", max_length=200, description="Identifies the request, so that it acts only once."),
]
_STATUSES = {Verdict.DONE: 200, Verdict.PARTLY: 200, Verdict.REFUSED: 409, Verdict.UNKNOWN: 503}


class Reason(BaseModel):
    """Why a person does something; kept in the audit log."""

    model_config = ConfigDict(extra="forbid")

    reason: str = Field(min_length=1, max_length=1000)


class Filter(BaseModel):
    """Selects the partitions that meet all of its conditions."""

    model_config = ConfigDict(extra="forbid")

    status: Status | None = None
    owner: str | None = None
    group: str | None = None
    prefix: str = ""


class ChosenPartitions(Reason):
    """Partitions by their keys or by a filter; `expect` is how many the person has seen.

    `token` is that of a single key, as the person has seen it: a partition that was taken since then is left alone.
    """

    keys: list[str] = Field(default_factory=list, max_length=10_000)
    filter: Filter | None = None
    run: str = ""
    expect: int | None = None
    token: int | None = None

    def selection(self) -> Selection:
        """Return what is chosen. A filter without a number is refused."""
        if self.filter is not None and self.expect is None:
            raise UsageError("a filter needs `expect`, the number of partitions that you have seen")
        wanted = self.filter or Filter()
        statuses = () if wanted.status is None else (wanted.status,)
        chosen = (wanted.owner, wanted.group, wanted.prefix, self.run, self.expect, self.token)
        return Selection(tuple(self.keys), statuses, *chosen)


class ChosenGeneration(Reason):
    """The number of a generation."""

    number: int = Field(ge=1)


Act = Callable[[Actions], Report[Any]]


class ActionRoutes:
    """The routes that change something."""

    def __init__(self, dashboard: Dashboard, readings: Readings) -> None:
        self._dashboard = dashboard
        self._readings = readings

    def router(self, prefix: str) -> APIRouter:
        """Return the routes below a prefix."""
        router = APIRouter(prefix=prefix, default_response_class=Response)
        of_pipeline = "/pipelines/{pipeline}"
        for path, route in (
            (f"{of_pipeline}/partitions:release", self.release),
            (f"{of_pipeline}/partitions:reopen", self.reopen),
            (f"{of_pipeline}/partitions:fail", self.fail),
            (f"{of_pipeline}/generations:switch", self.switch),
            (f"{of_pipeline}/generations:back", self.back),
            (f"{of_pipeline}/runs/{{run}}:stop", self.stop),
            (f"{of_pipeline}/runs/{{run}}:resume", self.resume_run),
            (f"{of_pipeline}:pause", self.pause),
            (f"{of_pipeline}:resume", self.resume),
            ("/nodes/{node:path}:drain", self.drain),
            ("/nodes/{node:path}:undrain", self.undrain),
        ):
            router.add_api_route(path, route, methods=["POST"], response_model=None, name=route.__name__)
        return router

    async def release(
        self, request: Request, pipeline: str, chosen: ChosenPartitions, key: IdempotencyKey = None
    ) -> Response:
        """Take partitions away from their owners. Late writes of the owners are refused."""
        act = self._of(pipeline, lambda actions: actions.partitions().release(chosen.selection()))
        return await self._act(request, chosen, key, act)

    async def reopen(
        self, request: Request, pipeline: str, chosen: ChosenPartitions, key: IdempotencyKey = None
    ) -> Response:
        """Let FAILED, CLOSED or COMPLETED partitions be claimed again, each from its position."""
        act = self._of(pipeline, lambda actions: actions.partitions().reopen(chosen.selection()))
        return await self._act(request, chosen, key, act)

    async def fail(
        self, request: Request, pipeline: str, chosen: ChosenPartitions, key: IdempotencyKey = None
    ) -> Response:
        """Stop work on partitions until they are reopened. The reason is stored in their rows."""
        act = self._of(pipeline, lambda actions: actions.partitions().fail(chosen.selection(), chosen.reason))
        return await self._act(request, chosen, key, act)

    async def switch(
        self, request: Request, pipeline: str, chosen: ChosenGeneration, key: IdempotencyKey = None
    ) -> Response:
        """Make a later generation the current one."""
        act = self._of(pipeline, lambda actions: actions.switch_generation(chosen.number))
        return await self._act(request, chosen, key, act)

    async def back(self, request: Request, pipeline: str, why: Reason, key: IdempotencyKey = None) -> Response:
        """Return to the parsing before the current one, under the next number."""
        return await self._act(request, why, key, self._of(pipeline, PipelineActions.previous_generation))

    async def stop(
        self, request: Request, pipeline: str, run: str, why: Reason, key: IdempotencyKey = None
    ) -> Response:
        """Stop a run: nodes give up its partitions within a heartbeat."""
        return await self._act(request, why, key, self._of(pipeline, lambda actions: actions.stop_run(run)))

    async def resume_run(
        self, request: Request, pipeline: str, run: str, why: Reason, key: IdempotencyKey = None
    ) -> Response:
        """Let a stopped run continue where it was."""
        return await self._act(request, why, key, self._of(pipeline, lambda actions: actions.resume_run(run)))

    async def pause(self, request: Request, pipeline: str, why: Reason, key: IdempotencyKey = None) -> Response:
        """Let no node work on a pipeline and its runs."""
        self._dashboard.identifier(pipeline)
        return await self._act(request, why, key, lambda actions: actions.pause(pipeline))

    async def resume(self, request: Request, pipeline: str, why: Reason, key: IdempotencyKey = None) -> Response:
        """Let nodes work on a pipeline again."""
        self._dashboard.identifier(pipeline)
        return await self._act(request, why, key, lambda actions: actions.resume(pipeline))

    async def drain(self, request: Request, node: str, why: Reason, key: IdempotencyKey = None) -> Response:
        """Let a node work on nothing, now and after a restart."""
        return await self._act(request, why, key, lambda actions: actions.drain(node))

    async def undrain(self, request: Request, node: str, why: Reason, key: IdempotencyKey = None) -> Response:
        """Let a drained node work again."""
        return await self._act(request, why, key, lambda actions: actions.undrain(node))

    def _of(self, pipeline: str, act: Callable[[PipelineActions], Report[Any]]) -> Act:
        self._dashboard.identifier(pipeline)
        return lambda actions: act(actions.pipeline(pipeline))

    async def _act(self, request: Request, why: Reason, key: str | None, act: Act) -> Response:
        actions = actions_for(self._dashboard, request, why, key)
        return await acted(lambda: act(actions), self._readings)


async def acted(act: Callable[[], Report[Any]], readings: Readings) -> Response:
    """Perform the action in a thread, and return its outcome. Viewers get fresh data after that."""
    try:
        report = await asyncio.to_thread(act)
    finally:
        readings.forget()
    return report_response(report)


def actions_for(dashboard: Dashboard, request: Request, why: Reason, key: str | None) -> Actions:
    """Return what the viewer of a request may do, for that reason."""
    viewer = request.state.viewer
    wish = Wish(viewer.name, "web" if viewer.csrf else "api", request.state.client, why.reason, key)
    return Actions(dashboard.settings, dashboard.store, wish)


def report_response(report: Report[Any]) -> Response:
    """Return the outcome of an action as a response."""
    outcome = report.outcome
    status = 202 if outcome.run is not None and outcome.verdict is Verdict.DONE else _STATUSES[outcome.verdict]
    row = report.entry.row()
    return json_response(row if status < 400 else {**row, "error": _problem(row)}, status)


def _problem(row: dict[str, Any]) -> str:
    return "; ".join([row["message"], *row["problems"]])
