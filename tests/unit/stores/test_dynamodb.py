"""What the DynamoDB store does without a server: settings, keys, and credentials."""

from __future__ import annotations

import itertools
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qs

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from holdfast.errors import RowTooLarge
from holdfast.leases.lease import Key, Status
from holdfast.stores.dynamodb import DynamodbConfig, items
from holdfast.stores.dynamodb.client import connect
from holdfast.testing.rows import ODD_TEXTS, make_row

TABLE = {"table_name": "leases", "region": "eu-central-1"}


def config(**settings: Any) -> DynamodbConfig:
    return DynamodbConfig.model_validate({**TABLE, **settings})


# --- settings --------------------------------------------------------------------------------------------------------


def test_settings_have_the_names_and_defaults_of_data_prepper() -> None:
    made = config(sts_role_arn="arn:aws:iam::1:role/r", sts_external_id="x", ttl="P7D", skip_table_creation=True)
    assert (made.provisioned_write_capacity_units, made.provisioned_read_capacity_units) == (10, 10)
    assert made.ttl == 7 * 86_400.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"table_name": "a/b"}, "pattern"),
        ({"ttl": "PT1H"}, "at least P1D"),
        ({"sts_external_id": "x"}, "needs sts_role_arn"),
        ({"billing": "on_demand", "provisioned_read_capacity_units": 5}, "on_demand has no"),
        ({"provisioned_write_capacity_units": 0}, "greater than or equal to 1"),
        ({"endpoint_url": "http://user:secret@host"}, "pattern"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        config(**settings)


# --- keys ------------------------------------------------------------------------------------------------------------

TEXTS = st.sampled_from(ODD_TEXTS) | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)


@given(st.tuples(TEXTS, TEXTS, TEXTS), st.tuples(TEXTS, TEXTS, TEXTS))
def test_rows_share_a_key_only_if_they_are_the_same(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    assert (items.table_key(Key(*one)) == items.table_key(Key(*other))) == (one == other)


@given(TEXTS, TEXTS, TEXTS)
def test_rows_are_in_order_of_key_and_within_their_run(run: str, one: str, other: str) -> None:
    first, second = sorted((one, other))
    if first[: items.HEAD] != second[: items.HEAD]:
        assert items.sort_key(run, first) < items.sort_key(run, second)
    prefix = items.run_prefix(run)
    assert prefix <= items.sort_key(run, one) < prefix[:-1] + chr(ord(prefix[-1]) + 1)


def test_runs_never_reach_into_each_other() -> None:
    runs = ["", "|", "a", "a|", "a|b", "a\\", "a}", "r" * 100, "r" * 101]
    prefixes = [items.run_prefix(run) for run in runs]
    for one, other in itertools.permutations(prefixes, 2):
        assert not one.startswith(other)


def test_keys_of_any_length_fit() -> None:
    for text in ("k" * 5000, "é" * 5000, "😀" * 5000):
        key = items.table_key(Key(text, text, text))
        assert len(key["sourceIdentifier"]["S"].encode()) <= 2048
        assert len(key["sourcePartitionKey"]["S"].encode()) <= 1024
        item = items.item_of(make_row(text, pipeline=text, run=text), None)
        assert len(item["sourceStatusCombinationKey"]["S"].encode()) <= 2048
        assert len(item["partitionPriority"]["S"].encode()) <= 1024
        assert items.lease_of(item).key == text


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_times_sort_as_text(one: float, other: float) -> None:
    if one < other:
        assert items.sortable(one) < items.sortable(other)
        assert items.just_above(one) <= items.sortable(other)
    assert items.sortable(one) + "\U0010ffff" < items.just_above(one)


def test_rows_rank_in_order_of_claim() -> None:
    rows = [
        make_row("a", status=Status.ASSIGNED, due_at=5.0),
        make_row("b", status=Status.ASSIGNED, due_at=6.0),
        make_row("c", status=Status.CLOSED, due_at=1.0),
        make_row("d", priority=9, ordinal=1),
        make_row("e", priority=-9, ordinal=1),
        make_row("f", priority=-9, ordinal=2),
        make_row("g", priority=-9, ordinal=2),
        make_row("h", status=Status.ASSIGNED, due_at=None),
    ]
    ranks = [items.rank(row) for row in rows]
    assert ranks == sorted(ranks)


@pytest.mark.parametrize(
    ("pipeline", "indexed"),
    [
        ("orders", True),
        ("prefix|orders", True),
        ("a/b", True),
        ("$nodes", False),
        ("x|$nodes", False),
        ("a/$run", False),
    ],
)
def test_books_are_not_in_the_index(pipeline: str, indexed: bool) -> None:
    assert items.is_indexed(pipeline) is indexed


def test_an_item_beyond_the_limit_of_dynamodb_is_refused_before_it_is_sent() -> None:
    row = make_row("k" * 50_000, state="x" * (items.BODY_BYTES - 200))
    with pytest.raises(RowTooLarge, match="409600"):
        items.item_of(row, None)


# --- who we are ------------------------------------------------------------------------------------------------------


class _Sts(BaseHTTPRequestHandler):
    requests: list[dict[str, list[str]]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.requests.append(parse_qs(body))
        answer = (
            b"<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>ROLEKEY</AccessKeyId>"
            b"<SecretAccessKey>s</SecretAccessKey><SessionToken>token</SessionToken>"
            b"<Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"
        )
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def test_a_role_is_assumed_with_its_external_id(monkeypatch: pytest.MonkeyPatch) -> None:
    _Sts.requests = []
    with HTTPServer(("127.0.0.1", 0), _Sts) as sts:
        threading.Thread(target=sts.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{sts.server_port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "own")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "own")
        client = connect(config(sts_role_arn="arn:aws:iam::1:role/leases", sts_external_id="outside"), 1)
        keys = client._request_signer._credentials.get_frozen_credentials()
        sts.shutdown()
    assert (keys.access_key, keys.token) == ("ROLEKEY", "token")
    (request,) = _Sts.requests
    assert (request["RoleArn"], request["ExternalId"]) == (["arn:aws:iam::1:role/leases"], ["outside"])


def test_the_sdk_repeats_nothing_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "7")
    monkeypatch.setenv("AWS_RETRY_MODE", "adaptive")
    assert connect(config(), 1).meta.config.retries == {"total_max_attempts": 1, "mode": "standard"}
