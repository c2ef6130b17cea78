"""`holdfast verify` and `holdfast locate` as a person or a script uses them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
from typer.testing import Result

from holdfast import assemble
from holdfast.audit.proof import PartitionProof
from holdfast.errors import Unavailable
from holdfast.leases.action import Request
from holdfast.leases.lease import Counts
from holdfast.leases.store import Store
from holdfast.runs import verification
from holdfast.runs.actions import Actions
from holdfast.runs.verification import MOST_DOUBTS, Verification, Verified
from holdfast.testing.rows import make_row
from tests.unit.audit.archive import Archive
from tests.unit.cli.conftest import Site

PIPELINE = """\
  {name}:
    source:
      kafka: {{bootstrap_servers: "localhost:1", topics: [orders]}}
    sinks:
      - files: {{root: {root}, format: {format}}}
"""


@dataclass
class Archives:
    """A file with two pipelines on one store, and what they have written."""

    site: Site
    file: str
    store: Store
    daily: Archive
    backup: Archive

    def verify(self, *options: str, pipeline: str = "daily") -> Result:
        return self.site.invoke("verify", self.file, "--pipeline", pipeline, *options)

    def locate(self, *options: str, pipeline: str = "daily") -> Result:
        return self.site.invoke("locate", self.file, "--pipeline", pipeline, *options)


@pytest.fixture
def archives(site: Site, tmp_path: Path) -> Iterator[Archives]:
    file = Path(site.write("unused"))
    head = file.read_text().partition("pipelines:\n")[0]
    roots = {"daily": tmp_path / "daily", "backup": tmp_path / "backup"}
    formats = {"daily": "text", "backup": "raw"}
    written = [PIPELINE.format(name=name, root=root, format=formats[name]) for name, root in roots.items()]
    file.write_text(f"{head}pipelines:\n{''.join(written)}")
    store = site.store(str(file))
    daily = Archive(roots["daily"], raw=False, pipeline="prod|daily", store=store)
    backup = Archive(roots["backup"], pipeline="prod|backup", store=store)
    daily.commit(0, 10)
    backup.commit(0, 6)
    backup.commit(6, 12)
    yield Archives(site, str(file), store, daily, backup)
    store.close()


def test_a_proof_is_one_line_without_doubts(archives: Archives) -> None:
    (conclusion,) = archives.verify(pipeline="backup").stdout.splitlines()
    assert conclusion.startswith("proven: every offset")


def test_the_whole_proof_is_a_table_and_one_line_that_concludes(archives: Archives) -> None:
    result = archives.verify("--deep", "--all", pipeline="backup")
    head, row, conclusion = result.stdout.splitlines()
    assert " ".join(head.split()) == ("SINK PARTITION FROM TO COMMITS FILES ROWS GAPS DEAD LETTERS NO RECORD VERDICT")
    assert row.split() == ["files", "orders|0", "0", "12", "2", "2", "12", "0", "0", "0", "proven"]
    assert conclusion == (
        "proven: every offset up to the committed position is in exactly one file (1 partition, 2 files, 12 rows), "
        "a recorded gap (0), a dead letter (0) or has no record (0); by the offsets in the files"
    )
    assert (result.exit_code, result.stderr) == (0, "")


def test_it_says_how_far_the_proof_goes(archives: Archives) -> None:
    assert "by manifests, names and sizes, and dead letters by their bytes: --deep also" in archives.verify().stdout
    assert "by digests and row counts: the format keeps no offsets" in archives.verify("--deep").stdout


def test_a_doubt_is_told_in_words_and_ends_with_1(archives: Archives) -> None:
    archives.daily.write("orders/stray.txt", b"")
    archives.daily.manifest_path(1).unlink()
    result = archives.verify()
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert "doubt: files: orders|0: manifest 1 is missing" in lines
    assert f"doubt: files: {archives.daily.root}: orders/stray.txt is named by no manifest" in lines
    assert lines[-1] == "doubt: 1 partition checked, 1 with doubts; see the doubts above"
    assert lines[1].split()[:2] == ["files", "orders|0"]


def test_files_that_cannot_be_read_are_not_proven_and_end_with_1(archives: Archives) -> None:
    (manifest, *_), archives.daily.raw = archives.daily.manifests["0"], True
    file = archives.daily.raw_file(
        f"{manifest['files'][0]['key'][:-4]}.odd", b"odd", range(manifest["files"][0]["rows"])
    )
    archives.daily.path(manifest["files"][0]["key"]).unlink()
    archives.daily.rewrite({**manifest, "files": [file]})
    result = archives.verify("--deep")
    assert result.exit_code == 1
    row, note, conclusion = result.stdout.splitlines()[1:]
    assert row.endswith("not read")
    assert note.endswith("is not in the format of the current settings; its digest is correct")
    assert conclusion == (
        "not proven: the rows of 1 file could not be read, although the digests are correct; see the notes"
    )


def test_json_has_every_partition_and_the_root(archives: Archives) -> None:
    archives.backup.path("orders/1_0_00000000000000000006.parquet").unlink()
    result = archives.verify("--json", pipeline="backup")
    partition, root = json.loads(result.stdout)
    assert (result.exit_code, result.stderr) == (1, "")
    assert partition["doubts"] == ["orders/1_0_00000000000000000006.parquet is missing; manifest 2 names it"]
    assert (partition["kind"], partition["key"], partition["verdict"]) == ("partition", "orders|0", "doubt")
    assert (root["kind"], root["verdict"], root["doubtful"]) == ("root", "proven", 1)


def test_a_root_that_cannot_be_reached_ends_with_3(archives: Archives) -> None:
    archives.daily.root.rename(archives.daily.root.with_name("elsewhere"))
    result = archives.verify()
    assert result.exit_code == 3
    assert "does not exist" in result.stderr


def test_a_pipeline_without_files_cannot_be_audited(site: Site) -> None:
    file = site.write("orders")
    Path(file).write_text(Path(file).read_text().replace("fakes:SINK", "fakes:LETTERLESS_SINK"))
    site.store(file).close()
    for command in (["verify", file], ["locate", file, "--topic", "t", "--partition", "0", "--offset", "1"]):
        result = site.invoke(*command)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "pipeline 'orders' has no sink `files`" in result.stderr


def test_the_file_of_a_message_is_named(archives: Archives) -> None:
    result = archives.locate("--topic", "orders", "--partition", "0", "--offset", "7", pipeline="backup")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1].split()[:3] == ["7", "file", "orders/1_0_00000000000000000006.parquet"]


def test_a_message_in_no_file_ends_with_1(archives: Archives) -> None:
    result = archives.locate("--topic", "orders", "--partition", "0", "--offset", "99", "--json")
    assert result.exit_code == 1
    (found,) = json.loads(result.stdout)
    assert (found["place"], found["file"]) == ("not yet committed", None)


def test_backup_files_of_an_output_file_are_named(archives: Archives) -> None:
    key = "orders/1_0_00000000000000000000.txt"
    result = archives.locate("--files", key, "--in", "backup", "--json")
    assert result.exit_code == 0
    assert [(found["offsets"], found["file"]) for found in json.loads(result.stdout)] == [
        ("0-5", "orders/1_0_00000000000000000000.parquet"),
        ("6-9", "orders/1_0_00000000000000000006.parquet"),
    ]


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--topic", "orders"),
        ("--topic", "orders", "--partition", "0"),
        ("--files", "x"),
        ("--in", "backup"),
        ("--files", "x", "--in", "backup", "--offset", "3"),
        ("--files", "x", "--in", "nowhere"),
    ],
)
def test_what_is_asked_for_must_be_clear(archives: Archives, options: tuple[str, ...]) -> None:
    result = archives.locate(*options)
    assert (result.exit_code, result.stdout) == (2, "")


SEARCH = """\
  daily:
    source:
      kafka: {{bootstrap_servers: "localhost:1", topics: [orders]}}
    sinks:
      - opensearch: {{hosts: ["http://localhost:1"], index: orders, dead_letters: {{file: {root}}}}}
