"""No input ends, fills or blocks a process, and none raises an error that is not documented. A minute of `make fuzz`.

The inputs are the same every time. The simulator decodes nothing and cannot see any of this.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz import child
from tests.fuzz.__main__ import main
from tests.fuzz.child import fuzzed
from tests.fuzz.target import Target
from tests.fuzz.targets import all_targets

SEED = 1
INPUTS = {
    **dict.fromkeys(["csv", "config"], 200),
    **dict.fromkeys(["lines", "json", "json_messages", "times"], 300),
    **dict.fromkeys(["avro", "avro_trees"], 2000),
    **dict.fromkeys(["gzip", "zstd", "snappy", "bzip2", "avro_schemas", "protobuf_descriptors"], 3000),
    "bulk_responses": 6000,
}
"""How many inputs take about two seconds of CPU; of the other targets 600 do."""
FOUND = Path(__file__).parents[1] / "fixtures" / "fuzz"
TARGETS = {target.name: target for target in all_targets()}


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_does_harm(name: str) -> None:
    target, count = TARGETS[name], INPUTS.get(name, 600)
    results = fuzzed(target, lambda number: target.input(SEED, number), range(count))
    assert results.findings == []
    assert results.tried == count
    assert results.accepted, "not even the seeds are valid"


@pytest.mark.parametrize("path", sorted(FOUND.glob("*/*")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_was_found_once_does_no_harm(path: Path) -> None:
    assert fuzzed(TARGETS[path.parent.name], lambda _: path.read_bytes(), range(1)).findings == []


# --- the fuzzer finds what there is ----------------------------------------------------------------------------------


def _loop() -> None:
    while True:
        pass


def _key_error() -> None:
    raise KeyError("x")


@pytest.mark.parametrize(
    ("harm", "kind", "reason"),
    [
        (os.abort, "ended", "signal 6"),
        (lambda: ctypes.string_at(0), "ended", "signal 11"),
        (lambda: os._exit(0), "ended", "exit"),
        (_loop, "hung", "0.2 s of CPU"),
        (lambda: len(bytearray(64 << 20)), "memory", "MiB"),
        (lambda: len(bytearray(1 << 60)), "memory", "MemoryError"),
        (_key_error, "error", "KeyError"),
    ],
    ids=["abort", "segfault", "exit", "loop", "memory", "allocation", "error"],
)
def test_harm_is_found_and_the_inputs_after_it_are_read(
    harm: Callable[[], object], kind: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "CPU_SECONDS", 0.2)
    monkeypatch.setattr(child, "MEMORY", 32 << 20)

    def read(data: bytes) -> None:
        if data == b"3":
            harm()
        if data == b"5":
            raise ValueError("refused")

    target = Target("sample", [b"%d" % number for number in range(8)], read, (ValueError,))
    results = fuzzed(target, lambda number: target.input(SEED, number), range(8))
    (finding,) = results.findings
    assert (finding.number, finding.kind) == (3, kind)
    assert reason in finding.reason
    assert (results.tried, results.accepted) == (8, 6 + (kind == "memory" and reason == "MiB"))


def test_the_same_seed_gives_the_same_inputs_and_another_seed_others() -> None:
    target = TARGETS["avro"]
    numbers = range(len(target.seeds), len(target.seeds) + 50)
    first, again, other = ([target.input(seed, number) for number in numbers] for seed in (1, 1, 2))
    assert first == again
    assert sum(a != b for a, b in zip(first, other, strict=True)) > 40


def test_the_command_keeps_what_it_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = Target("sample", [b"seed"], lambda _: _key_error(), ())
    monkeypatch.setattr("tests.fuzz.__main__.all_targets", lambda: (target,))
    monkeypatch.chdir(tmp_path)
    assert main(["--minutes", "0", "--seed", "5"]) == 1
    (kept,) = (tmp_path / "build" / "fuzz").iterdir()
    assert kept.read_bytes() == b"seed"
    assert "sample: 400 tried, 0 accepted, 1 found" in capsys.readouterr().out
    assert main(["--target", "none"]) == 2
