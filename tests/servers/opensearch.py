"""A real OpenSearch for tests and benchmarks: one node on loopback, its data in a temporary folder.

    with running(OpenSearchServer) as opensearch:
        client = opensearch.client()
        client.indices.create("orders")

Settings are the server's own, such as `http.max_content_length`. It can be stopped, killed (`crash`), frozen and
thawed, and started again on the same port with its data.
"""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from holdfast.spark.java import find_java
from tests.servers.dynamodb import compiles
from tests.servers.java import server_options
from tests.servers.processes import HOW_TO_INSTALL, Server, cache_folder

VERSION = "2.19.1.0"
PORTS = range(9201, 9299)
"""The runner takes no other port for HTTP."""

_MAIN = Path(__file__).parent / "OpenSearchWithIngest.java"
_LOGGING = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %m (%c)%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
"""


class OpenSearchServer(Server):
    refuses_root = False
    heap = "512m"

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        super().__init__(folder, settings)
        self.port = _free_port()

    @property
    def endpoint(self) -> str:
        """One of the `hosts` of a sink."""
        return f"http://127.0.0.1:{self.port}"

    def initialise(self) -> None:
        conf = self.folder / "conf"
        conf.mkdir()
        (conf / "log4j2.properties").write_text(_LOGGING)
        given = {**self._defaults(), **self.settings}
        (conf / "opensearch.yml").write_text("".join(f"{name}: {value}\n" for name, value in given.items()))

    def command(self) -> Sequence[str]:
        jars = opensearch_jars()
        if not jars.is_dir():
            raise RuntimeError(f"there is no OpenSearch in {jars}; {HOW_TO_INSTALL}")
        # The lock of one that was killed would keep this one out.
        for lock in self.folder.rglob("node.lock"):
            lock.unlink()
        program = str(find_java().program)
        java = (program, f"-Xms{self.heap}", f"-Xmx{self.heap}", *server_options(jars), "-cp", f"{jars}/*")
        main = str(_MAIN) if compiles(program) else "org.codelibs.opensearch.runner.OpenSearchRunner"
        runner = (main, "-basePath", str(self.folder / "run"))
        options = ("-confPath", str(self.folder / "conf"), "-numOfNode", "1", "-clusterName", f"test-{self.port}")
        return (*java, *runner, *options, "-baseHttpPort", str(self.port - 1), "-useLogger")

    def client(self) -> Any:
        """A client for one's own use."""
        from opensearchpy import OpenSearch

        return OpenSearch(hosts=[self.endpoint], timeout=30, max_retries=0)

    def documents(self, index: str) -> dict[str, Any]:
        """All documents of an index by their ids, up to 10,000; none if there is no such index."""
        client = self.client()
        client.indices.refresh(index=index, ignore_unavailable=True)
        found = client.search(index=index, body={"size": 10_000}, ignore_unavailable=True)["hits"]["hits"]
        client.close()
        return {hit["_id"]: hit["_source"] for hit in found}

    def count(self, index: str) -> int:
        """How many documents the index has."""
        client = self.client()
        client.indices.refresh(index=index)
        number = int(client.count(index=index)["count"])
        client.close()
        return number

    def _answers(self) -> bool:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=2.0)
        try:
            connection.request("GET", "/_cluster/health")
            answer = connection.getresponse()
            health = json.loads(answer.read())
        except (OSError, HTTPException, ValueError):
            return False
        finally:
            connection.close()
        return answer.status == 200 and health["status"] in {"green", "yellow"}

    def _defaults(self) -> Mapping[str, str]:
        return {
            "discovery.type": "single-node",
            "http.host": "127.0.0.1",
            "transport.host": "127.0.0.1",
            "transport.port": str(self.port + 1000),
            "cluster.routing.allocation.disk.threshold_enabled": "false",
            "indices.requests.cache.size": "1%",
        }


class RoomyServer(OpenSearchServer):
    """One that counts what requests hold, and not what its collector has yet to free.

    Else it refuses some requests with 429 where much is written.
    """

    heap = "2g"

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        super().__init__(folder, {"indices.breaker.total.use_real_memory": "false", **settings})


def opensearch_jars() -> Path:
    """Where scripts/install_servers.sh puts the server."""
    return cache_folder() / f"opensearch-{VERSION}"


def _free_port() -> int:
    while True:
        port = random.SystemRandom().choice(PORTS)
        with suppress(OSError), socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
