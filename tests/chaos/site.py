"""An archive under chaos: the servers, the nodes, and each node's own lines to store and bucket."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from holdfast.testing.proxy import TcpProxy
from tests.e2e.fleet import Node, eventually
from tests.e2e.freezing import thaw
from tests.servers.http_proxy import Fault, HttpProxy
from tests.servers.kafka import KafkaServer
from tests.servers.processes import PASSWORD, PostgresqlServer, running
from tests.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Server

BUCKET, PREFIX = "lake", "events/"
SESSION_TIMEOUT = 6.0
UP_WITHIN = 240.0
LEFT_WITHIN = 60.0

CONFIG = """
allow_plaintext_secrets: true
source_coordination:
  store:
    postgresql: {{host: 127.0.0.1, port: {store}, database: postgres, user: postgres, password: {password}}}
node:
  session_timeout: {timeout}s
  heartbeat_interval: 1s
spark:
  master: local[1]
  conf: {{spark.driver.memory: 700m, spark.ui.enabled: false}}
pipelines:
  events:
    generation: {generation}
    source:
      kafka:
        bootstrap_servers: "{kafka}"
        topics_pattern: "chaos-.*"
        poll_interval: 500ms
        discovery_interval: 2s
        upload: {{max_age: 3s, max_records: 5000}}
    processors:
      - parse: {{time: {{json: {{field: ts, unit: seconds}}}}, granularity: hour, prefix: "v{generation}"}}
    sinks:
      - files:
          root: s3://{root}
          s3: {{endpoint_url: "http://127.0.0.1:{s3}", region: {region}, access_key_id: {key},
               secret_access_key: {secret}, path_style: true}}
          format: {{text: {{compression: gzip}}}}
    # What is done to nodes and servers is not a fault of a batch: none may be FAILED by it.
    retries: {{max_retries: 5, backoff: 500ms, max_backoff: 2s, max_takeovers: 100}}
"""


class Weather:
    """How the bucket feels today; all nodes have the same."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self.fault: Fault | None = None
        self.chance = 0.0

    def decide(self, _request: str) -> Fault | None:
        return self.fault if self.fault is not None and self._dice.random() < self.chance else None


class Member:
    """A node under a name that others may have had before, with lines of its own."""

    def __init__(self, node: Node, began: int, store: TcpProxy, bucket: HttpProxy) -> None:
        self.node, self.store, self.bucket = node, store, bucket
        self._began = began
        self.wanted = True
        """Whether it is meant to run."""

    @property
    def is_up(self) -> bool:
        """Whether it has joined, and runs."""
        return self.node.process.poll() is None and "NodeJoined" in self.said()

    def said(self) -> str:
        """Since this process began."""
        with self.node.log.open("rb") as log:
            log.seek(self._began)
            return log.read().decode(errors="replace")

    def leave(self) -> int:
        """End in order; returns its exit code."""
        self.wanted = False
        starting = "NodeJoined" not in self.said()
        self.node.send(signal.SIGTERM)
        code = self.node.exit_code(LEFT_WITHIN)
        # One that still starts has nothing to hand back, and ends by the signal.
        return 0 if starting and code == 128 + signal.SIGTERM else code

    def die(self) -> None:
        self.wanted = False
        thaw(self.node.process.pid)
        self.node.kill()


class Site:
    """Servers, weather and members by name."""

    def __init__(self, root: Path, stack: ExitStack, dice: random.Random) -> None:
        self.root = root
        self.weather = Weather(dice)
        self.postgresql = stack.enter_context(running(PostgresqlServer))
        self.kafka = stack.enter_context(running(KafkaServer))
        self.s3 = stack.enter_context(running(S3Server))
        self.s3.create_bucket(BUCKET)
        self._stack = stack
        self.generation = 1
        self.members: dict[str, Member] = {}
        stack.callback(self._end)

    def start(self, name: str) -> Member:
        """A new process under that name, of the generation of now."""
        earlier = self.members.get(name)
        store = earlier.store if earlier else self._stack.enter_context(TcpProxy(self.postgresql.port))
        bucket = earlier.bucket if earlier else self._line_to_bucket()
        config = self.root / f"{name}.yaml"
        config.write_text(self.config(store.port, bucket.port))
        log = self.root / f"{name}.log"
        began = log.stat().st_size if log.exists() else 0
        self.members[name] = Member(Node(self.root, config, name, "--verbose"), began, store, bucket)
        return self.members[name]

    def _line_to_bucket(self) -> HttpProxy:
        return self._stack.enter_context(HttpProxy(self.s3.port, decide=self.weather.decide))

    def config(self, store: int, s3: int) -> str:
        access = {"region": REGION, "key": ACCESS_KEY, "secret": SECRET_KEY, "root": f"{BUCKET}/{PREFIX}"}
        shared = {"kafka": self.kafka.bootstrap, "password": json.dumps(PASSWORD), "timeout": SESSION_TIMEOUT}
        return CONFIG.format(store=store, s3=s3, generation=self.generation, **access, **shared)

    def up(self) -> list[str]:
        """Names of the members that have joined, in order. Fails if one has ended by itself."""
        for name, member in self.members.items():
            code = member.node.process.poll()
            assert not member.wanted or code is None, f"{name} ended by itself with {code}:\n{member.said()[-3000:]}"
        return sorted(name for name, member in self.members.items() if member.is_up)

    def wait_until_up(self, *names: str) -> None:
        eventually(lambda: set(names) <= set(self.up()), UP_WITHIN, f"{', '.join(names)} up")

    def dismiss(self) -> list[int]:
        """All members leave; answers their exit codes."""
        present = [member for member in self.members.values() if member.wanted]
        return [member.leave() for member in present]

    def _end(self) -> None:
        for member in self.members.values():
            member.die()


@contextmanager
def site(root: Path, dice: random.Random) -> Iterator[Site]:
    """Running servers; whatever is left of the nodes ends with them."""
    with ExitStack() as stack:
        yield Site(root, stack, dice)
