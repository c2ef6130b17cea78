"""REST for runs that nodes carry out: redrive, rewind and backfill. GET returns what each would do, POST starts it.

GET changes nothing and needs no reason. POST is audited like every action, and returns 202 with the id of the run; this
process starts no Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response

from holdfast.assemble import StoredPipeline
from holdfast.errors import UsageError
from holdfast.runs import backfill, redrive, rewind
from holdfast.runs.actions import PipelineActions
from holdfast.runs.audited import Report
from holdfast.runs.backfill import Backfill
from holdfast.runs.letter_selection import Choice
from holdfast.runs.rewind import Rewind
from holdfast.web.api_actions import IdempotencyKey, Reason, acted, actions_for
from holdfast.web.dashboard import Dashboard
from holdfast.web.readings import Readings
from holdfast.web.responses import age_headers, json_response

Containing = Annotated[str | None, Query(description="Only letters whose reason contains this text.")]
Topics = Annotated[list[str] | None, Query(description="Only these topics.")]


class ChosenLetters(Reason):
    """Dead letters of a sink, of a partition and with a text in their reason; `expect` is how many were seen."""

    sink: str
    key: str | None = None
    containing: str | None = None
    expect: int | None = None

    def number(self) -> int:
        """Return how many letters the person has seen. Raises `UsageError` if that was not given."""
        if self.expect is None:
            raise UsageError("a redrive needs `expect`, the number of letters that you have seen; GET returns it")
        return self.expect


class ChosenRewind(Reason):
    """A partition of Kafka, and the offset or the time from which it is read again."""

    key: str
    to: str


class ChosenBackfill(Reason):
    """Records of a backup pipeline."""

    backup: str
    between: str = ".."
    topics: list[str] = Field(default_factory=list, max_length=1000)
    names: str | None = None


@dataclass(frozen=True)
class RunRoutes:
    """The routes of runs that are started."""

    dashboard: Dashboard
    readings: Readings

    def router(self, prefix: str) -> APIRouter:
        """Return the routes below a prefix."""
        router = APIRouter(prefix=prefix, default_response_class=Response)
        of_pipeline = "/pipelines/{pipeline}"
        for path, preview, start in (
            (f"{of_pipeline}/letters:redrive", self.preview_redrive, self.redrive),
            (f"{of_pipeline}:rewind", self.preview_rewind, self.rewind),
            (f"{of_pipeline}:backfill", self.preview_backfill, self.backfill),
        ):
            router.add_api_route(path, preview, methods=["GET"], response_model=None, name=preview.__name__)
            router.add_api_route(path, start, methods=["POST"], response_model=None, name=start.__name__)
        return router

    async def preview_redrive(
        self, pipeline: str, sink: str, key: str | None = None, containing: Containing = None
    ) -> Response:
        """How many dead letters a redrive would send now, of which partitions, and what it would refuse."""
        choice = Choice(sink, key, containing)
        return await self._looked(pipeline, choice, lambda of: redrive.look(of, choice, detached=True).row())

    async def redrive(
        self, request: Request, pipeline: str, chosen: ChosenLetters, key: IdempotencyKey = None
    ) -> Response:
        """Send the records of dead letters through the pipeline again.

        Refused (409) if the number of waiting letters is not `expect`.
        """
        choice, expect = Choice(chosen.sink, chosen.key, chosen.containing), chosen.number()
        return await self._start(request, pipeline, chosen, key, lambda of: of.redrive(choice, expect=expect))

    async def preview_rewind(self, pipeline: str, key: str, to: str) -> Response:
        """Which offsets a rewind would read again, and where it would write them."""
        wanted = Rewind.of_key(key, to)
        return await self._looked(pipeline, wanted, lambda of: rewind.look(of, wanted).row())

    async def rewind(
        self, request: Request, pipeline: str, chosen: ChosenRewind, key: IdempotencyKey = None
    ) -> Response:
        """Read part of a Kafka partition again as the next generation, into a separate root."""
        wanted = Rewind.of_key(chosen.key, chosen.to)
        return await self._start(request, pipeline, chosen, key, lambda of: of.rewind(wanted))

    async def preview_backfill(
        self, pipeline: str, backup: str, between: str = "..", topics: Topics = None, names: str | None = None
    ) -> Response:
        """Which records a backfill would write again, and where."""
        wanted = Backfill(backup, between, tuple(topics or ()), names)
        return await self._looked(pipeline, wanted, lambda of: backfill.look(of, wanted).row())

    async def backfill(
        self, request: Request, pipeline: str, chosen: ChosenBackfill, key: IdempotencyKey = None
    ) -> Response:
        """Put records from a backup's files through the processors again, as the next generation."""
        wanted = Backfill(chosen.backup, chosen.between, tuple(chosen.topics), chosen.names)
        return await self._start(request, pipeline, chosen, key, lambda of: of.backfill(wanted))

    async def _looked(self, pipeline: str, wanted: Any, look: Callable[[StoredPipeline], Any]) -> Response:
        self.dashboard.identifier(pipeline)
        stored = StoredPipeline(self.dashboard.settings, self.dashboard.store, pipeline)
        reading = await self.readings.get(("look", pipeline, wanted), partial(look, stored))
        return json_response(reading.value, headers=age_headers(reading))

    async def _start(
        self,
        request: Request,
        pipeline: str,
        why: Reason,
        key: str | None,
        start: Callable[[PipelineActions], Report[Any]],
    ) -> Response:
        self.dashboard.identifier(pipeline)
        actions = actions_for(self.dashboard, request, why, key)
        return await acted(lambda: start(actions.pipeline(pipeline)), self.readings)
