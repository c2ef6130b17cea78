"""The dashboard as an ASGI application: pages, static files, REST and the live channel behind one security layer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qsl, urlencode

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route, WebSocketRoute, compile_path

from holdfast import __version__
from holdfast.errors import HoldfastError, NotFound
from holdfast.web.access import Access, Viewer
from holdfast.web.api import Api
from holdfast.web.api_actions import ActionRoutes
from holdfast.web.api_configuration import ConfigurationRoutes
from holdfast.web.api_proof import ProofRoutes
from holdfast.web.api_runs import RunRoutes
from holdfast.web.dashboard import Dashboard
from holdfast.web.job_status import PATH, JobStatus
from holdfast.web.live import Live
from holdfast.web.login import Attempt, LoginPage
from holdfast.web.logins import Logins, masked
from holdfast.web.maps import Maps
from holdfast.web.page import STATIC, Page, Templates, digests_of
from holdfast.web.pages import PAGES
from holdfast.web.readings import Reading, Readings
from holdfast.web.responses import age_headers, error_response, json_response, reason_of, status_of
from holdfast.web.security import Application, Security
from holdfast.web.static_files import SMALLEST_COMPRESSED, StaticFiles

API = "/api/v1"
REGION_DIGEST = "X-Region-Digest"
"""The header of a region that says which data it shows."""


def create_app(
    dashboard: Dashboard,
    access: Access,
    *,
    pages: Sequence[Page] = PAGES,
    readings: Readings | None = None,
    report: Callable[[str], None] = lambda _message: None,
    attempt: Attempt = lambda _name, _client, _let_in: None,
) -> Application:
    """Return the dashboard of a fleet. `report` gets what goes wrong inside of it, `attempt` every login."""
    templates = Templates(access.base_path)
    readings = readings or Readings.of_store(dashboard.store)
    readings.attach(dashboard.snapshots)
    routes = _Routes(dashboard, templates, readings, pages, report)
    logins = None if access.tokens is None else Logins(access.tokens)
    app = _application(routes.readings)
    maps = Maps(dashboard, routes.readings)
    live = Live(routes.read_address, maps, routes.readings, report)
    app.include_router(Api(dashboard, routes.readings, maps, templates).router(API))
    app.include_router(ActionRoutes(dashboard, routes.readings).router(API))
    app.include_router(RunRoutes(dashboard, routes.readings).router(API))
    app.include_router(ProofRoutes(dashboard, routes.readings, report).router(API))
    app.include_router(ConfigurationRoutes(dashboard, routes.readings).router(API))
    app.add_api_websocket_route(f"{API}/live", live.serve)
    job_status = JobStatus(dashboard.reindex_runs, report=report, guarded=True, every=routes.readings.every)
    app.router.routes += _job_status(job_status)
    for page in pages:
        app.add_api_route(page.path, routes.route(page), include_in_schema=False, response_model=None)
    if logins is not None:
        LoginPage(access, logins, templates, attempt).add_to(app)
    app.router.routes.append(Route("/static/{name:path}", StaticFiles(STATIC).serve))
    for kind in (HoldfastError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, routes.refuse)
    # Inside of the security layer, which must see every response; sockets pass through.
    return Security(GZipMiddleware(app, minimum_size=SMALLEST_COMPRESSED, compresslevel=6), access, logins, report)


def _application(readings: Readings) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> Any:
        yield
        readings.close()

    return FastAPI(
        title="holdfast",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=f"{API}/openapi.json",
        # A redirect would lose the prefix of a proxy.
        redirect_slashes=False,
        lifespan=lifespan,
    )


def _job_status(served: JobStatus) -> list[Route | WebSocketRoute]:
    return [Route(PATH, served), WebSocketRoute(PATH, served)]


class _Routes:
    """What the routes share."""

    def __init__(
        self,
        dashboard: Dashboard,
        templates: Templates,
        readings: Readings,
        pages: Sequence[Page],
        report: Callable[[str], None],
    ) -> None:
        self.dashboard = dashboard
        self.readings = readings
        self._templates = templates
        self._pages = [(compile_path(page.path)[0], page) for page in pages]
        self._report = report

    def route(self, page: Page) -> Callable[[Request], Any]:
        """Return the handler of a page."""

        async def show(request: Request) -> Response:
            reading = await self._read(page, {**request.query_params, **request.path_params}, wait=False)
            if request.query_params.get("format") == "json":
                return json_response(reading.value, headers=age_headers(reading))
            return self._page(page, request, reading)

        return show

    async def read_address(self, address: str) -> Reading:
        """Return the data of the page at an address. Raises `NotFound` if there is none."""
        path, _, query = address.partition("?")
        for pattern, page in self._pages:
            if (found := pattern.match(path)) is not None:
                return await self._read(page, {**dict(parse_qsl(query)), **found.groupdict()})
        raise NotFound(f"there is no page {path}")

    async def _read(self, page: Page, given: Mapping[str, str], *, wait: bool = True) -> Reading:
        """Return the data of a page; all viewers with the same parameters share a read."""
        wanted = {*page.parameters, *re.findall(r"{(\w+)", page.path)}
        parameters = {name: value for name, value in given.items() if name in wanted}
        key = (page.path, tuple(sorted(parameters.items())))
        return await self.readings.get(key, lambda: page.data(self.dashboard, parameters), wait=wait)

    def _page(self, page: Page, request: Request, reading: Reading) -> Response:
        viewer: Viewer = request.state.viewer
        region = request.query_params.get("region")
        shown = reading.value if region is None else {name: reading.value[name] for name in {region} & {*reading.value}}
        digests = digests_of(shown)
        html = self._templates.render(
            page.template,
            region,
            page=reading.value,
            digests=digests,
            title=page.title,
            path=_path(request),
            age=reading.age,
            fault=reading.fault,
            viewer=viewer,
            csrf=masked(viewer.csrf),
            read_only=self.dashboard.read_only,
            allow_edit=self.dashboard.allow_edit,
        )
        headers = age_headers(reading)
        if region is not None:
            headers[REGION_DIGEST] = digests.get(region, "")
        return HTMLResponse(html, headers=headers)

    async def refuse(self, request: Request, error: Exception) -> Response:
        """Return an error as JSON to programs, and as a page to people."""
        if isinstance(error, HTTPException):
            status, reason = error.status_code, str(error.detail)
        elif isinstance(error, RequestValidationError):
            status, reason = 422, "; ".join(f"{part['loc'][-1]}: {part['msg']}" for part in error.errors())
        else:
            status, reason = status_of(error), reason_of(error)
        if status == 500 and isinstance(error, HoldfastError):  # others are reported where they end
            self._report(f"{request.method} {request.url.path}: {type(error).__name__}: {error}")
        if request.url.path.startswith("/api/") or request.query_params.get("format") == "json":
            return error_response(status, reason)
        return HTMLResponse(self._templates.render("error.html", status=status, reason=reason), status)


def _path(request: Request) -> str:
    """The path of a page with its parameters, as a link would name it."""
    given = [(name, value) for name, value in request.query_params.multi_items() if name not in {"region", "format"}]
    return request.url.path + (f"?{urlencode(given)}" if given else "")
