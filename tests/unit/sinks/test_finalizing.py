"""A final place in the files sink: `_SUCCESS` once, hooks at least once, and a statement for Hive."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.finalize.output import FinalFolder, FinalTime
from holdfast.finalize.rules import FolderView
from holdfast.flow.batch import Batch, Cut, Name
from holdfast.flow.names import Layout
from holdfast.leases.lease import Lease
from holdfast.sinks.files.config import FilesConfig, FinalizeConfig
from holdfast.sinks.files.finalizing import FilesFinalizing
from holdfast.sinks.files.hooks import add_partition_statement
from holdfast.testing.flows import MemoryBucket

HERE = "tests.unit.sinks.test_finalizing"
CALLS: list[Any] = []


def noted(fact: Any) -> None:
    CALLS.append(fact)


def broken(fact: Any) -> None:
    raise OSError(f"no metastore for {fact['place']}")


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    CALLS.clear()


def finalizing(bucket: MemoryBucket, root: str = "/lake", **settings: Any) -> FilesFinalizing:
    return FilesFinalizing("files", bucket, root, Layout(), FinalizeConfig.model_validate(settings))


def final_folder(name: str = "dt=2026-01-01", *, rows: int = 7, late: int = 0) -> FinalFolder:
    return FinalFolder("daily", "orders", name, FolderView(2, rows, 70, late), {"0": 5, "1": 9})


def test_success_is_put_into_the_place_once() -> None:
    bucket = MemoryBucket()
    assert finalizing(bucket).finish(final_folder()) is None
    before = dict(bucket.visible)
    fact = json.loads(before.pop("orders/dt=2026-01-01/_SUCCESS"))
    assert before == {}
    assert (fact["files"], fact["rows"], fact["bytes"], fact["ends"]) == (2, 7, 70, {"0": 5, "1": 9})
    assert finalizing(bucket).finish(final_folder(rows=9, late=9)) is None
    assert json.loads(bucket.visible["orders/dt=2026-01-01/_SUCCESS"]) == fact


def test_success_can_be_left_out() -> None:
    bucket = MemoryBucket()
    finalizing(bucket, success=False).finish(final_folder())
    assert bucket.visible == {}


def test_a_function_is_told_of_the_place() -> None:
    finalizing(MemoryBucket(), hooks=[{"python": f"{HERE}:noted"}]).finish(final_folder("dt=2026-01-01/c=a b"))
    (fact,) = CALLS
    assert fact["location"] == "file:///lake/orders/dt=2026-01-01/c=a%20b"
    assert (fact["pipeline"], fact["topic"], fact["place"], fact["rows"], fact["late"]) == (
        "daily",
        "orders",
        "dt=2026-01-01/c=a b",
        7,
        0,
    )


def test_a_command_gets_filled_arguments_and_json(tmp_path: Path) -> None:
    out = tmp_path / "finalized"
    code = "import sys; open(sys.argv[1], 'w').write(sys.argv[2] + '|' + sys.stdin.read())"
    command = [sys.executable, "-c", code, str(out), "{topic}:{place}:{nothing}"]
    assert finalizing(MemoryBucket(), hooks=[{"command": command}]).finish(final_folder("dt={topic}")) is None
    arguments, _, fact = out.read_text().partition("|")
    assert arguments == "orders:dt={topic}:{nothing}"
    assert json.loads(fact)["rows"] == 7


def test_a_hook_that_fails_is_told_of_and_those_behind_it_wait() -> None:
    hooks = [{"python": f"{HERE}:broken"}, {"python": f"{HERE}:noted"}]
    bucket = MemoryBucket()
    wrong = finalizing(bucket, hooks=hooks).finish(final_folder())
    assert wrong == "OSError: no metastore for dt=2026-01-01"
    assert CALLS == []
    failing = [sys.executable, "-c", "import sys; sys.exit('no such table')"]
    wrong = finalizing(bucket, hooks=[{"command": failing}]).finish(final_folder())
    assert wrong is not None
    assert "ended with 1: no such table" in wrong


def test_a_command_that_hangs_is_ended() -> None:
    hanging = [sys.executable, "-c", "import time; time.sleep(60)"]
    wrong = finalizing(MemoryBucket(), hooks=[{"command": hanging, "timeout": "300ms"}]).finish(final_folder())
    assert wrong is not None
    assert "TimeoutExpired" in wrong


@pytest.mark.parametrize(("on_late", "calls"), [(True, 2), (False, 1)])
def test_a_hook_hears_of_late_records_if_it_wants_to(*, on_late: bool, calls: int) -> None:
    fact = finalizing(MemoryBucket(), hooks=[{"python": f"{HERE}:noted", "on_late": on_late}])
    fact.finish(final_folder(rows=3, late=3))  # of a place that nobody had heard of before
    fact.finish(final_folder(rows=2, late=2))
    assert len(CALLS) == calls


def test_hive_gets_a_statement(tmp_path: Path) -> None:
    hive = {"table": "logs.{topic}", "location": "s3a://lake/daily/"}
    hooks = [{"python": f"{HERE}:noted", "hive": hive}]
    finalizing(MemoryBucket(), "s3://lake/daily", hooks=hooks).finish(final_folder("dt=2026-01-01/hr=05"))
    (sentence,) = CALLS
    assert sentence == (
        "ALTER TABLE `logs`.`orders` ADD IF NOT EXISTS PARTITION (`dt`='2026-01-01', `hr`='05') "
        "LOCATION 's3a://lake/daily/orders/dt=2026-01-01/hr=05'"
    )
    out = tmp_path / "finalized"
    code = "import sys; open(sys.argv[1], 'w').write(sys.argv[2] + '|' + sys.stdin.read())"
    hooks = [{"command": [sys.executable, "-c", code, str(out), "{statement}"], "hive": {"table": "orders"}}]
    finalizing(MemoryBucket(), hooks=hooks).finish(final_folder())
    argument, _, read = out.read_text().partition("|")
    assert (
        argument
        == read
        == (
            "ALTER TABLE `orders` ADD IF NOT EXISTS PARTITION (`dt`='2026-01-01') LOCATION 'file:///lake/orders/dt=2026-01-01'"
        )
    )


def test_what_comes_from_data_cannot_leave_its_quotes() -> None:
    made = add_partition_statement("t.{topic}", "a`b.c", "x`=it's\\", "/l'", ())
    assert made == ("ALTER TABLE `t`.`a_b_c` ADD IF NOT EXISTS PARTITION (`x```='it\\'s\\\\') LOCATION '/l\\''")


def test_plain_places_need_columns() -> None:
    assert "(`dt`='2026-01-01', `hr`='05')" in add_partition_statement("t", "a", "2026-01-01/05", "/l", ("dt", "hr"))
    with pytest.raises(ValueError, match="has no column"):
        add_partition_statement("t", "a", "2026-01-01/05", "/l")
    with pytest.raises(ValueError, match="2 names, but there are 1 columns"):
        add_partition_statement("t", "a", "2026-01-01/05", "/l", ("dt",))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"hooks": [{}]}, "exactly one of"),
        ({"hooks": [{"command": ["x"], "python": "a:b"}]}, "exactly one of"),
        ({"hooks": [{"python": "nothing"}]}, "module:name"),
        ({"late_place": "late"}, "begins with '_'"),
        ({"late_place": "_holdfast"}, "_holdfast is taken"),
        ({"zone": "Nowhere"}, "not a time zone"),
        ({"template": "dt=%d"}, "must have %Y"),
        ({"interval": "0s"}, "greater than 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FilesConfig.model_validate({"root": "/lake", "finalize": wrong})


def test_the_layout_must_have_a_folder_for_each_place() -> None:
    with pytest.raises(ValueError, match="finalize needs a layout"):
        FilesConfig(
            root="/lake", layout="{topic}/{partition}/{place}/{generation}_{offset}.{ext}", finalize=FinalizeConfig()
        )
    config = FilesConfig(
        root="/lake", layout="by/{place}/{topic}/{generation}_{partition}_{offset}.{ext}", finalize=FinalizeConfig()
    )
    assert Layout(config.layout).folder("a", "dt=1") == "by/dt=1/a"
    assert Layout(config.layout).folder("_a", "dt=1/x y") == "by/dt=1/x%20y/%5Fa"


def test_a_function_that_is_not_there_is_refused_at_the_start() -> None:
    with pytest.raises(UsageError, match="cannot be imported"):
        finalizing(MemoryBucket(), hooks=[{"python": f"{HERE}:nobody"}])


def test_what_is_written_again_is_staged_as_if_nothing_were_final() -> None:
    fact = finalizing(MemoryBucket())
    fact.set_final_times({"orders": FinalTime(50.0, {"0": 30})})
    lease, name = Lease("daily", "orders|0"), Name("orders", "0")
    batches = [Batch(str(at), lease, name, Cut({"offset": at}, {"offset": at + 5})) for at in (20, 29, 30, 40)]
    other = Batch("other", lease, Name("clicks", "0"), Cut({"offset": 99}, {"offset": 100}))
    assert fact.rule([*batches, other]).final == {"30": 50.0, "40": 50.0}
