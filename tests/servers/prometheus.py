"""A real Prometheus that scrapes one address, for tests of the board and the rules in `deploy/`."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from tests.servers.processes import READY_WITHIN, Server, program


class PrometheusServer(Server):
    """Settings: `target`, the address that is scraped every second, and `rules`, a file of rules."""

    refuses_root = False

    def initialise(self) -> None:
        scraped = {"job_name": "holdfast", "static_configs": [{"targets": [self.settings["target"]]}]}
        settings = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [self.settings["rules"]],
            "scrape_configs": [scraped],
        }
        (self.folder / "prometheus.yml").write_text(yaml.safe_dump(settings))

    def command(self) -> Sequence[str]:
        return (
            program("prometheus"),
            f"--config.file={self.folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        )

    def get(self, path: str, **parameters: str) -> Any:
        """The data of a response of the HTTP API. Raises `URLError` while the server does not respond."""
        with urlopen(f"http://127.0.0.1:{self.port}/api/v1/{path}?{urlencode(parameters)}", timeout=10) as response:
            return json.load(response)["data"]

    def result(self, expression: str) -> list[dict[str, Any]]:
        """The result of the expression as soon as it has one. Raises `AssertionError` if it has none in time."""
        give_up_at = time.monotonic() + READY_WITHIN
        while not (found := self.get("query", query=expression)["result"]):
            assert time.monotonic() < give_up_at, f"no data for {expression}"
            time.sleep(0.2)
        return list(found)

    def _answers(self) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=1) as response:
                return bool(response.status == 200)
        except (URLError, OSError):
            return False
