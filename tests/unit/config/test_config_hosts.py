"""Which hosts are this one, so that what is sent to them crosses no network."""

from __future__ import annotations

import pytest

from holdfast.config.hosts import is_local


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST.", "127.0.0.1", "127.8.9.1", "::1", "[::1]", "::ffff:127.0.0.1", "/run/db", "@db", ""],
)
def test_what_stays_on_this_host(host: str) -> None:
    assert is_local(host)


@pytest.mark.parametrize(
    "host", ["db", "localhost.example", "10.0.0.1", "::", "::2", "127.0.0.1.example", "127.1", "[::1", "*"]
)
def test_what_may_cross_a_network(host: str) -> None:
    assert not is_local(host)
