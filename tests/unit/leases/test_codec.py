from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import RowTooLarge
from holdfast.leases.codec import decode, encode_body, encode_within, take_stored
from holdfast.leases.columns import Columns, columns
from holdfast.leases.lease import Commit, Counts, History, Lease, Progress, Status
from holdfast.leases.store import ClaimRequest
from holdfast.testing.rows import make_row
from holdfast.testing.store_rows import FULL_ROW


def round_trip(lease: Lease) -> Lease:
    return decode(columns(lease), encode_body(lease))


@pytest.mark.parametrize("lease", [FULL_ROW, Lease("p", "k"), make_row("k", state={}, position=0, created_at=0.0)])
def test_a_lease_survives_the_round_trip(lease: Lease) -> None:
    assert round_trip(lease) == lease


def test_a_body_that_is_not_utf8_is_never_refused() -> None:
    body = b"caf\xe9".decode("utf-8", "surrogateescape")
    assert encode_within(replace(make_row("k"), unreadable=body), 1) == body


def test_values_as_in_a_new_row_take_no_room_but_what_fences_is_written_out() -> None:
    body = json.loads(encode_body(Lease("p", "k")))
    assert body == {
        "v": 1, "spec": {}, "write_id": "", "position": None, "sequence": 0, "generation": 1, "incarnation": "",
    }  # fmt: skip


def test_falsy_values_that_are_no_defaults_are_kept() -> None:
    lease = replace(
        make_row("k", state=0, position=0, work_units=0, range_start=0, created_at=0.0, last_error=""),
        commit=Commit(receipts={}),
    )
    assert round_trip(lease) == lease
    assert round_trip(lease).progress.state == 0
    assert round_trip(lease).history.created_at == 0.0


def test_what_a_later_version_wrote_is_kept() -> None:
    body = {**json.loads(encode_body(make_row("k"))), "colour": "red", "shape": {"sides": 3}}
    lease = decode(columns(make_row("k")), json.dumps(body))
    assert lease.unreadable is None
    changed = replace(lease, history=History(attempts=1))
    assert json.loads(encode_body(changed))["colour"] == "red"
    assert round_trip(changed).extra == {"colour": "red", "shape": {"sides": 3}}


def test_what_an_earlier_version_did_not_write_has_its_default() -> None:
    body = json.loads(encode_body(FULL_ROW))
    del body["halt_reason"], body["takeovers"], body["estimated_count"]
    lease = decode(columns(FULL_ROW), json.dumps(body))
    assert (lease.unreadable, lease.history.halt_reason, lease.history.takeovers) == (None, None, 0)
    assert lease.history.attempts == FULL_ROW.history.attempts


@pytest.mark.parametrize(
    "body",
    ["", "{", "null", "[]", "7", '"text"', "{}", '{"v":2}', encode_body(FULL_ROW)[:-1], encode_body(FULL_ROW)[:40]],
)
def test_a_body_that_cannot_be_read_is_marked_and_kept(body: str) -> None:
    lease = decode(columns(FULL_ROW), body)
    assert lease.unreadable == body
    assert columns(lease) == columns(FULL_ROW)
    assert encode_body(lease) == body
    assert encode_within(lease, 1) == body


@pytest.mark.parametrize("missing", ["v", "spec", "write_id", "position", "sequence", "generation", "incarnation"])
def test_a_body_without_what_fences_or_resumes_is_unreadable(missing: str) -> None:
    body = json.loads(encode_body(FULL_ROW))
    del body[missing]
    assert decode(columns(FULL_ROW), json.dumps(body)).unreadable is not None


def test_a_row_with_a_status_of_a_later_version_is_left_alone() -> None:
    row = columns(FULL_ROW)._replace(status="PAUSED")
    lease = decode(row, encode_body(FULL_ROW))
    assert (lease.status, lease.unreadable) == (Status.FAILED, encode_body(FULL_ROW))


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]) | st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF)))
def test_any_error_text_can_be_stored_as_utf8(text: str) -> None:
    lease = make_row("k", last_error=text + "\udc80")
    encode_body(lease).encode()
    assert round_trip(lease) == lease


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_stored_text_is_a_lease_or_unreadable(body: bytes) -> None:
    row = Columns("p", "", "k", "", "ASSIGNED", "me", 1, 2, None, 0, 0)
    assert decode(row, body.decode(errors="replace")).key == "k"


