"""`holdfast validate` with what it does on request: try the connections, analyse the pipelines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast import engines
from holdfast.config.models import Settings
from holdfast.config.settings_file import SettingProblem
from tests.unit.cli.conftest import Site

TEXT = """\
source_coordination:
  store:
    sqlite: {{path: {folder}/leases.db}}
pipelines:
  orders:
    source:
      objects: {{folder: {folder}/in}}
    sinks:
      - files: {{root: {folder}/out}}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "in").mkdir()
    path = tmp_path / "shop.yaml"
    path.write_text(TEXT.format(folder=tmp_path))
    return str(path)


def test_connections_are_tried_and_the_store_is_not_created(site: Site, file: str, tmp_path: Path) -> None:
    result = site.invoke("validate", file, "--connect")
    assert (result.exit_code, result.stdout.count("is valid")) == (0, 1), result.stderr
    assert "leases.db does not exist" in result.stderr
    assert not (tmp_path / "leases.db").exists()


def test_each_connection_that_fails_is_shown_where_it_is_configured(site: Site, file: str, tmp_path: Path) -> None:
    (tmp_path / "in").rmdir()
    (tmp_path / "out").write_text("a file")
    (tmp_path / "leases.db").write_text("this is not a database, whatever its name says" * 100)
    result = site.invoke("validate", file, "--connect", "--json")
    assert result.exit_code == 2
    found = [(each["line"], each["column"]) for each in json.loads(result.stdout)["problems"]]
    assert found == [(3, 5), (7, 7), (9, 9)]
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", [("validate", "--connect"), ("validate", "--analyse"), ("run",)], ids=" ".join)
def test_a_part_that_cannot_be_built_is_shown_where_it_is_and_leaves_no_store(
    site: Site, file: str, tmp_path: Path, command: tuple[str, ...]
) -> None:
    text = (
        Path(file)
        .read_text()
        .replace("    sinks:", "    processors:\n      - python: {function: 'nowhere:clean'}\n    sinks:")
    )
    Path(file).write_text(text)
    result = site.invoke(command[0], file, *command[1:])
    assert result.exit_code == 2
    assert f"{file}:9:9: the function nowhere:clean cannot be imported: No module named 'nowhere'\n" in result.stderr
    assert not (tmp_path / "leases.db").exists()


def test_without_the_option_nothing_is_opened(site: Site, file: str, tmp_path: Path) -> None:
    (tmp_path / "in").rmdir()
    assert site.invoke("validate", file).exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["shop.yaml"]


def test_what_does_not_fit_is_a_wrong_file(site: Site, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(settings: Settings, _emit: object) -> None:
        raise settings.error([SettingProblem(("pipelines", "orders", "sinks", 0, "files"), "there is no column 'x'")])

    monkeypatch.setattr(engines, "analyse", wrong)
    assert site.invoke("validate", file).exit_code == 0
    result = site.invoke("validate", file, "--analyse")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{file}:9:9: there is no column 'x'\n")


def test_missing_variables_cannot_be_left_out_of_a_connection(site: Site, file: str) -> None:
    result = site.invoke("validate", file, "--no-env", "--connect")
    assert (result.exit_code, "--no-env cannot be combined" in result.stderr) == (2, True)
