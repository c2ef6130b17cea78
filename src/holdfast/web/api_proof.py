"""REST for verifications: each runs in a thread of this process, is audited, and keeps its result in the store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from holdfast.errors import Refused
from holdfast.runs.actions import Actions
from holdfast.runs.audited import Report
from holdfast.web.api_actions import IdempotencyKey, Reason, actions_for, report_response
from holdfast.web.dashboard import Dashboard
from holdfast.web.readings import Readings
from holdfast.web.responses import json_response

PATIENCE = 1.0
"""Seconds after which a verification that has not ended is left alone; the page shows its result."""


class ChosenProof(Reason):
    """What to read: with `deep`, the bytes of all files."""

    deep: bool = False


class ProofRoutes:
    """The route that starts a verification; one at a time for each pipeline."""

    def __init__(self, dashboard: Dashboard, readings: Readings, report: Callable[[str], None]) -> None:
        self._dashboard = dashboard
        self._readings = readings
        self._report = report
        self._under_way: set[str] = set()

    def router(self, prefix: str) -> APIRouter:
        """Return the routes below a prefix."""
        router = APIRouter(prefix=prefix, default_response_class=Response)
        path = "/pipelines/{pipeline}:verify"
        router.add_api_route(path, self.verify, methods=["POST"], response_model=None, name="verify")
        return router

    async def verify(
        self, request: Request, pipeline: str, wanted: ChosenProof, key: IdempotencyKey = None
    ) -> Response:
        """Audit the files of a pipeline in this process. The response is 202 if that takes more than a second."""
        self._dashboard.identifier(pipeline)
        if pipeline in self._under_way:
            raise Refused(f"{pipeline} is being verified; wait for the result")
        self._under_way.add(pipeline)
        actions = actions_for(self._dashboard, request, wanted, key)
        under_way = asyncio.wrap_future(_started(actions, pipeline, deep=wanted.deep))
        under_way.add_done_callback(lambda ended: self._end(pipeline, ended))
        await asyncio.wait({under_way}, timeout=PATIENCE)
        if under_way.done():
            return report_response(under_way.result())
        self._readings.forget()
        return json_response({"message": f"{pipeline} is being verified; the page Proof shows the result"}, 202)

    def _end(self, pipeline: str, ended: asyncio.Future[Report[Any]]) -> None:
        self._under_way.discard(pipeline)
        self._readings.forget()
        error = None if ended.cancelled() else ended.exception()
        if error is not None:
            self._report(f"the verification of {pipeline} has failed: {type(error).__name__}: {error}")


def _started(actions: Actions, pipeline: str, *, deep: bool) -> Future[Report[Any]]:
    """Start a thread that ends with the process: a server that is stopped does not wait for it."""
    future: Future[Report[Any]] = Future()

    def carry_out() -> None:
        try:
            future.set_result(actions.pipeline(pipeline).verify(deep=deep))
        except BaseException as error:  # noqa: BLE001 - raised to whoever waits, or reported
            future.set_exception(error)

    threading.Thread(target=carry_out, name=f"holdfast-verify-{pipeline}", daemon=True).start()
    return future
