"""A real Spark cluster (standalone) on loopback: one master and some workers, each a process of its own.

    with running_cluster(workers=2, secret="open sesame") as cluster:
        session = start_session("tests", cluster.settings, cluster.master)

A worker has one core, and so runs one executor, in a process of its own. Workers can be killed, frozen and started
again. All traffic is authenticated by the secret and encrypted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast.spark.java import java_home
from tests.servers.java import short_lived, spark_jars
from tests.servers.processes import Server, running

_LOOPBACK = "127.0.0.1"
_LIGHT = " ".join(short_lived(spark_jars()))

PROTECTED = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",
}
"""What master, workers and applications must agree on, beside the secret."""


class _Daemon(Server):
    """One of Spark's own processes; up when its log has `ready`."""

    refuses_root = False
    ready: bytes
    _log_seen = 0

    def initialise(self) -> None:
        # In a file, because a command line is everybody's to read.
        secret = {**PROTECTED, "spark.authenticate.secret": self.settings["secret"]}
        (self.folder / "spark.conf").write_text("".join(f"{name} {value}\n" for name, value in secret.items()))

    def environment(self) -> Mapping[str, str]:
        # Without the address their web pages would be open to every interface.
        memory = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": _LIGHT}
        return {"JAVA_HOME": java_home(), "SPARK_LOCAL_IP": _LOOPBACK, **memory}

    def start(self) -> None:
        log = self.folder / "log"
        self._log_seen = log.stat().st_size if log.exists() else 0
        super().start()

    def _answers(self) -> bool:
        with (self.folder / "log").open("rb") as log:
            log.seek(self._log_seen)
            return self.ready in log.read()

    def _spark_class(self, name: str) -> Sequence[str]:
        import pyspark

        script = Path(pyspark.__file__).with_name("bin") / "spark-class"
        address = ("--host", _LOOPBACK, "--port", str(self.port), "--webui-port", "0")
        protection = ("--properties-file", str(self.folder / "spark.conf"))
        return (str(script), f"org.apache.spark.deploy.{name}", *address, *protection)


class Master(_Daemon):
    ready = b"New state: ALIVE"

    @property
    def url(self) -> str:
        """The value of `spark.master`."""
        return f"spark://{_LOOPBACK}:{self.port}"

    def command(self) -> Sequence[str]:
        return self._spark_class("master.Master")


class Worker(_Daemon):
    """Its setting `master` is the address of the master that it belongs to."""

    ready = b"Successfully registered with master"

    def command(self) -> Sequence[str]:
        size = ("--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / "work"))
        return (*self._spark_class("worker.Worker"), *size, self.settings["master"])

    def executors(self) -> list[int]:
        """Process ids of the executors that it runs now."""
        assert self._process is not None
        threads = Path(f"/proc/{self._process.pid}/task")
        children = [pid for thread in threads.iterdir() for pid in _contents(thread / "children").decode().split()]
        # The script that started the worker leaves a dead child behind.
        return [int(pid) for pid in children if b"ExecutorBackend" in _contents(Path(f"/proc/{pid}/cmdline"))]


def _contents(file: Path) -> bytes:
    """What the system tells of a thread or process; nothing if that has just ended."""
    try:
        return file.read_bytes()
    except OSError:
        return b""


@dataclass(frozen=True)
class Cluster:
    head: Master
    workers: Sequence[Worker]

    @property
    def master(self) -> str:
        return self.head.url

    @property
    def settings(self) -> dict[str, str]:
        """The settings of a session that uses this cluster, beside its master and the secret."""
        return {
            **PROTECTED,
            "spark.driver.host": _LOOPBACK,
            "spark.driver.bindAddress": _LOOPBACK,
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": _LIGHT,
            "spark.driver.extraJavaOptions": _LIGHT,
        }


@contextmanager
def running_cluster(workers: int = 2, *, secret: str) -> Iterator[Cluster]:
    """A cluster that is up; ended and removed at the end, executors included."""
    with ExitStack() as stack:
        head = stack.enter_context(running(Master, secret=secret))
        made = [stack.enter_context(running(Worker, secret=secret, master=head.url)) for _ in range(workers)]
        yield Cluster(head, made)
