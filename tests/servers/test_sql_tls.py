"""PostgreSQL and MariaDB with TLS: which certificates the stores trust. `is_local` is off, as for another host."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.config import sql_tls
from holdfast.errors import StoreError, StoreUnavailable
from tests.servers.databases import Database, Mariadb, Postgresql
from tests.servers.processes import MariadbServer, PostgresqlServer, certificate, running


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    # Not pytest's folder, which the servers' user may not enter.
    with tempfile.TemporaryDirectory(prefix="holdfast-tls-") as name:
        Path(name).chmod(0o755)
        certificate(Path(name), "server")
        certificate(Path(name), "other")
        yield Path(name)


@pytest.fixture(scope="module", params=["postgresql", "mysql"])
def database(request: pytest.FixtureRequest, folder: Path) -> Iterator[Database]:
    """A server that has a certificate."""
    file, key = str(folder / "server.pem"), str(folder / "server.key")
    if request.param == "postgresql":
        with running(PostgresqlServer, ssl="on", ssl_cert_file=file, ssl_key_file=key) as server:
            yield Postgresql(server)
    else:
        with running(MariadbServer, **{"ssl-cert": file, "ssl-key": key}) as mariadb:
            yield Mariadb(mariadb)


@pytest.fixture(autouse=True)
def _as_on_another_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_tls, "is_local", lambda _host: False)
    monkeypatch.setenv("HOME", str(tmp_path))


def encrypted(database: Database, **settings: Any) -> bool:
    """Whether a store that is opened with these settings speaks TLS."""
    store: Any = database.make_store(**settings)
    try:
        store.open()
        with store._connections.lent() as db:
            cursor = db.cursor()
            if isinstance(database, Postgresql):
                cursor.execute("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
                return bool(cursor.fetchone()[0])
            cursor.execute("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
            return bool(cursor.fetchone()[1])
    finally:
        store.close()


def refusal(database: Database, **settings: Any) -> str:
    with pytest.raises((StoreError, StoreUnavailable)) as caught:
        encrypted(database, **settings)
    return str(caught.value)


def test_the_right_authority_is_trusted(database: Database, folder: Path) -> None:
    assert encrypted(database, tls={"ca": folder / "server.pem"})


def test_authorities_of_the_system_are_trusted(
    database: Database, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(folder / "server.pem"))
    assert encrypted(database)
    monkeypatch.setenv("SSL_CERT_FILE", str(folder / "other.pem"))
    assert "tls.ca" in refusal(database)


def test_another_authority_is_not_trusted(database: Database, folder: Path) -> None:
    assert "tls.ca" in refusal(database, tls={"ca": folder / "other.pem"})


def test_a_certificate_of_another_host_is_refused_unless_names_do_not_matter(database: Database, folder: Path) -> None:
    tls = {"ca": folder / "server.pem"}
    assert "tls.mode" in refusal(database, host="localhost", tls=tls)
    assert encrypted(database, tls={**tls, "mode": "verify-ca"})


def test_verification_is_turned_off_by_name(database: Database) -> None:
    assert encrypted(database, tls={"mode": "require"})
    assert not encrypted(database, tls={"mode": "disable"})


def test_a_server_without_tls_is_refused(postgresql_server: PostgresqlServer, mariadb_server: MariadbServer) -> None:
    for plain in (Postgresql(postgresql_server), Mariadb(mariadb_server)):
        assert "tls.mode" in refusal(plain)
        assert not encrypted(plain, tls={"mode": "disable"})
