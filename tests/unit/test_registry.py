"""How plugins are found, and what happens when one is not there or broken."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from pydantic import BaseModel

from holdfast.errors import UsageError
from holdfast.registry import Kind, Plugin, Registry, did_you_mean, server, singular


class Config(BaseModel):
    pass


SAMPLE = Plugin(name="sample", config=Config, build=lambda config: config, summary="A sample.")
NO_PLUGIN = object()


def offering(*offers: tuple[str, str]) -> Registry:
    """A registry of stores that finds these entry points."""

    def discover(kind: Kind) -> Iterable[EntryPoint]:
        return [EntryPoint(name, value, "holdfast.stores") for name, value in offers if kind == "stores"]

    return Registry(discover=discover)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_registry_made_by_hand() -> None:
    registry = Registry({"stores": [SAMPLE]})
    assert registry.names("stores") == ("sample",)
    assert registry.names("sinks") == ()
    assert registry.get("stores", "sample") is SAMPLE


@pytest.mark.parametrize("value", ["tests.unit.test_registry:SAMPLE", "registry_sample"])
def test_an_entry_point_names_the_plugin_or_its_module(value: str, module: Path) -> None:
    (module / "registry_sample.py").write_text("from tests.unit.test_registry import SAMPLE as PLUGIN")
    assert offering(("sample", value)).get("stores", "sample").name == "sample"


def test_names_are_known_without_importing(module: Path) -> None:
    (module / "registry_unwanted.py").write_text("raise SystemExit('imported')")
    registry = offering(("sample", "registry_unwanted:PLUGIN"), ("another", "registry_unwanted:PLUGIN"))
    assert registry.names("stores") == ("another", "sample")
    assert "registry_unwanted" not in sys.modules


def test_what_is_loaded_once_is_kept(module: Path) -> None:
    (module / "registry_once.py").write_text("from tests.unit.test_registry import SAMPLE as PLUGIN")
    registry = offering(("sample", "registry_once:PLUGIN"))
    first = registry.get("stores", "sample")
    del sys.modules["registry_once"]
    assert registry.get("stores", "sample") is first
    assert "registry_once" not in sys.modules


def test_a_plugin_by_its_place() -> None:
    registry = Registry()
    place = "tests.unit.test_registry:SAMPLE"
    assert registry.get("sinks", place).summary == "A sample."
    assert registry.names("sinks") == ()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dynamodb", "store 'dynamodb' is not installed; installed: in_memory, sqlite"),
        ("sqllite", "store 'sqllite' is not installed; did you mean 'sqlite'? installed: in_memory, sqlite"),
        ("no such:place", "store 'no such:place' is not installed; installed: in_memory, sqlite"),
    ],
)
def test_a_plugin_that_is_not_there(name: str, message: str) -> None:
    registry = offering(("sqlite", "a:B"), ("in_memory", "a:C"))
    with pytest.raises(UsageError) as refused:
        registry.get("stores", name)
    assert str(refused.value) == message


def test_no_plugin_at_all() -> None:
    with pytest.raises(UsageError, match="format 'x' is not installed; installed: none"):
        Registry().get("formats", "x")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("import no_such_client", "cannot be loaded: ModuleNotFoundError: No module named 'no_such_client'"),
        ("raise SystemExit(3)", "cannot be loaded: SystemExit: 3"),
        ("", "cannot be loaded: AttributeError: module 'registry_broken' has no attribute 'PLUGIN'"),
        ("PLUGIN = 5", "is not a Plugin but a int"),
        (
            "from tests.unit.test_registry import Plugin, Config\nPLUGIN = Plugin('a b', Config, print, 'x')",
            "cannot be loaded: ValueError: a plugin's name may contain only letters, digits, '_' and '-', not 'a b'",
        ),
    ],
)
def test_a_broken_plugin_is_named(content: str, message: str, module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (module / "registry_broken.py").write_text(content)
    monkeypatch.delitem(sys.modules, "registry_broken", raising=False)
    with pytest.raises(UsageError) as refused:
        offering(("sample", "registry_broken:PLUGIN")).get("stores", "sample")
    assert str(refused.value) == f"store 'sample' of registry_broken:PLUGIN {message}"


def test_a_plugin_under_another_name() -> None:
    with pytest.raises(UsageError, match=r"store 'other' of tests\.unit\.test_registry:SAMPLE has the name 'sample'"):
        offering(("other", "tests.unit.test_registry:SAMPLE")).get("stores", "other")


def test_two_packages_that_offer_the_same_name() -> None:
    with pytest.raises(UsageError, match="store 'sample' is offered by a:P and b:P; uninstall all but one"):
        offering(("sample", "b:P"), ("sample", "a:P")).get("stores", "sample")


def test_an_offer_that_is_found_twice_is_one() -> None:
    place = "tests.unit.test_registry:SAMPLE"
    assert offering(("sample", place), ("sample", place)).get("stores", "sample").name == "sample"


def test_the_stores_of_this_package_are_installed() -> None:
    assert {"in_memory", "sqlite"} <= set(Registry.installed().names("stores"))


def test_looking_at_what_is_installed_loads_no_spark_and_no_pydantic() -> None:
    program = (
        "import sys; from holdfast.registry import KINDS, Registry; [Registry.installed().names(k) for k in KINDS]; "
        "print(sorted({'pyspark', 'pydantic'} & set(sys.modules)))"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed == "[]\n"


def test_loading_a_file_and_writing_the_schema_load_no_spark(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("source_coordination: {store: {in_memory: }}")
    program = (
        "import sys; from holdfast.config import json_schema, load; from holdfast.registry import Registry; "
        "load(sys.argv[1], Registry.installed()); json_schema(Registry.installed()); "
        "print('pyspark' in sys.modules)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "x.yaml")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"


def test_words() -> None:
    assert singular("processors") == "processor"
    assert did_you_mean("sqllite", ["sqlite", "memory"]) == "; did you mean 'sqlite'?"
    assert did_you_mean("zzz", ["sqlite"]) == ""


def test_a_server_is_found_by_its_name() -> None:
    assert server("job_status").__module__ == "holdfast.web.server"
    with pytest.raises(UsageError, match=r"the server 'nothing' is not installed; install holdfast\[web\]"):
        server("nothing")
