"""The jars of the connector: the same everywhere, fetched from a repository, checked by their SHA-256."""

from __future__ import annotations

import base64
import hashlib
import socket
import sys
import threading
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from holdfast.errors import Unavailable, UsageError
from holdfast.spark import connector
from holdfast.spark.connector import CENTRAL, JARS, Jar, Repository, connector_jars, install_connector, repository_of

RECIPE = Path(__file__).parents[3] / "scripts" / "jars" / "spark-kafka"
MAVEN = "{http://maven.apache.org/POM/4.0.0}"
CONTENT = {"a": b"first jar", "b": b"second jar"}
FAKES = tuple(Jar("org.example", name, "1.0", hashlib.sha256(bytes_).hexdigest()) for name, bytes_ in CONTENT.items())


@dataclass
class Maven:
    """A Maven repository on loopback."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    moved_to: str = ""
    """The repository to which every request is redirected; none if empty."""
    requests: list[tuple[str, str | None]] = field(default_factory=list)


@contextmanager
def running() -> Iterator[Maven]:
    repository = Maven(files={f"/m2/{jar.path}": CONTENT[jar.artifact] for jar in FAKES})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            repository.requests.append((self.path, self.headers.get("Authorization")))
            found = repository.files.get(self.path)
            if repository.moved_to:
                self.send_response(302)
                self.send_header("Location", repository.moved_to + self.path.removeprefix("/m2/"))
            else:
                self.send_response(404 if found is None else 200)
            self.end_headers()
            self.wfile.write(found or b"")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as above
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        repository.url = f"http://127.0.0.1:{server.server_port}/m2/"
        yield repository
        server.shutdown()


@pytest.fixture
def maven(monkeypatch: pytest.MonkeyPatch) -> Iterator[Maven]:
    monkeypatch.setattr(connector, "JARS", FAKES)
    with running() as repository:
        yield repository


def test_jars_are_fetched_once_and_checked(maven: Maven, tmp_path: Path) -> None:
    said: list[str] = []
    assert install_connector(Repository(maven.url), tmp_path / "new", said.append) == 2
    assert {file.name: file.read_bytes() for file in (tmp_path / "new").iterdir()} == {
        "a-1.0.jar": b"first jar",
        "b-1.0.jar": b"second jar",
    }
    assert len(said) == 2
    assert install_connector(Repository(maven.url), tmp_path / "new", said.append) == 0
    (tmp_path / "new" / "a-1.0.jar").write_bytes(b"altered")
    assert install_connector(Repository(maven.url), tmp_path / "new", said.append) == 1
    assert [path for path, _ in maven.requests] == [
        "/m2/org/example/a/1.0/a-1.0.jar",
        "/m2/org/example/b/1.0/b-1.0.jar",
        "/m2/org/example/a/1.0/a-1.0.jar",
    ]


def test_other_bytes_are_refused_and_not_kept(maven: Maven, tmp_path: Path) -> None:
    maven.files["/m2/org/example/a/1.0/a-1.0.jar"] = b"of somebody else"
    with pytest.raises(UsageError, match=r"has other bytes as org\.example:a:1\.0: SHA-256"):
        install_connector(Repository(maven.url), tmp_path, print)
    assert list(tmp_path.iterdir()) == []


def test_a_repository_without_the_jar_or_without_an_answer_is_named(maven: Maven, tmp_path: Path) -> None:
    maven.files.clear()
    with pytest.raises(Unavailable, match=r"has no org\.example:a:1\.0: 404"):
        install_connector(Repository(maven.url), tmp_path, print)
    with pytest.raises(Unavailable, match=r"http://127\.0\.0\.1:1/ does not respond"):
        install_connector(Repository("http://127.0.0.1:1/"), tmp_path, print)


SETTINGS = """<settings xmlns="http://maven.apache.org/SETTINGS/1.0.0">
  <servers><server><id>house</id><username>me</username><password>secret</password></server></servers>
  <mirrors>
    <mirror><id>blocker</id><mirrorOf>external:http:*</mirrorOf><url>http://0.0.0.0/</url></mirror>
    <mirror><id>other</id><mirrorOf>*,!central</mirrorOf><url>https://other.example/</url></mirror>
    <mirror><id>house</id><mirrorOf>central</mirrorOf><url>{url}</url></mirror>
  </mirrors>
