"""Routes in the file: conditions by name, and the sinks that ask for them."""

from __future__ import annotations

import jsonschema
import pytest
import yaml

from holdfast.config import json_schema
from holdfast.config.digest import digest_of
from holdfast.flow.pipeline import Routes, routes_of
from tests.unit.config.samples import PIPELINE, REGISTRY, problems, settings

SINK = "[{files: {path: out}}]"


def routed(routes: str, *sinks: str) -> str:
    """The sample pipeline with these routes and sinks; the routes stand in line 4, the sinks in line 5."""
    return PIPELINE.replace(f"sinks: {SINK}", f"routes: {{{routes}}}\n    sinks: [{', '.join(sinks)}]")


def test_a_sink_names_the_routes_whose_rows_it_gets() -> None:
    text = routed("errors: 'status >= 500'", "{files: {path: a}}", "{routes: [errors, _default], files: {path: b}}")
    clicks = settings(text).pipelines["clicks"]
    assert clicks.routes == {"errors": "status >= 500"}
    assert [(sink.name, sink.routes) for sink in clicks.sinks] == [
        ("files", None),
        ("files-2", ("errors", "_default")),
    ]
    assert routes_of(clicks) == Routes({"errors": "status >= 500"}, {"files-2": ("errors", "_default")})


@pytest.mark.parametrize(
    ("routes", "sink", "problem"),
    [
        ("errors: a", "[errrs]", "5:23 'errrs' is not a route of this pipeline; did you mean 'errors'?"),
        ("errors: a", "[errors, other]", "5:31 'other' is not a route of this pipeline; it has errors"),
        (
            "",
            "[errors]",
            "5:23 'errors' is not a route of this pipeline; it has no routes, give them as `routes` beside",
        ),
        ("errors: a", "[]", "5:22 this list has too few entries; it needs at least 1"),
        ("errors: a", "errors", "5:22 expected a list, with '- ' before each entry, not 'errors'"),
        ("errors: ''", "[errors]", "4:22 '' is too short; it needs at least 1 characters"),
        (
            "_default: a",
            "[_default]",
            "4:14 '_default' begins with '_'; such names, for example _default, are reserved",
        ),
    ],
)
def test_what_is_wrong_is_told_at_its_place(routes: str, sink: str, problem: str) -> None:
    (message,) = problems(routed(routes, f"{{routes: {sink}, files: {{path: a}}}}"))
    assert message.startswith(problem)


@pytest.mark.parametrize(
    ("sink", "fits"),
    [
        ("{files: {path: a}}", True),
        ("{routes: [errors], files: {path: a}}", True),
        ("{name: b, routes: [errors], files: {path: a}}", True),
        ("{name: b, routes: [], files: {path: a}}", False),
        ("{name: b, routes: [errors]}", False),
    ],
)
def test_the_json_schema_knows_them(sink: str, fits: bool) -> None:
    checker = jsonschema.Draft202012Validator(json_schema(REGISTRY))
    assert checker.is_valid(yaml.safe_load(routed("errors: a", sink))) == fits


def test_routes_are_part_of_what_nodes_compare() -> None:
    plain = settings(PIPELINE).pipelines["clicks"]
    texts = [
        routed("errors: a", "{files: {path: out}}"),
        routed("errors: b", "{files: {path: out}}"),
        routed("errors: b", "{routes: [errors], files: {path: out}}"),
    ]
    digests = {digest_of(settings(text).pipelines["clicks"]) for text in texts} | {digest_of(plain)}
    assert len(digests) == 4


@pytest.mark.parametrize(
    ("by_sink", "leave_out"),
    [
        ({}, False),
        ({"a": ("x",)}, False),
        ({"a": ("x",), "b": ("y",)}, True),
        ({"a": ("x", "y"), "b": ("x",)}, True),
        ({"a": ("x", "y"), "b": ("_default",)}, False),
        ({"a": ("_default",), "b": ("x",)}, True),
    ],
)
def test_whether_rows_may_go_nowhere_follows_from_the_routes(
    by_sink: dict[str, tuple[str, ...]], leave_out: bool
) -> None:
    assert Routes({"x": "a", "y": "b"}, by_sink).leave_out(sinks=2) == leave_out
