"""Nodes that are killed or stopped in stage, commit and publish, on the stores without a database of ours."""

from __future__ import annotations

import json

import pytest

from tests.soak.crashes import BLOWS, PLACES
from tests.soak.test_soak import finish, start

STORES = ("dynamodb", "folder", "s3")


@pytest.mark.slow
def test_kills_and_stops_in_every_phase_lose_nothing_and_double_nothing() -> None:
    running = {store: start("tests.soak.crashes", store) for store in STORES}
    verdicts = {store: json.loads(finish(process, within=180.0)) for store, process in running.items()}
    assert {store: verdict["wrong"] for store, verdict in verdicts.items()} == {store: [] for store in STORES}
    for verdict in verdicts.values():
        assert verdict["figures"]["blows"] == len(PLACES) * len(BLOWS)
        assert verdict["figures"]["sessions_ended"] >= len(PLACES)


@pytest.mark.slow
def test_nodes_that_keep_no_receipts_are_found_out() -> None:
    broken = start("tests.soak.crashes", "folder", "--broken", "receipts", "--places", "after commit")
    verdict = json.loads(finish(broken, within=120.0))
    assert broken.returncode == 1
    assert any("is lost" in wrong for wrong in verdict["wrong"])
