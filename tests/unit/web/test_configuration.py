"""The configuration file on a page: shown as written, checked by line, saved by digest, by admins and if allowed."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from holdfast import assemble
from holdfast.errors import Refused
from holdfast.leases.lease import Progress
from holdfast.leases.query import Query
from holdfast.leases.store import Swap
from holdfast.leases.world import host_world
from holdfast.web.access import Access
from holdfast.web.configuration_file import ConfigurationFile, FileText
from holdfast.web.readings import Readings
from holdfast.web.tokens import TokenFile
from tests.unit.web.serving import Served, served
from tests.unit.web.test_security import ADMIN, OPERATOR, VIEWER
from tests.unit.web.test_security import FILE as TOKENS
from tests.unit.web.test_tokens import token_file

TEXT = """\
# ours
source_coordination:
  store:
    sqlite: {{path: {folder}/leases.db}}
pipelines:
  orders:
    source:
      stream: {{name: orders, folder: {folder}/streams}}
    sinks:
      - function:
          handler: handler.py
          workers: 4  # as many as cores
          url: http://v3io-webapi:8081/users/orders@cg0
          password: ${{env:ACCESS_KEY}}
          on_error: {{after_retries: stop}}
"""
CHECK, SAVE, TRIGGER = (f"/api/v1/configuration:{name}" for name in ("check", "save", "trigger"))


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCESS_KEY", "resolved-0123")


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Served]:
    access = Access(tokens=TokenFile(token_file(tmp_path, TOKENS)))
    with served(tmp_path, access, file_text=TEXT, allow_edit=True) as found:
        yield found


@pytest.fixture
def client(board: Served) -> Iterator[httpx.Client]:
    with board.client(ADMIN) as found:
        yield found


def test_references_are_shown_as_written_and_never_resolved(board: Served, client: httpx.Client) -> None:
    file = client.get("/configuration?format=json").json()["file"]
    content = board.dashboard.file.read_bytes()
    assert (file["text"], file["digest"]) == (content.decode(), sha256(content).hexdigest())
    for page in (client.get("/configuration").text, client.get("/functions").text):
        assert "${env:ACCESS_KEY}" in page
        assert "resolved-0123" not in page


def test_problems_have_their_lines_and_no_values(board: Served, client: httpx.Client) -> None:
    text = board.dashboard.file.read_text()
    assert client.post(CHECK, json={"text": text}).json() == {"problems": []}
    wrong = text.replace("workers: 4", "workers: many").replace("handler:", "handlr:")
    problems = client.post(CHECK, json={"text": wrong}).json()["problems"]
    assert [problem["line"] for problem in problems] == [11, 12]
    unset = client.post(CHECK, json={"text": text.replace("ACCESS_KEY", "NO_SUCH_KEY")}).json()["problems"]
    assert [(problem["line"], "NO_SUCH_KEY" in problem["message"]) for problem in unset] == [(14, True)]
    body = {"text": text, "pipeline": "orders", "values": {"password": "hunter2"}}
    plain = client.post(CHECK, json=client.post(TRIGGER, json=body).json())
    assert ([problem["line"] for problem in plain.json()["problems"]], "hunter2" in plain.text) == ([14], False)
    assert client.post(CHECK, json={"text": "a: ["}).json()["problems"][0]["line"] == 1
    assert "resolved" not in client.post(CHECK, json={"text": text + "x: 1"}).text


def test_a_change_of_the_trigger_is_saved_with_references_comments_and_mode(
    board: Served, client: httpx.Client
) -> None:
    path = board.dashboard.file
    path.chmod(0o640)
    before = client.get("/configuration?format=json").json()["file"]
    values = {"workers": "8", "password": "${env:ACCESS_KEY}"}
    text = client.post(TRIGGER, json={"text": before["text"], "pipeline": "orders", "values": values}).json()["text"]
    saved = client.post(SAVE, json={"text": text, "expect": before["digest"], "reason": "more cores"})
    assert saved.status_code == 200, saved.text
    assert path.read_text() == before["text"].replace("workers: 4 ", "workers: 8 ")
    assert path.stat().st_mode & 0o777 == 0o640
    assert [each.name for each in path.parent.glob(".pipeline*")] == []
    assert client.get("/configuration?format=json").json()["file"]["text"] == text
    (entry,) = client.get("/api/v1/audit").json()
    found = [entry[name] for name in ("action", "who", "reason", "outcome")]
    assert found == ["configuration save", "ana", "more cores", "done"]


def test_a_file_that_has_changed_meanwhile_is_not_overwritten(board: Served, client: httpx.Client) -> None:
    before = client.get("/configuration?format=json").json()["file"]
    theirs = before["text"] + "# theirs\n"
    board.dashboard.file.write_text(theirs)
    body = {"text": before["text"] + "# mine\n", "expect": before["digest"], "reason": "x"}
    refused = client.post(SAVE, json=body)
    assert (refused.status_code, "has changed" in refused.json()["error"]) == (409, True)
    assert board.dashboard.file.read_text() == theirs


def test_a_wrong_text_is_not_saved(board: Served, client: httpx.Client) -> None:
    before = client.get("/configuration?format=json").json()["file"]
    wrong = before["text"].replace("workers: 4", "workers: many")
    refused = client.post(SAVE, json={"text": wrong, "expect": before["digest"], "reason": "x"})
    assert (refused.status_code, ":12:" in refused.json()["error"]) == (400, True)
    assert board.dashboard.file.read_text() == before["text"]


@pytest.mark.parametrize("token", [VIEWER, OPERATOR])
def test_only_an_admin_edits(board: Served, token: str) -> None:
    text = board.dashboard.file.read_text()
    digest = sha256(text.encode()).hexdigest()
    with board.client(token) as client:
        assert "<textarea" not in client.get("/configuration").text
        for path, body in ((CHECK, {}), (SAVE, {"expect": digest, "reason": "x"})):
            assert client.post(path, json={"text": text, **body}).status_code == 403


def test_without_allow_edit_nobody_edits(tmp_path: Path) -> None:
    with served(tmp_path, file_text=TEXT) as board, board.client() as client:
        page = client.get("/configuration").text
        assert ("<textarea" in page, "--allow-edit" in page) == (False, True)
        refused = client.post(CHECK, json={"text": "x"})
        assert (refused.status_code, "--allow-edit" in refused.json()["error"]) == (403, True)


@pytest.mark.parametrize(
    "text",
    [
        "allow_plaintext_secrets: true\npipelines: {}\n",
        "pipelines: {}\nalerts: {webhook: {url: x, password: hunter2}}\n",
        "a: [",
        "# password: hunter2\npipelines: {}\n",
        "pipelines: {} # was password: hunter2\n",
        "# password=hunter2\npipelines: {}\n",
        "environment: {PGDSN: 'host=a password=hunter2'}\npipelines: {}\n",
        "source: {url: 'http://h/path?access_key=hunter2'}\npipelines: {}\n",
        "spark: {conf: {spark.hadoop.fs.azure.account.key.acct: hunter2==}}\npipelines: {}\n",
    ],
)
def test_a_text_that_may_have_secrets_is_not_shown(text: str, tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(text)
    found = ConfigurationFile(path).read()
    assert (found.text, found.fault is None) == (None, False)
    assert "hunter2" not in str(found)


def test_comments_about_secrets_and_references_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text("# the token is in the vault; password: ${env:ACCESS_KEY}\npipelines: {}\n")
    assert ConfigurationFile(path).read().text == path.read_text()


def test_one_key_saves_one_text(board: Served, client: httpx.Client) -> None:
    before = client.get("/configuration?format=json").json()["file"]
    texts = [before["text"].replace("workers: 4", f"workers: {number}") for number in (5, 7)]
    bodies = [{"text": text, "expect": before["digest"], "reason": "x"} for text in texts]
    first, other = (client.post(SAVE, json=body, headers={"Idempotency-Key": "k"}) for body in bodies)
    assert (first.status_code, other.status_code) == (200, 400)
    assert board.dashboard.file.read_text() == texts[0]


def test_a_change_that_was_made_while_a_text_was_checked_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text("pipelines: {}\n")
    file = ConfigurationFile(path)
    digest, read = file.read().digest, ConfigurationFile.read

    def overtaken(self: ConfigurationFile) -> FileText:
        found = read(self)
        path.write_text("pipelines: {} # theirs\n")
        return found

    monkeypatch.setattr(ConfigurationFile, "read", overtaken)
    with pytest.raises(Refused, match="has changed"):
        file.save("pipelines: {} # mine\n", digest)
    assert path.read_text() == "pipelines: {} # theirs\n"


def test_a_saved_file_keeps_its_group(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may give a file to another group")
    path = tmp_path / "pipeline.yaml"
    path.write_text("pipelines: {}\n")
    os.chown(path, -1, 4242)
    file = ConfigurationFile(path)
    file.save("pipelines: {} # mine\n", file.read().digest)
    assert path.stat().st_gid == 4242


def test_a_folder_that_cannot_be_written_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text("pipelines: {}\n")
    file = ConfigurationFile(path)

    def denied(**_: object) -> tuple[int, str]:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(tempfile, "mkstemp", denied)
    with pytest.raises(Refused, match="cannot be replaced on this host: Permission denied"):
        file.save("pipelines: {} # mine\n", file.read().digest)


def test_line_breaks_and_byte_order_mark_stay(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_bytes(b"\xef\xbb\xbf# ours\r\npipelines: {}\r\n")
    file = ConfigurationFile(path)
    found = file.read()
    assert found.text == "# ours\npipelines: {}\n"
    file.save(found.text.replace("ours", "mine"), found.digest)
    assert path.read_bytes() == b"\xef\xbb\xbf# mine\r\npipelines: {}\r\n"


def join(board: Served, name: str) -> None:
    """Let a node join with the file as it is now."""
    settings = assemble.load_settings(board.dashboard.file)
    assemble.new_session(settings, board.store, host_world(lambda _event: None), pipelines=["orders"], name=name).join()


def test_nodes_that_have_read_another_text_of_the_file_are_named(tmp_path: Path) -> None:
    with served(tmp_path, file_text=TEXT, readings=Readings(every=0.0, share=0)) as board, board.client() as client:
        file = board.dashboard.file
        join(board, "early")
        assert client.get("/configuration?format=json").json()["nodes"] == {
            "same": 1,
            "unknown": 0,
            "others": [],
            "dashboard": True,
        }
        assert "another file" not in client.get("/configuration?region=nodes").text.split(">", 1)[1]
        before = client.get("/configuration?format=json").json()["file"]["text_digest"]
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"# ours", b"# theirs"))
        join(board, "late")
        found = client.get("/configuration?format=json").json()["nodes"]
        assert (found["same"], found["others"]) == (1, [{"name": "early", "digest": before}])
        assert not found["dashboard"]
        shown = client.get("/configuration?region=nodes").text
        assert "1 node runs another file" in shown
        assert "since this dashboard has started" in shown
        nodes = {node["name"]: node["other_file"] for node in client.get("/nodes?format=json").json()["nodes"]}
        assert nodes == {"early": True, "late": False}
        assert client.get("/nodes?region=nodes").text.count("other file<") == 1


def test_a_node_that_does_not_say_what_it_runs_is_not_named(tmp_path: Path) -> None:
    with served(tmp_path, file_text=TEXT, readings=Readings(every=0.0, share=0)) as board, board.client() as client:
        join(board, "n1")
        (row,) = board.store.find(Query(board.dashboard.fleet))
        state = {name: value for name, value in row.progress.state.items() if name != "file_digest"}
        earlier = replace(
            row, ownership=replace(row.ownership, version=row.version + 1), progress=Progress(state=state)
        )
        board.store.swap([Swap(row.version, earlier)])
        found = client.get("/configuration?format=json").json()["nodes"]
        assert (found["same"], found["unknown"], found["others"]) == (0, 1, [])
        assert client.get("/nodes?format=json").json()["nodes"][0]["file_digest"] is None