"""


def test_letters_of_a_sink_without_manifests_are_read_back(site: Site, tmp_path: Path) -> None:
    file = Path(site.write("unused"))
    file.write_text(
        file.read_text().partition("pipelines:\n")[0] + "pipelines:\n" + SEARCH.format(root=tmp_path / "dead")
    )
    store = site.store(str(file))
    store.add([make_row("orders|0", pipeline="prod|daily", counts=Counts(3, 1, 0, 2))])
    letters = Archive(tmp_path / "dead", pipeline="prod|daily", store=store).dead_letters([4, 5])
    fine = site.invoke("verify", str(file), "--pipeline", "daily")
    assert (
        fine.stdout
        == "proven: 2 dead letters of sink opensearch can be read back; what the sinks hold is not audited\n"
    )
    (tmp_path / "dead" / letters["key"]).unlink()
    gone = site.invoke("verify", str(file), "--pipeline", "daily")
    assert (gone.exit_code, "the store has counted 2 dead letters, and 0 can be read back" in gone.stdout) == (1, True)
    store.close()


def test_a_verification_that_was_started_elsewhere_is_audited_and_its_result_is_kept(archives: Archives) -> None:
    settings = assemble.load_settings(archives.file)
    actions = Actions(settings, archives.store, Request("ana", "web")).pipeline("daily")
    last = Verification(actions.stored)
    assert last.latest() is None
    found = actions.verify().result
    assert (found.verdict, found.partitions, found.files, found.doubts) == ("proven", 1, 1, [])
    assert last.latest() == found
    (file,) = archives.daily.root.rglob("*.txt")
    file.unlink()
    assert actions.verify().result.verdict == "doubt"
    kept = last.latest()
    assert kept is not None
    assert (kept.verdict, kept.by, kept.doubtful > 0, len(kept.doubts) > 0) == ("doubt", "ana", True, True)
    entries = archives.site.json("audit-log", archives.file)
    assert [entry["message"] for entry in entries] == ["doubt: 1 partitions checked", "proven: 1 partitions checked"]


def test_a_verification_that_fails_says_so(archives: Archives, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise Unavailable("the bucket does not respond")

    monkeypatch.setattr(verification, "verify", away)
    actions = Actions(assemble.load_settings(archives.file), archives.store, Request("ana", "web")).pipeline("daily")
    with pytest.raises(Unavailable):
        actions.verify()
    kept = Verification(actions.stored).latest()
    assert kept is not None
    assert (kept.verdict, kept.error) == ("failed", "the bucket does not respond")


def test_the_kept_result_is_bounded() -> None:
    found = Verified()
    for number in range(1000):
        proof = PartitionProof("files", f"t|{number}")
        proof.doubts.add("x" * 100_000)
        found = found.plus(proof)
    assert (found.partitions, found.doubtful, len(found.doubts)) == (1000, 1000, MOST_DOUBTS)
    assert len(json.dumps(asdict(found))) < 64 * 1024