</settings>"""


def test_the_mirror_of_the_users_settings_is_used_with_its_password(maven: Maven, tmp_path: Path) -> None:
    settings = tmp_path / "settings.xml"
    settings.write_text(SETTINGS.format(url=maven.url))
    install_connector(repository_of(None, settings), tmp_path / "jars", print)
    expected = f"Basic {base64.b64encode(b'me:secret').decode()}"
    assert {authorization for _, authorization in maven.requests} == {expected}


def test_the_password_is_not_sent_to_where_the_repository_redirects(maven: Maven, tmp_path: Path) -> None:
    with running() as elsewhere:
        maven.moved_to = elsewhere.url
        assert install_connector(Repository(maven.url, "me", "s3cret"), tmp_path, print) == 2
    assert [authorization for _, authorization in elsewhere.requests] == [None, None]
    assert None not in [authorization for _, authorization in maven.requests]


def test_a_password_in_the_url_is_sent_and_never_shown(maven: Maven, tmp_path: Path) -> None:
    repository = repository_of(maven.url.replace("://", "://me:s3%40cret@"))
    assert repository == Repository(maven.url, "me", "s3@cret")
    assert "cret" not in repr(repository)
    install_connector(repository, tmp_path / "jars", print)
    expected = f"Basic {base64.b64encode(b'me:s3@cret').decode()}"
    assert {authorization for _, authorization in maven.requests} == {expected}
    maven.files.clear()
    with pytest.raises(Unavailable, match="has no") as caught:
        install_connector(repository, tmp_path / "other", print)
    assert "cret" not in str(caught.value)


def test_a_password_in_the_mirrors_url_is_used_if_the_settings_have_none(tmp_path: Path) -> None:
    settings = tmp_path / "settings.xml"
    settings.write_text(SETTINGS.format(url="https://me:s3cret@repo.example/").replace("<id>house</id><user", "<user"))
    assert repository_of(None, settings) == Repository("https://repo.example/", "me", "s3cret")


@pytest.mark.parametrize(
    "url",
    ["ftp://me:s3cret@repo/maven", "me:s3cret@repo/maven", "https://me:s3cret/@repo/maven", "https://me:s3cret@[repo/"],
)
def test_a_wrong_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(UsageError, match=r"repo/.* is not a URL of a Maven repository") as caught:
        repository_of(url)
    assert "s3cret" not in str(caught.value)


def test_a_response_that_is_not_http_or_too_short_is_reported(tmp_path: Path) -> None:
    for response in (b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort"):
        with socket.create_server(("127.0.0.1", 0)) as server:
            threading.Thread(target=respond, args=(server, response), daemon=True).start()
            url = f"http://127.0.0.1:{server.getsockname()[1]}/"
            with pytest.raises(Unavailable, match=f"{url} does not respond as HTTP"):
                install_connector(Repository(url), tmp_path, print)


def respond(server: socket.socket, response: bytes) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(response)


def test_which_repository_is_used(tmp_path: Path) -> None:
    assert repository_of(None, tmp_path / "missing.xml") == Repository(CENTRAL)
    assert repository_of("https://repo.example/", tmp_path / "missing.xml").url == "https://repo.example/"
    (tmp_path / "settings.xml").write_text("<settings><mirrors/></settings>")
    assert repository_of(None, tmp_path / "settings.xml") == Repository(CENTRAL)
    (tmp_path / "settings.xml").write_text("<settings")
    with pytest.raises(UsageError, match=r"cannot be read: .*--repository"):
        repository_of(None, tmp_path / "settings.xml")
    with pytest.raises(UsageError, match="is not a URL of a Maven repository"):
        repository_of("/etc", tmp_path)


def test_the_recipe_of_maven_has_the_same_jars() -> None:
    pom = ET.parse(RECIPE.with_suffix(".xml"))  # noqa: S314 - a file of ours
    named = [
        ":".join(str(dependency.findtext(MAVEN + part)) for part in ("groupId", "artifactId", "version"))
        for dependency in pom.iter(f"{MAVEN}dependency")
    ]
    lines = [line.split() for line in RECIPE.with_suffix(".sha256").read_text().splitlines()]
    assert named == [jar.coordinates for jar in JARS]
    assert {name: sha256 for sha256, name in lines} == {jar.name: jar.sha256 for jar in JARS}


def test_a_missing_jar_is_named_with_the_way_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    folder = tmp_path / "share" / "holdfast" / "jars"
    folder.mkdir(parents=True)
    for jar in JARS:
        (folder / jar.name).touch()
    assert sorted(connector_jars()) == sorted(folder.iterdir())
    (folder / "kafka-clients-3.9.2.jar").unlink()
    with pytest.raises(
        UsageError, match=r"holdfast connector install kafka.*there: org.apache.kafka:kafka-cli"
    ) as caught:
        connector_jars()
    assert str(folder) in str(caught.value)
