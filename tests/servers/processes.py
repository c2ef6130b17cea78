"""Real servers for tests and benchmarks: on loopback, in a temporary folder; the databases never as root.

A server is started by whoever needs it and stopped by the same; `scripts/install_servers.sh` brings the programs.
"""

from __future__ import annotations

import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

S = TypeVar("S", bound="Server")

PASSWORD = "correct horse 'battery' staple"
NOBODY = 65534
READY_WITHIN = 240.0
HOW_TO_INSTALL = "run scripts/install_servers.sh (as root), or put the server's programs on PATH"


class Server(ABC):
    """One server with a data folder of its own. It can be stopped, killed and started again on the same port."""

    user: str
    refuses_root = True

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        self.folder = folder
        self.port = free_port()
        self.settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def initialise(self) -> None:
        """Make the data folder."""

    @abstractmethod
    def command(self) -> Sequence[str]:
        """What starts the server in the foreground."""

    def environment(self) -> Mapping[str, str]:
        """What the server's environment has beside ours."""
        return {}

    def start(self) -> None:
        """Start the server, and return when it takes connections."""
        log = (self.folder / "log").open("ab")
        with log:
            command = _unprivileged(self.command()) if self.refuses_root else self.command()
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.folder, env={**os.environ, **self.environment()}
            )
        give_up_at = time.monotonic() + READY_WITHIN
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > give_up_at:
                raise RuntimeError(
                    f"{type(self).__name__} does not start:\n{(self.folder / 'log').read_text()[-3000:]}"
                )
            time.sleep(0.02)

    @property
    def pid(self) -> int:
        """The process that runs the server."""
        assert self._process is not None
        return self._process.pid

    def stop(self, sign: signal.Signals = signal.SIGTERM) -> None:
        """Tell the server to end, and wait until it has."""
        if self._process is not None:
            process, self._process = self._process, None
            process.send_signal(sign)
            # One that is frozen would never hear of it.
            process.send_signal(signal.SIGCONT)
            try:
                process.wait(READY_WITHIN)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise

    def crash(self) -> None:
        """End the server without giving it time to write anything."""
        self.stop(signal.SIGKILL)

    def freeze(self) -> None:
        """Let the server hang: it takes connections and answers nothing."""
        self._signal_all(signal.SIGSTOP)
        # A stop is not immediate: threads that run on another core answer a little longer.
        assert self._process is not None
        threads = Path(f"/proc/{self._process.pid}/task")
        while not all(_is_stopped(thread) for thread in threads.iterdir()):
            pass

    def thaw(self) -> None:
        self._signal_all(signal.SIGCONT)

    @abstractmethod
    def _answers(self) -> bool:
        """Whether a connection can be made."""

    def _signal_all(self, sign: signal.Signals) -> None:
        assert self._process is not None
        # Children first, so that the parent does not start new ones in between.
        for child in Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split():
            os.kill(int(child), sign)
        self._process.send_signal(sign)


class PostgresqlServer(Server):
    user = "postgres"

    def initialise(self) -> None:
        password = self.folder / "password"
        password.write_text(PASSWORD)
        initdb = (self._program("initdb"), "-D", str(self.folder / "data"), "-U", self.user, "-A", "scram-sha-256")
        run(*_unprivileged((*initdb, "--pwfile", str(password), "--no-sync", "-E", "UTF8", "--locale=C")))

    def command(self) -> Sequence[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.folder),
            "shared_buffers": "128MB",
            # A killed server loses nothing by this, only a killed machine would; it starts ten times faster.
            "fsync": "off",
            **self.settings,
        }
        given = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return (self._program("postgres"), "-D", str(self.folder / "data"), "-p", str(self.port), *given)

    def crash(self) -> None:
        # SIGQUIT is an "immediate" shutdown: no checkpoint, so that the next start has to recover.
        self.stop(signal.SIGQUIT)

    def stop(self, sign: signal.Signals = signal.SIGINT) -> None:
        """SIGINT is a "fast" shutdown: sessions are ended, not waited for."""
        super().stop(sign)

    def _answers(self) -> bool:
        ready = (self._program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port))
        return subprocess.run(ready, check=False).returncode == 0

    def _program(self, name: str) -> str:
        return program(name, *sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True))


class MariadbServer(Server):
    user = "holdfast"

    def initialise(self) -> None:
        quoted = PASSWORD.replace("'", "''")
        (self.folder / "users.sql").write_text(
            "CREATE DATABASE IF NOT EXISTS tests;\n"
            f"CREATE USER IF NOT EXISTS '{self.user}'@'127.0.0.1' IDENTIFIED BY '{quoted}';\n"
            f"GRANT ALL ON *.* TO '{self.user}'@'127.0.0.1';\n"
        )
        install = (program("mariadb-install-db"), "--no-defaults", f"--datadir={self.folder / 'data'}")
        options = ("--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve")
        run(*_unprivileged((*install, *options)))

    def command(self) -> Sequence[str]:
        settings = {
            "datadir": str(self.folder / "data"),
            "socket": str(self.folder / "socket"),
            "pid-file": str(self.folder / "pid"),
            "init-file": str(self.folder / "users.sql"),
            "bind-address": "127.0.0.1",
            "port": str(self.port),
            "skip-name-resolve": "1",
            # As fsync above: commits are handed to the system, not to the disk.
            "innodb-flush-log-at-trx-commit": "2",
            **self.settings,
        }
        given = [f"--{name}={value}" for name, value in settings.items()]
        return (program("mariadbd", Path("/usr/sbin")), "--no-defaults", *given)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as connection:
                return bool(connection.recv(1))
        except OSError:
            return False


@contextmanager
def running(kind: type[S], **settings: str) -> Iterator[S]:
    """A server of that kind, started with these settings; stopped and removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-server-"))
    folder.chmod(0o755)
    if kind.refuses_root and os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    server = kind(folder, settings)
    try:
        server.initialise()
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def certificate(folder: Path, name: str) -> Path:
    """A certificate of 127.0.0.1, signed by itself, and its key beside it."""
    file, key = folder / f"{name}.pem", folder / f"{name}.key"
    run(
        *shlex.split(
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
            f"-subj /CN={name} -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {file}"
        )
    )
    key.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(key, NOBODY, NOBODY)
    return file


def free_port() -> int:
    """A port that nobody uses now, and that no client is given while the server is down."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with suppress(OSError), socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port


def cache_folder() -> Path:
    """Where scripts/install_servers.sh puts what no package brings."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast"


def program(name: str, *folders: Path) -> str:
    """The path of a program. Raises `RuntimeError` if it is missing."""
    found = shutil.which(name, path=os.pathsep.join([*map(str, folders), os.environ.get("PATH", "")]))
    if found is None:
        # A missing server is a failure, never a skip: else nobody notices that nothing was tested.
        raise RuntimeError(f"there is no {name} on this machine; {HOW_TO_INSTALL}")
    return found


def run(*command: str) -> None:
    """Run that to its end. Raises with the end of what it said when it fails."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def _unprivileged(command: Sequence[str]) -> Sequence[str]:
    """The command as an ordinary user: these servers refuse to run as root."""
    if os.geteuid() != 0:
        return command
    return ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *command)


def _is_stopped(thread: Path) -> bool:
    return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T"
