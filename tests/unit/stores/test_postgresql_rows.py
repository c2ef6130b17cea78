"""Rows of PostgreSQL as they are read, without a server."""

from __future__ import annotations

import json

from holdfast.leases.codec import encode_body
from holdfast.leases.columns import columns
from holdfast.leases.lease import Lease, Ownership, Status
from holdfast.stores.postgresql.statements import lease_after_claim

HELD = Lease("p", "k", ownership=Ownership(Status.ASSIGNED, "b", 3, 4, "w1"))


def after_claim(claim_id: str) -> Lease:
    return lease_after_claim(columns(HELD), encode_body(HELD), json.dumps(claim_id), 9.0, None, 0)


def test_fields_that_a_later_version_adds_to_former_owners_are_left_out() -> None:
    row = after_claim('[[2, "a", null, "of a later version"]]\n"w2"')
    assert (row.ownership.write_id, row.unreadable) == ("w2", None)
    assert [tenure[:2] for tenure in row.history.tenures] == [[2, "a"]]


def test_a_claim_that_cannot_be_read_makes_its_row_unreadable_and_raises_nothing() -> None:
    for claim_id in ('[[2]]\n"w2"', "[[2", "[[1, null, null]]"):
        assert after_claim(claim_id).unreadable is not None
