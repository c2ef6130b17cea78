"""Serves ASGI applications until the process is asked to stop. Commands find what they serve through entry points."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from holdfast.assemble import StoredPipeline, audit_log_of
from holdfast.config.hosts import is_local
from holdfast.config.models import Settings
from holdfast.errors import UsageError
from holdfast.leases.store import Store
from holdfast.registry import needing
from holdfast.runs.reindex_start import reindex_runs
from holdfast.web.job_status import PATH, JobStatus

CLOSING_PATIENCE = 5
"""Seconds that open connections have when the server stops."""


def serve_job_status(
    pipeline: StoredPipeline,
    host: str,
    port: int,
    *,
    allow_remote: bool,
    announce: Callable[[str], None],
    report: Callable[[str], None],
) -> None:
    """Send the progress of the pipeline's reindex runs to WebSocket clients until SIGINT or SIGTERM. Blocks.

    `announce` gets the URL before that, `report` what goes wrong. Raises `UsageError` as `listen` and `serve` do.
    """
    app = JobStatus(lambda: reindex_runs(pipeline), report=report, local_only=not allow_remote)
    listening = listen(host, port, allow_remote=allow_remote)
    address = f"[{host}]" if ":" in host else host
    url = f"ws://{address}:{listening.getsockname()[1]}{PATH}"
    serve(app, listening, lambda: announce(url))


def serve_dashboard(  # noqa: PLR0913 - each is given by the command
    file: Path,
    settings: Settings,
    store: Store,
    *,
    host: str,
    port: int,
    options: Mapping[str, Any],
    announce: Callable[[str], None],
    report: Callable[[str], None],
) -> None:
    """Serve the dashboard of a fleet until SIGINT or SIGTERM. Blocks. `announce` gets the URL before that.

    `options` are those of `Entrance`. Raises `UsageError` as `Entrance`, `listen` and `serve` do.
    """
    with needing("`holdfast web`", "FastAPI", "web"):
        from holdfast.web.app import create_app
        from holdfast.web.dashboard import Dashboard
        from holdfast.web.entrance import Entrance
        from holdfast.web.login import AuditedAttempts
    entrance = Entrance(host, **options)
    with closing(listen(host, port, allow_remote=True)) as listening:
        access, url = entrance.access(listening.getsockname()[1], report)
        dashboard = Dashboard(file, settings, store, entrance.read_only, entrance.allow_edit)
        with closing(AuditedAttempts(audit_log_of(settings, store), report)) as attempt:
            app = create_app(dashboard, access, report=report, attempt=attempt)
            serve(app, listening, lambda: announce(url), **entrance.served_with())


def listen(host: str, port: int, *, allow_remote: bool) -> socket.socket:
    """A socket that listens on this address; port 0 is any free port.

    Raises `UsageError` if that is impossible, and for an address that other hosts can reach unless that is allowed.
    """
    if not allow_remote and not (host and is_local(host)):
        raise UsageError(
            f"{host or 'every address'} can be reached from other hosts, and whoever can reach it may read: "
            "add --allow-remote if that is intended"
        )
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise UsageError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error


def serve(app: Callable[..., Any], listening: socket.socket, announce: Callable[[], None], **served_with: Any) -> None:
    """Serve until SIGINT or SIGTERM; open channels are closed. Blocks. `announce` is called before that.

    `served_with` are settings of uvicorn, such as those of TLS.

    Raises `UsageError` if the extra `web` is not installed, or the certificate cannot be used.
    """
    with needing("serving", "uvicorn", "web"):
        import uvicorn
        import websockets  # noqa: F401 - uvicorn would refuse WebSocket connections without it
    config = uvicorn.Config(
        app,
        ws="websockets-sansio",
        log_level="warning",
        server_header=False,
        ws_per_message_deflate=False,  # ticks are short: it would cost more time and memory than it saves
        timeout_graceful_shutdown=CLOSING_PATIENCE,
        **{"proxy_headers": False, **served_with},
    )
    try:
        config.load()
    except OSError as error:  # errors of TLS are such
        raise UsageError(f"the certificate or its key cannot be used: {error.strerror or error}") from None
    announce()
    with closing(listening), suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listening])
