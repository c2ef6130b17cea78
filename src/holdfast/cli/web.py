"""`holdfast web`: the dashboard of a fleet, for browsers and programs; and the dashboard beside a node."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import output
from holdfast.cli.exit_codes import ExitCode
from holdfast.cli.options import File, opened_store

if TYPE_CHECKING:
    from holdfast.config.models import Settings
    from holdfast.leases.store import Store

ENDING_PATIENCE = 6.0
"""Seconds that the process of the dashboard has to end; a little more than its connections have."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds before the process is started again; they double each time."""

Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="The address to listen on.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, metavar="PORT", help="The port; 0 is any free one.")]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", metavar="PATH", help="File with named tokens and their roles.")
]
ReadOnly = Annotated[bool, typer.Option("--read-only", metavar="", help="Offer no actions.")]
BasePath = Annotated[
    str, typer.Option("--base-path", metavar="PATH", help="Prefix that a proxy puts in front, such as /holdfast.")
]
AllowedHosts = Annotated[
    list[str] | None,
    typer.Option(
        "--allowed-host",
        metavar="NAME",
        help="Host name under which browsers may reach the dashboard; may be given several times.",
    ),
]
AllowEdit = Annotated[
    bool, typer.Option("--allow-edit", metavar="", help="Let admins save the configuration file on this host.")
]
TlsCert = Annotated[Path | None, typer.Option("--tls-cert", metavar="PATH", help="Certificate chain, as PEM.")]
TlsKey = Annotated[Path | None, typer.Option("--tls-key", metavar="PATH", help="Key of the certificate, as PEM.")]
BehindProxy = Annotated[
    bool,
    typer.Option(
        "--behind-proxy", metavar="", help="A proxy with TLS is in front; its X-Forwarded headers are trusted."
    ),
]
UntilClosed = Annotated[bool, typer.Option("--until-stdin-closes", hidden=True)]


def web(  # noqa: PLR0913, PLR0917 - each is an option
    file: File,
    host: Host = "127.0.0.1",
    port: Port = 8600,
    token_file: TokenFile = None,
    read_only: ReadOnly = False,
    base_path: BasePath = "",
    allowed_host: AllowedHosts = None,
    allow_edit: AllowEdit = False,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    behind_proxy: BehindProxy = False,
    until_stdin_closes: UntilClosed = False,
) -> None:
    """Serve the dashboard of the file's fleet until it is interrupted. Needs holdfast[web].

    Without --token-file, the address that is printed has a token that is valid until the process ends. An address that
    other hosts can reach needs --token-file, and --tls-cert and --tls-key or --behind-proxy.
    """
    from holdfast.configured_store import load_settings
    from holdfast.registry import server

    settings = load_settings(file)
    if until_stdin_closes:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    with opened_store(settings) as store:
        server("dashboard")(
            Path(file),
            settings,
            store,
            host=host,
            port=port,
            options={
                "token_file": token_file,
                "read_only": read_only,
                "base_path": base_path,
                "allowed_hosts": allowed_host or [],
                "allow_edit": allow_edit,
                "tls_cert": tls_cert,
                "tls_key": tls_key,
                "behind_proxy": behind_proxy,
            },
            announce=output.say,
            report=output.tell,
        )


@contextmanager
def beside_a_node(file: str, settings: Settings, port: int, store: Store) -> Iterator[None]:
    """Serve the dashboard on this host while the block runs. It never makes the node fail.

    It has a process of its own, so that pages never block the interpreter of the node; it is started again when it
    dies, and ends with this process, however that ends. A store that only this process can see is served by a thread.
    """
    if not store.shared:
        threading.Thread(target=_serve_here, args=(file, settings, port, store), daemon=True).start()
        yield
        return
    process = _WebProcess([sys.executable, "-m", "holdfast", "web", file, "--port", str(port), "--until-stdin-closes"])
    process.start()
    try:
        yield
    finally:
        process.end()


class _WebProcess:
    """The process of a dashboard, and the thread that starts it again."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._over = threading.Event()
        self._current: subprocess.Popen[bytes] | None = None
        self._keeper = threading.Thread(target=self._keep, daemon=True)

    def start(self) -> None:
        self._keeper.start()

    def end(self) -> None:
        self._over.set()
        if (process := self._current) is not None:
            process.terminate()
        self._keeper.join(ENDING_PATIENCE)
        if process is not None and process.poll() is None:
            process.kill()

    def _keep(self) -> None:
        pause = FIRST_PAUSE
        while not self._over.is_set():
            # The pipe closes with this process, even if that is killed; nothing is ever written to it.
            self._current = subprocess.Popen(self._command, stdin=subprocess.PIPE)
            if self._over.is_set():
                self._current.terminate()
            code = self._current.wait()
            if self._over.is_set():
                return
            if code == ExitCode.WRONG:
                output.tell("the dashboard cannot be served, for the reason above; the node goes on without it")
                return
            output.tell(f"the dashboard has ended with code {code} and is started again")
            self._over.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


def _serve_here(file: str, settings: Settings, port: int, store: Store) -> None:
    from holdfast.registry import server

    try:
        serve = server("dashboard")
        announce, report = output.say, output.tell
        serve(Path(file), settings, store, host="127.0.0.1", port=port, options={}, announce=announce, report=report)
    except Exception as error:  # noqa: BLE001 - the node works without its dashboard
        output.tell(f"the dashboard cannot be served: {error}; the node goes on without it")


def _end_with_stdin() -> None:
    with suppress(OSError):
        while os.read(sys.stdin.fileno(), 1024):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
