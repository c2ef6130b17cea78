from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from holdfast import assemble
from holdfast.cli.root import app as commands
from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.session import Session
from holdfast.leases.store import Store
from holdfast.leases.world import host_world

PIPELINE = """\
  {name}:
    source:
      tests.unit.cli.fakes:SOURCE:
    sinks:
      - tests.unit.cli.fakes:SINK:
"""


@dataclass
class Site:
    """A configuration file with a store of its own, and the command line on it."""

    folder: Path

    def write(self, *pipelines: str, store: str | None = None, prefix: str = "prod", name: str = "pipeline") -> str:
        """Write a file and return its path."""
        path = self.folder / f"{name}.yaml"
        store = store or f"sqlite: {{path: {self.folder / 'leases.db'}, busy_timeout: 0.05}}"
        path.write_text(
            f"source_coordination:\n  partition_prefix: {prefix}\n  store:\n    {store}\npipelines:\n"
            + "".join(PIPELINE.format(name=pipeline) for pipeline in pipelines or ("orders",))
        )
        return str(path)

    def store(self, file: str) -> Store:
        return assemble.open_store(assemble.load_settings(file))

    def session(self, file: str, store: Store, node: str = "replica1") -> Session:
        settings = assemble.load_settings(file)
        world = host_world(lambda _: None)
        session = assemble.new_session(settings, store, world, pipelines=list(settings.pipelines), name=node)
        session.join()
        return session

    def coordinator(self, file: str, pipeline: str = "orders", node: str = "replica1") -> Coordinator:
        """The leases of a pipeline in the hands of a node that has joined."""
        settings, store = assemble.load_settings(file), self.store(file)
        session = self.session(file, store, node)
        world = host_world(lambda _: None)
        return Coordinator(store, world, session, settings.identifier(pipeline), policy=ClaimPolicy())

    def invoke(self, *arguments: str, answer: str | None = None) -> Result:
        return CliRunner().invoke(commands, arguments, input=answer, prog_name="holdfast")

    def json(self, *arguments: str) -> Any:
        """What a command prints on stdout, which must be JSON and nothing else."""
        result = self.invoke(*arguments, "--json")
        assert (result.exit_code, result.stderr) == (0, "")
        return json.loads(result.stdout)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)
