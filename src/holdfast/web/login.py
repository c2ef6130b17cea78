"""The login page: a viewer gives a token and gets a cookie. Attempts are limited, reported and audited."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import parse_qs

from fastapi import FastAPI, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from holdfast.errors import HoldfastError
from holdfast.leases import action
from holdfast.leases.audit_log import AuditLog
from holdfast.web.access import Access
from holdfast.web.limits import Rate
from holdfast.web.logins import LASTS, Logins
from holdfast.web.page import Templates
from holdfast.web.security import cookie_name

Attempt = Callable[[str, str, bool], None]
"""Gets the name (empty if nobody has the token), the address of the client, and whether it was let in."""


class AuditedAttempts:
    """Writes attempts to the audit log, in a thread, so that an unavailable store keeps nobody from looking."""

    def __init__(self, log: AuditLog, report: Callable[[str], None]) -> None:
        self._log = log.logins
        self._report = report
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="holdfast-web-logins")

    def __call__(self, name: str, client: str, let_in: bool) -> None:
        """Report the attempt, and have it written. Does not block."""
        self._report(f"{name} has logged in from {client}" if let_in else f"a login from {client} was refused")
        self._writer.submit(self._write, name, client, let_in)

    def close(self) -> None:
        """Wait until all attempts are written."""
        self._writer.shutdown()

    def _write(self, name: str, client: str, let_in: bool) -> None:
        verdict = action.Verdict.DONE if let_in else action.Verdict.REFUSED
        try:
            entry = self._log.begin(action.Request(name, "web", client), action.Action("log in"))
            self._log.end(entry, action.ActionOutcome(verdict, "" if let_in else "this is not a valid token"))
        except HoldfastError as error:
            self._report(f"the login from {client} is not in the audit log: {error}")


class LoginPage:
    """The routes `/login` and `/logout`."""

    def __init__(self, access: Access, logins: Logins, templates: Templates, attempt: Attempt) -> None:
        self._access = access
        self._logins = logins
        self._templates = templates
        self._attempt = attempt
        limits = access.limits
        self._attempts = Rate(limits.logins_per_second, limits.logins_burst)

    def add_to(self, app: FastAPI) -> None:
        """Add the routes."""
        for path, method, route in (
            ("/login", "GET", self.show),
            ("/login", "POST", self.log_in),
            ("/logout", "POST", self.log_out),
        ):
            app.add_api_route(path, route, methods=[method], include_in_schema=False, response_model=None)

    async def show(self, request: Request) -> Response:
        """Return the form; a link that has the token of this process logs in at once."""
        token = request.query_params.get("token")
        if token is not None and self._access.token_in_url:
            return self._let_in(request, token, request.query_params.get("next", "/"))
        return self._form(request.query_params.get("next", "/"))

    async def log_in(self, request: Request) -> Response:
        """Log in with the token of the form."""
        fields = parse_qs((await request.body()).decode("utf-8", "replace"))
        token, wanted = (next(iter(fields.get(name, ())), "") for name in ("token", "next"))
        return self._let_in(request, token.strip(), wanted)

    async def log_out(self, request: Request) -> Response:
        """End the login."""
        self._logins.end(request.cookies.get(cookie_name(self._access), ""))
        response = RedirectResponse(self._templates.link("/login"), 303)
        response.delete_cookie(cookie_name(self._access), path=self._cookie_path)
        return response

    def _let_in(self, request: Request, token: str, wanted: str) -> Response:
        client: str = request.state.client
        if not self._attempts.allows(client):
            wait = self._attempts.wait(client)
            return self._form(wanted, 429, f"too many attempts; try again in {wait} s", {"Retry-After": str(wait)})
        cookie = self._logins.begin(token)
        viewer = None if cookie is None else self._logins.of_cookie(cookie)
        self._attempt("" if viewer is None else viewer.name, client, viewer is not None)
        if cookie is None or viewer is None:
            return self._form(wanted, 401, "this is not a valid token")
        response = RedirectResponse(self._templates.link(_here(wanted)), 303)
        response.set_cookie(
            cookie_name(self._access),
            cookie,
            max_age=int(LASTS),
            path=self._cookie_path,
            httponly=True,
            samesite="lax",
            secure=request.url.scheme == "https",
        )
        return response

    @property
    def _cookie_path(self) -> str:
        return self._access.base_path or "/"

    def _form(
        self, wanted: str, status: int = 200, problem: str = "", headers: dict[str, str] | None = None
    ) -> Response:
        html = self._templates.render("login.html", wanted=_here(wanted), problem=problem)
        return HTMLResponse(html, status, headers)


def _here(path: str) -> str:
    """The path if it is one of this server, else that of the overview."""
    is_here = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if is_here else "/"
