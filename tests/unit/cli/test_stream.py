from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.sources.stream.reader import EmbeddedReaderFactory
from holdfast.sources.stream.stream import Stream
from tests.unit.cli.conftest import Site


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STREAMS", str(tmp_path / "streams"))


def said(site: Site, *arguments: str, answer: str | None = None) -> str:
    result = site.invoke("stream", *arguments, answer=answer)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(site: Site, *arguments: str) -> str:
    result = site.invoke("stream", *arguments)
    assert result.exit_code == 2, result.output
    return result.stderr


def bodies(folder: Path, name: str, shard: int) -> list[bytes | None]:
    reader = EmbeddedReaderFactory(folder, name, Stream.open(folder, name).id).open()
    reader.add(f"{name}|{shard}", {"offset": 0})
    found = [record.body for record in reader.fetch(100, 0)]
    reader.close()
    return found


def test_a_stream_is_created_filled_shown_and_deleted(site: Site, tmp_path: Path) -> None:
    streams = tmp_path / "streams"
    assert "32 shards" in said(site, "create", "clicks", "--shards", "32", "--retention", "24h")
    for shard in (0, 31):
        for record in (1, 2):
            said(site, "put", "clicks", "--shard-id", str(shard), "--data", f"shard-{shard}-record-{record}")
    assert bodies(streams, "clicks", 31) == [b"shard-31-record-1", b"shard-31-record-2"]
    shown = site.json("stream", "show", "clicks")
    assert (shown["retention"], shown["durability"], len(shown["shards"])) == (86_400.0, "process", 32)
    assert [shown["shards"][31][name] for name in ("shard", "first", "end", "records")] == [31, 0, 2, 2]
    assert shown["shards"][1]["oldest"] is None
    assert "SHARD" in said(site, "show", "clicks")
    assert said(site, "list") == "clicks\n"
    assert "there is no terminal" in refused(site, "delete", "clicks")
    assert said(site, "delete", "clicks", "--yes") == "stream clicks is deleted\n"
    assert site.json("stream", "list") == []
    assert list(streams.iterdir()) == []


def test_records_come_from_lines_of_a_file_or_of_stdin(site: Site, tmp_path: Path) -> None:
    said(site, "create", "clicks", "--folder", str(tmp_path))
    lines = tmp_path / "lines"
    lines.write_bytes(b"one\n\ntwo\r\n\xff last")
    assert said(site, "put", "clicks", "--file", str(lines), "--folder", str(tmp_path)) == "shard 0: offsets 0 to 3\n"
    assert said(site, "put", "clicks", "--file", "-", "--folder", str(tmp_path), answer="three\n") == (
        "shard 0: offsets 4 to 4\n"
    )
    assert bodies(tmp_path, "clicks", 0) == [b"one", b"", b"two\r", b"\xff last", b"three"]
    assert "nothing to append" in said(site, "put", "clicks", "--file", "/dev/null", "--folder", str(tmp_path))


def test_a_key_chooses_the_shard_always_the_same(site: Site) -> None:
    said(site, "create", "clicks", "--shards", "8")
    shards = {said(site, "put", "clicks", "--key", "user1", "--data", "x").split(":")[0] for _ in range(3)}
    assert len(shards) == 1


def test_mistakes_get_clear_errors(site: Site) -> None:
    said(site, "create", "clicks", "--shards", "2")
    assert "exists already" in refused(site, "create", "clicks")
    assert "name of a stream" in refused(site, "create", "a/b")
    assert "1 to 10,000 shards" in refused(site, "create", "other", "--shards", "0")
    assert "is not a duration" in refused(site, "create", "other", "--retention", "24")
    assert "longer than 0" in refused(site, "create", "other", "--retention", "0s")
    assert "neither process nor disk" in refused(site, "create", "other", "--durability", "tape")
    assert "did you mean 'clicks'" in refused(site, "show", "click")
    assert "there is no stream" in refused(site, "put", "nothing", "--data", "x")
    assert "either --data or --file" in refused(site, "put", "clicks", "--shard-id", "0")
    assert "either --data or --file" in refused(site, "put", "clicks", "--data", "x", "--file", "-")
    assert "give --shard-id or --key" in refused(site, "put", "clicks", "--data", "x")
    assert "shards 0 to 1, not 2" in refused(site, "put", "clicks", "--shard-id", "2", "--data", "x")
    assert "No such file" in refused(site, "put", "clicks", "--shard-id", "0", "--file", "/no/such/file")
    assert "there is no stream" in refused(site, "delete", "nothing", "--yes")
