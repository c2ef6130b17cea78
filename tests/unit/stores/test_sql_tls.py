"""Connections to SQL servers on other hosts are encrypted and verified unless the settings say otherwise."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict
from pydantic import ValidationError

from holdfast.config.secrets import Secret
from holdfast.errors import StoreError
from holdfast.stores.mysql import MysqlConfig
from holdfast.stores.mysql import connection as mysql
from holdfast.stores.postgresql import PostgresqlConfig
from holdfast.stores.postgresql import connection as postgresql


def postgresql_words(**settings: Any) -> dict[str, Any]:
    return conninfo_to_dict(postgresql._conninfo(PostgresqlConfig.model_validate(settings)))


def mysql_words(**settings: Any) -> dict[str, Any]:
    config = MysqlConfig.model_validate(settings)
    return mysql._tls(mysql._server(config).host, config)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("PGSSLROOTCERT", "PGHOST"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


class TestPostgresql:
    @pytest.mark.parametrize(
        ("settings", "mode"),
        [
            ({"host": "db"}, "verify-full"),
            ({"host": "localhost,db"}, "verify-full"),
            ({"url": Secret("postgresql://u:p@db/leases")}, "verify-full"),
            ({"url": Secret("postgresql://u:p@localhost/leases?hostaddr=10.0.0.1")}, "verify-full"),
            ({"url": Secret("postgresql:///leases?service=prod")}, "verify-full"),
            ({"url": Secret("postgresql://u:p@db/leases?sslmode=require")}, "require"),
            ({"url": Secret("postgresql://u:p@db/leases?sslmode=require"), "tls": {"mode": "disable"}}, "disable"),
            ({"host": "db", "tls": {"mode": "disable"}}, "disable"),
            ({"host": "db", "tls": {"mode": "prefer"}}, "prefer"),
            ({"host": "localhost", "tls": {"mode": "verify-full"}}, "verify-full"),
            ({"host": "localhost"}, None),
            ({"host": "127.0.0.1,::1"}, None),
            ({"host": "/run/postgresql"}, None),
            ({"url": Secret("postgresql:///leases")}, None),
            ({"url": Secret("postgresql://u:p@%2Frun%2Fpostgresql/leases")}, None),
        ],
    )
    def test_a_server_on_another_host_is_verified(self, settings: dict[str, Any], mode: str | None) -> None:
        assert postgresql_words(**settings).get("sslmode") == mode

    def test_the_host_may_come_from_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PGHOST", "db")
        assert postgresql_words(url=Secret("postgresql:///leases"))["sslmode"] == "verify-full"

    def test_authorities_are_those_of_the_system_unless_given(
        self, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bundle = tmp_path / "bundle.pem"
        bundle.touch()
        monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
        assert postgresql_words(host="db")["sslrootcert"] == str(bundle)
        assert postgresql_words(host="db", tls={"ca": "/ca.pem"})["sslrootcert"] == "/ca.pem"
        of_url = Secret("postgresql://db/leases?sslrootcert=/url.pem")
        assert postgresql_words(url=of_url)["sslrootcert"] == "/url.pem"
        assert "sslrootcert" not in postgresql_words(host="localhost")
        # libpq reads both of these by itself.
        (home / ".postgresql").mkdir()
        (home / ".postgresql/root.crt").touch()
        assert "sslrootcert" not in postgresql_words(host="db")
        (home / ".postgresql/root.crt").unlink()
        monkeypatch.setenv("PGSSLROOTCERT", "/environment.pem")
        assert "sslrootcert" not in postgresql_words(host="db")


class TestMysql:
    @pytest.mark.parametrize("settings", [{"host": "db"}, {"url": Secret("mysql://u:p@db/leases")}])
    def test_a_server_on_another_host_is_verified(self, settings: dict[str, Any]) -> None:
        context = mysql_words(**settings)["ssl"]
        assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)

    def test_it_can_be_turned_off_by_name(self) -> None:
        assert mysql_words(host="db", tls={"mode": "disable"}) == {"ssl_disabled": True}
        context = mysql_words(host="db", tls={"mode": "require"})["ssl"]
        assert (context.verify_mode, context.check_hostname) == (ssl.CERT_NONE, False)

    @pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1"])
    def test_a_server_on_this_host_is_not_unless_the_settings_say_so(self, host: str) -> None:
        assert mysql_words(host=host) == {}
        assert mysql_words(host=host, tls={"mode": "verify-full"})["ssl"].check_hostname

    @pytest.mark.parametrize("loosened", [{"check_host": False}, {"mode": "verify-ca"}])
    def test_the_name_of_the_host_matters_unless_your_own_authority_signs(self, loosened: dict[str, Any]) -> None:
        with pytest.raises(ValidationError, match="needs ca"):
            MysqlConfig.model_validate({"host": "db", "tls": loosened})

    def test_the_mode_and_check_host_cannot_contradict(self) -> None:
        with pytest.raises(ValidationError, match="mode already says"):
            MysqlConfig.model_validate({"tls": {"mode": "verify-full", "ca": "/ca.pem", "check_host": False}})

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match=r"tls: .*nope.pem"):
            mysql_words(host="db", tls={"ca": tmp_path / "nope.pem"})
