"""REST for the configuration file: check a text, change a trigger in it, save it. Needs an admin and `--allow-edit`.

Checking resolves references and imports plugins, as starting a node does, so that it needs the same role as saving.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from holdfast.leases.action import Action
from holdfast.web.api_actions import IdempotencyKey, Reason, actions_for, report_response
from holdfast.web.configuration_file import ConfigurationFile
from holdfast.web.dashboard import Dashboard
from holdfast.web.readings import Readings
from holdfast.web.responses import json_response
from holdfast.web.trigger import with_trigger


class ConfigurationText(BaseModel):
    """The text of a file that is not saved."""

    model_config = ConfigDict(extra="forbid")

    text: str


class ChangedTrigger(ConfigurationText):
    """Settings of the trigger of a pipeline's function, by their names."""

    pipeline: str
    values: dict[str, str] = Field(max_length=20)


class ChangedFile(Reason):
    """A text to save instead of the one with the digest `expect`."""

    text: str
    expect: str


class ConfigurationRoutes:
    """The routes of the configuration file."""

    def __init__(self, dashboard: Dashboard, readings: Readings) -> None:
        self._dashboard = dashboard
        self._readings = readings
        self._file = ConfigurationFile(dashboard.file)

    def router(self, prefix: str) -> APIRouter:
        """Return the routes below a prefix."""
        router = APIRouter(prefix=prefix, default_response_class=Response)
        for route in (self.check, self.trigger, self.save):
            path = f"/configuration:{route.__name__}"
            router.add_api_route(
                path, route, methods=["POST"], response_model=None, name=f"{route.__name__}_configuration"
            )
        return router

    async def check(self, request: Request, given: ConfigurationText) -> Response:
        """Return what is wrong with a text, each problem with its line. Changes nothing."""
        self._require_editor(request)
        return json_response({"problems": await asyncio.to_thread(self._file.problems, given.text)})

    async def trigger(self, request: Request, given: ChangedTrigger) -> Response:
        """Return a text with settings of a trigger changed. Changes nothing."""
        self._require_editor(request)
        return json_response({"text": with_trigger(given.text, given.pipeline, given.values)})

    async def save(self, request: Request, changed: ChangedFile, key: IdempotencyKey = None) -> Response:
        """Save the file on this host, unless it has changed meanwhile or the text is wrong."""
        self._require_editor(request)
        auditor = actions_for(self._dashboard, request, changed, key).auditor
        digest = sha256(changed.text.encode()).hexdigest()
        given = {"file": self._file.name, "text": digest, "instead_of": changed.expect}
        action = Action("configuration save", parameters=given)
        save: Callable[[], Any] = lambda: self._file.save(changed.text, changed.expect)  # noqa: E731
        try:
            return report_response(await asyncio.to_thread(auditor.perform, action, save))
        finally:
            self._readings.forget()

    def _require_editor(self, request: Request) -> None:
        if not self._dashboard.allow_edit:
            raise HTTPException(403, "the file is not edited here; start `holdfast web` with --allow-edit")
        if not request.state.viewer.may("admin"):
            raise HTTPException(403, "this needs the role admin")
