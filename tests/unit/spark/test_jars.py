"""Which jars a session gets."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from holdfast.errors import UsageError
from holdfast.spark.jars import ARTIFACTS, connector_jars
from holdfast.spark.session import _with_jars

RECIPE = Path(__file__).parents[3] / "scripts" / "jars" / "spark-kafka"
MAVEN = "{http://maven.apache.org/POM/4.0.0}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the jars of an environment belong, with all of them."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    jars = tmp_path / "share" / "holdfast" / "jars"
    jars.mkdir(parents=True)
    for line in RECIPE.with_suffix(".sha256").read_text().splitlines():
        (jars / line.split()[1]).touch()
    return jars


def test_the_connector_is_what_setup_fetches(folder: Path) -> None:
    assert sorted(connector_jars()) == sorted(folder.iterdir())


def test_the_pom_names_the_same_artifacts() -> None:
    pom = ET.parse(RECIPE.with_suffix(".xml"))  # noqa: S314 - a file of ours
    named = [
        ":".join(str(dependency.findtext(MAVEN + part)) for part in ("groupId", "artifactId", "version"))
        for dependency in pom.iter(f"{MAVEN}dependency")
    ]
    assert named == list(ARTIFACTS)


def test_a_missing_jar_is_named_with_the_way_to_get_it(folder: Path) -> None:
    (folder / "kafka-clients-3.9.2.jar").unlink()
    with pytest.raises(UsageError, match=r"make setup.*there: org.apache.kafka:kafka-clients:3.9.2$") as caught:
        connector_jars()
    assert str(folder) in str(caught.value)


def test_jars_are_added_to_those_of_the_user_once() -> None:
    settings = {"spark.jars": "/own/a.jar, /ours/b.jar", "spark.ui.enabled": "true"}
    assert _with_jars(settings, [Path("/ours/b.jar"), Path("/ours/c.jar")]) == {
        "spark.jars": "/own/a.jar,/ours/b.jar,/ours/c.jar",
        "spark.ui.enabled": "true",
    }


def test_a_session_without_jars_gets_no_setting() -> None:
    assert _with_jars({"spark.ui.enabled": "true"}, []) == {"spark.ui.enabled": "true"}
