"""Token files, logins and rates, without a server."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

import pytest

from holdfast.errors import UsageError
from holdfast.web.access import Role
from holdfast.web.entrance import Entrance
from holdfast.web.limits import Rate
from holdfast.web.logins import LASTS, MOST, Logins
from holdfast.web.tokens import ProcessToken, TokenFile, digest_of, holder_of

ANA, SCREEN = "ana-0123456789abcdef", "screen-0123456789abcdef"


def token_file(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "tokens"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_tokens_are_written_as_they_are_or_as_hashes(tmp_path: Path) -> None:
    hashed = sha256(ANA.encode()).hexdigest()
    tokens = TokenFile(token_file(tmp_path, f"# people\nadmin ana sha256:{hashed}\n\nviewer screen {SCREEN}\n"))
    ana, screen = holder_of(tokens, ANA), holder_of(tokens, SCREEN)
    assert ana is not None
    assert screen is not None
    assert (ana.name, ana.role, screen.name, screen.role) == ("ana", Role.ADMIN, "screen", Role.VIEWER)
    assert holder_of(tokens, hashed) is None
    assert holder_of(tokens, f"sha256:{hashed}") is None
    assert holder_of(tokens, "") is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_token_file_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(UsageError, match="chmod 600"):
        TokenFile(token_file(tmp_path, f"admin ana {ANA}\n", mode))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no tokens"),
        ("admin ana\n", ":1: expected ROLE NAME TOKEN"),
        (f"root ana {ANA}\n", ":1: the role is viewer, operator or admin"),
        (f"admin <b> {ANA}\n", ":1: a name has"),
        ("admin ana short\n", ":1: a token has 20 characters"),
        ("admin ana sha256:0123456789abcdef\n", ":1: a token has 20 characters"),
    ],
)
def test_what_is_wrong_in_a_token_file_is_named_without_the_token(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as raised:
        TokenFile(token_file(tmp_path, text))
    assert ANA not in str(raised.value)


def test_a_token_has_one_holder(tmp_path: Path) -> None:
    token = "0123456789abcdef01234567"
    with pytest.raises(UsageError, match="the same token twice"):
        TokenFile(token_file(tmp_path, f"viewer vera {token}\nadmin ana sha256:{digest_of(token)}\n"))


def test_who_is_removed_from_the_file_is_out_and_a_broken_file_lets_nobody_in(tmp_path: Path) -> None:
    reported: list[str] = []
    path = token_file(tmp_path, f"admin ana {ANA}\nviewer screen {SCREEN}\n")
    logins = Logins(TokenFile(path, reported.append))
    cookie = logins.begin(ANA) or ""
    assert logins.of_cookie(cookie) is not None
    token_file(tmp_path, f"viewer screen {SCREEN}\n")
    assert logins.of_cookie(cookie) is None
    assert logins.of_token(SCREEN) is not None
    path.chmod(0o644)
    assert logins.of_token(SCREEN) is None
    assert logins.of_token(SCREEN) is None
    assert len(reported) == 1
    path.chmod(0o600)
    assert logins.of_token(SCREEN) is not None


def test_a_role_that_changes_in_the_file_changes_for_who_is_logged_in(tmp_path: Path) -> None:
    path = token_file(tmp_path, f"admin ana {ANA}\n")
    logins = Logins(TokenFile(path))
    cookie = logins.begin(ANA) or ""
    token_file(tmp_path, f"viewer ana {ANA}\n")
    os.utime(path, ns=(1, 1))
    viewer = logins.of_cookie(cookie)
    assert viewer is not None
    assert viewer.role is Role.VIEWER
    assert not viewer.may("operator")


def test_a_login_ends_after_half_a_day_and_when_there_are_too_many() -> None:
    now = [0.0]
    logins = Logins(ProcessToken(ANA), clock=lambda: now[0])
    first = logins.begin(ANA) or ""
    now[0] = LASTS - 1
    assert logins.of_cookie(first) is not None
    now[0] = LASTS
    assert logins.of_cookie(first) is None
    kept = logins.begin(ANA) or ""
    for _ in range(MOST):
        logins.begin(ANA)
    assert logins.of_cookie(kept) is None


def test_a_rate_allows_a_burst_and_then_as_many_as_time_brings() -> None:
    now = [0.0]
    rate = Rate(2.0, 3, clock=lambda: now[0])
    assert [rate.allows("a") for _ in range(4)] == [True, True, True, False]
    assert rate.allows("b")
    assert rate.wait("a") == 1
    now[0] = 1.0
    assert [rate.allows("a") for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize("host", ["0.0.0.0", "", "192.0.2.1", "dash.example.com"])  # noqa: S104 - nothing listens there
def test_beyond_loopback_a_token_file_and_tls_or_a_proxy_are_needed(tmp_path: Path, host: str) -> None:
    path = token_file(tmp_path, f"admin ana {ANA}\n")
    with pytest.raises(UsageError, match="--token-file"):
        Entrance(host)
    with pytest.raises(UsageError, match="--tls-cert"):
        Entrance(host, token_file=path)
    entrance = Entrance(host, token_file=path, behind_proxy=True, allowed_hosts=["dash.example.com"])
    access, url = entrance.access(8600, lambda _message: None)
    assert "dash.example.com" in access.hosts
    assert "token" not in url
    assert entrance.served_with()["proxy_headers"]
    assert (
        Entrance(host, token_file=path, tls_cert=path, tls_key=path, allowed_hosts=["a"])
        .access(1, print)[1]
        .startswith("https://")
    )


def test_every_address_needs_the_name_that_viewers_type(tmp_path: Path) -> None:
    path = token_file(tmp_path, f"admin ana {ANA}\n")
    with pytest.raises(UsageError, match="--allowed-host"):
        Entrance("0.0.0.0", token_file=path, behind_proxy=True)  # noqa: S104 - nothing listens there


def test_on_loopback_a_token_is_made_for_the_process() -> None:
    access, url = Entrance("127.0.0.1").access(8600, print)
    other, other_url = Entrance("127.0.0.1").access(8600, print)
    assert url.startswith("http://127.0.0.1:8600/login?token=")
    assert url != other_url
    assert access.tokens is not None
    assert other.tokens is not None
    assert holder_of(access.tokens, url.partition("=")[2]) is not None
    assert holder_of(other.tokens, url.partition("=")[2]) is None


def test_options_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = token_file(tmp_path, f"admin ana {ANA}\n")
    for wrong, problem in (
        ({"tls_cert": path}, "belong together"),
        ({"tls_cert": tmp_path / "no", "tls_key": path}, "there is no file"),
        ({"base_path": "holdfast"}, "--base-path"),
        ({"base_path": "/a b"}, "--base-path"),
        ({"read_only": True, "allow_edit": True}, "exclude each other"),
        ({"behind_proxy": True}, "--token-file"),
    ):
        with pytest.raises(UsageError, match=problem):
            Entrance("127.0.0.1", **wrong)