def test_the_limit_counts_bytes_and_what_users_put_in() -> None:
    lease = make_row("k", state="é" * 1000)
    size = len(encode_body(lease).encode())
    assert encode_within(lease, size) == encode_body(lease)
    with pytest.raises(RowTooLarge, match=f"'k'.*{size} bytes.*{size - 1}"):
        encode_within(lease, size - 1)
    noted = replace(lease, history=History(attempts=9, last_error="x" * 900))
    assert encode_within(noted, size) == encode_body(noted)


# --- claims ------------------------------------------------------------------------------------------------------

CLAIM = ClaimRequest("p", "me", "claim", ownership_timeout=60.0)
CLAIMABLE = [
    make_row("k"),
    make_row("k", state={"a": [1]}, position=0, created_at=1.0, write_id="w", token=3, version=9),
    make_row("k", status=Status.CLOSED, due_at=5.0, closed_count=2, takeovers=1, started_at=2.0),
    make_row("k", status=Status.ASSIGNED, owner="dead", due_at=5.0, started_at=0.0, claimed_at=1.0, last_error="é"),
    make_row("k", status=Status.ASSIGNED, owner="dead", due_at=5.0, takeovers=2, begun=False),
    make_row("k", status=Status.ASSIGNED, owner="dead", due_at=5.0, takeovers=2, begun=True),
    make_row("k", status=Status.ASSIGNED, owner="me", due_at=5.0, takeovers=2, begun=True),
    replace(FULL_ROW, ownership=replace(FULL_ROW.ownership, due_at=5.0)),
]


@pytest.mark.parametrize("lease", CLAIMABLE)
@pytest.mark.parametrize("claim", [CLAIM, replace(CLAIM, ownership_timeout=None)])
def test_taking_a_stored_row_is_what_take_makes_of_its_lease(lease: Lease, claim: ClaimRequest) -> None:
    wanted = claim.take(lease, 77.5)
    taken = take_stored(columns(lease), encode_body(lease), claim, 77.5)
    assert taken.lease == wanted
    assert taken.row == columns(wanted)
    assert decode(taken.row, taken.body) == wanted
    assert json.loads(taken.body) == json.loads(encode_body(wanted))


def test_a_row_whose_start_was_written_as_null_starts_with_the_claim() -> None:
    body = {**json.loads(encode_body(make_row("k"))), "started_at": None}
    taken = take_stored(columns(make_row("k")), json.dumps(body), CLAIM, 77.5)
    assert taken.lease.history.started_at == 77.5


@pytest.mark.parametrize("change", [{"takeovers": "many"}, {"write_id": ...}, {"position": ...}, {"v": 2}])
def test_a_stored_row_that_cannot_be_taken_is_given_back_as_it_is(change: dict[str, object]) -> None:
    row = columns(make_row("k", status=Status.ASSIGNED, owner="dead"))
    parts = {**json.loads(encode_body(make_row("k"))), **change}
    body = json.dumps({name: value for name, value in parts.items() if value is not ...})
    taken = take_stored(row, body, CLAIM, 77.5)
    assert (taken.row, taken.body, taken.lease.unreadable) == (row, body, body)
    assert taken.lease.owner == "dead"


@pytest.mark.parametrize("counts", [Counts(5, 4, 0, 1, 7), Counts(dropped=7), Counts(5, 5), Counts()])
def test_dropped_rows_are_kept_beside_the_counts_that_older_nodes_read(counts: Counts) -> None:
    lease = Lease("p", "k", progress=Progress(counts=counts))
    assert round_trip(lease).progress.counts == counts
    body = json.loads(encode_body(lease))
    assert len(body.get("counts", "1234")) == 4
    assert body.get("dropped", 0) == counts.dropped
