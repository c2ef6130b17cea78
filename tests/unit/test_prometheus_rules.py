"""The rules for Prometheus fire when they should, and there is one for each kind of alert."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from holdfast.events import AlertRaised
from holdfast.observe.alert_kinds import KINDS, runbook
from holdfast.observe.metrics import Metrics

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "prometheus"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((FOLDER / "holdfast-alerts.yml").read_text())["groups"] for rule in group["rules"]
]
TESTS: list[dict[str, Any]] = yaml.safe_load((FOLDER / "holdfast-alerts.test.yml").read_text())["tests"]


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    return found or pytest.fail("promtool is missing; `make servers` installs it")


@pytest.mark.parametrize("command", [("check", "holdfast-alerts.yml"), ("test", "holdfast-alerts.test.yml")])
def test_promtool_is_content(promtool: str, command: tuple[str, str]) -> None:
    verb, file = command
    result = subprocess.run(
        [promtool, verb, "rules", file], cwd=FOLDER, capture_output=True, text=True, timeout=60, check=False
    )

    assert result.returncode == 0, result.stdout + result.stderr


def test_promtool_is_not_content_with_a_rule_that_never_fires(promtool: str, tmp_path: Path) -> None:
    rules = (FOLDER / "holdfast-alerts.yml").read_text()
    (tmp_path / "holdfast-alerts.yml").write_text(rules.replace('"records_lost"', '"records_last"'))
    shutil.copy(FOLDER / "holdfast-alerts.test.yml", tmp_path)

    result = subprocess.run(
        [promtool, "test", "rules", "holdfast-alerts.test.yml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode != 0
    assert "HoldfastRecordsLost" in result.stdout + result.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_alert_has_a_rule_for_the_metric_that_a_node_serves(kind: str) -> None:
    (rule,) = [rule for rule in RULES if f'{{kind="{kind}"}}' in rule["expr"]]
    series, _, condition = rule["expr"].partition("}")
    metrics = Metrics({"p|orders": "orders"})
    metrics(AlertRaised(kind, "p|orders", "k", "something is wrong"))
    registry = CollectorRegistry()
    registry.register(metrics)

    assert condition == " > 0"
    served = generate_latest(registry).decode().splitlines()
    assert f'{series},pipeline="orders"}} 1.0' in served
    assert rule["annotations"]["runbook"] == runbook(kind)
    assert "for" not in rule, "the node has waited already"


def test_every_rule_is_tested_says_how_bad_it_is_and_has_a_runbook() -> None:
    tested = {one["alertname"] for test in TESTS for one in test["alert_rule_test"] if one.get("exp_alerts")}

    assert {rule["alert"] for rule in RULES} == tested
    for rule in RULES:
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"]["summary"]
        assert (ROOT / rule["annotations"]["runbook"]).is_file()
