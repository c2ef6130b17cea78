from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.functions.function import Function, load_handler
from holdfast.functions.settings import FunctionConfig


def _write(folder: Path, name: str, code: str) -> str:
    path = folder / name
    path.write_text(code)
    return str(path)


def test_a_file_a_name_in_it_and_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _write(tmp_path, "first_function.py", "def handler(c, e): return 1\nasync def other(c, e): return 2\n")
    assert load_handler(path).call(None, None) == 1
    assert load_handler(f"{path}:other").is_async
    monkeypatch.syspath_prepend(tmp_path)
    assert load_handler("first_function:handler").call(None, None) == 1


def test_a_file_may_import_its_neighbours_and_hides_no_module(tmp_path: Path) -> None:
    _write(tmp_path, "neighbour_of_handler.py", "VALUE = 7\n")
    path = _write(
        tmp_path, "json.py", "import neighbour_of_handler\ndef handler(c, e): return neighbour_of_handler.VALUE\n"
    )
    assert load_handler(path).call(None, None) == 7
    assert sys.modules["json"] is json
    sys.path.remove(str(tmp_path))


def test_an_object_with_an_async_call_is_async(tmp_path: Path) -> None:
    code = "class Handler:\n    async def __call__(self, context, event): pass\nhandler = Handler()\n"
    assert load_handler(_write(tmp_path, "callable_object.py", code)).is_async


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module_anywhere:handler", "cannot be imported: ModuleNotFoundError"),
        ("json:no_such", "has no function 'no_such'"),
        ("nowhere.py", "does not exist"),
    ],
)
def test_what_cannot_be_imported_is_said(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_handler(name)


@pytest.mark.parametrize("line", ["import nuclio_sdk_", "1 / 0", "import sys; sys.exit()"])
def test_a_file_that_fails_is_said(tmp_path: Path, line: str) -> None:
    with pytest.raises(UsageError, match="cannot be imported"):
        load_handler(_write(tmp_path, "failing_file.py", f"{line}\n"))


def test_without_the_sdk_the_message_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _write(tmp_path, "needs_sdk.py", "import nuclio_sdk\n")
    monkeypatch.setitem(sys.modules, "nuclio_sdk", None)
    with pytest.raises(UsageError, match=r"holdfast\[nuclio\]"):
        load_handler(path)


def _function(path: str, **settings: Any) -> Function:
    return Function(FunctionConfig.model_validate({"handler": path, **settings}))


def test_environment_and_init_come_before_the_handler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FUNCTION_TEST", raising=False)
    code = """
import os
AT_IMPORT = os.environ["FUNCTION_TEST"]
async def init_context(context): context.user_data.value = AT_IMPORT
def prepare(context): context.user_data.value = "prepared"
def handler(context, event): return context.user_data.value
"""
    path = _write(tmp_path, "with_environment.py", code)
    for settings, value in (({}, "yes"), ({"init": f"{path}:prepare"}, "prepared")):
        function = _function(path, environment={"FUNCTION_TEST": "yes"}, **settings)
        assert function.handler.call(function.context, None) == value
        function.close()
    monkeypatch.delenv("FUNCTION_TEST")


def test_an_init_that_fails_is_said(tmp_path: Path) -> None:
    path = _write(tmp_path, "bad_init.py", "def init_context(context): 1 / 0\ndef handler(c, e): pass\n")
    with pytest.raises(UsageError, match=r"init_context of .*bad_init.py failed: ZeroDivisionError"):
        _function(path)
