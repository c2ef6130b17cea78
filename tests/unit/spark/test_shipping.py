"""What executors of a cluster are given, and which jars a session gets."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.errors import UsageError
from holdfast.spark.session import _with_jars
from holdfast.spark.shipping import check_modules, packed, ship_holdfast, ship_modules

RECIPE = Path(__file__).parents[3] / "scripts" / "jars" / "spark-kafka"
MAVEN = "{http://maven.apache.org/POM/4.0.0}"


class Context:
    """Spark's context, which remembers what it was given."""

    def __init__(self) -> None:
        self.sent: list[Path] = []

    def addPyFile(self, path: str) -> None:  # noqa: N802 - Spark's name
        self.sent.append(Path(path))


@pytest.fixture
def context() -> Any:
    return Context()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with a module of its own, and with what nobody needs."""
    folder = tmp_path / "shop"
    (folder / "deep" / "__pycache__").mkdir(parents=True)
    for name in ("__init__.py", "parsing.py", "deep/__init__.py", "notes.txt", "deep/__pycache__/x.pyc"):
        (folder / name).write_text("NAME = __name__\n")
    return folder


def test_holdfast_is_imported_from_the_archive_without_any_other(context: Any, tmp_path: Path) -> None:
    ship_holdfast(context, tmp_path)
    (sent,) = context.sent
    assert sent.name == f"holdfast-{holdfast.__version__}.zip"
    modules = "holdfast.spark.task, holdfast.sinks.files.staging, holdfast.processors.parse.step"
    packages = str(Path(pytest.__file__).parents[1])
    # Executors find it by a relative path. Without `site` there is no other holdfast to be found.
    code = f"import sys; sys.path[1:1] = [{sent.name!r}, {packages!r}]; import {modules}; print(holdfast.__file__)"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.stdout.strip() == f"{sent.name}/holdfast/__init__.py", done.stderr


def test_modules_and_archives_are_sent_as_they_are_and_packages_packed(
    context: Any, package: Path, tmp_path: Path
) -> None:
    module, archive, folder = tmp_path / "one.py", tmp_path / "many.zip", tmp_path / "session"
    module.touch()
    archive.touch()
    folder.mkdir()
    ship_modules(context, [module, archive, package], folder)
    assert context.sent == [module, archive, folder / "shop.zip"]
    with zipfile.ZipFile(folder / "shop.zip") as packed_shop:
        assert packed_shop.namelist() == ["shop/__init__.py", "shop/deep/__init__.py", "shop/parsing.py"]


def test_the_same_sources_give_the_same_archive(package: Path, tmp_path: Path) -> None:
    before = packed(package, tmp_path / "a.zip").read_bytes()
    (package / "parsing.py").touch()
    assert packed(package, tmp_path / "b.zip").read_bytes() == before


def test_what_cannot_be_sent_is_told_before_spark_starts(package: Path, tmp_path: Path) -> None:
    (tmp_path / "wheel.whl").touch()
    (tmp_path / "data").mkdir()
    check_modules([package])
    with pytest.raises(UsageError, match=r"gone\.py of spark\.py_files does not exist"):
        check_modules([package, tmp_path / "gone.py"])
    for wrong in ("wheel.whl", "data"):
        with pytest.raises(UsageError, match=rf"{wrong} of spark\.py_files cannot be sent"):
            check_modules([tmp_path / wrong])


def test_jars_are_added_to_those_of_the_user_once() -> None:
    settings = {"spark.jars": "/own/a.jar, /ours/b.jar", "spark.ui.enabled": "true"}
    assert _with_jars(settings, [Path("/ours/b.jar"), Path("/ours/c.jar")]) == {
        "spark.jars": "/own/a.jar,/ours/b.jar,/ours/c.jar",
        "spark.ui.enabled": "true",
    }


def test_a_session_without_jars_gets_no_setting() -> None:
    assert _with_jars({"spark.ui.enabled": "true"}, []) == {"spark.ui.enabled": "true"}
