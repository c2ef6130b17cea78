"""Pages: what their functions return, and that their templates show it as text, whole and by region."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from holdfast.configured_store import load_settings, open_store
from holdfast.errors import NotFound, PartitionNotFound, UsageError
from holdfast.leases.lease import Lease, Ownership, Progress, Status
from holdfast.leases.query import Query
from holdfast.web.access import Role, Viewer
from holdfast.web.dashboard import Dashboard
from holdfast.web.page import Page, Templates
from holdfast.web.pages import PAGES
from holdfast.web.pages_fleet import needs
from holdfast.web.pages_partitions import PAGE_SIZE, show_cell, show_pipeline
from tests.web.fleet import HOSTILE, opened, write_file

ADDRESSES: dict[str, dict[str, str]] = {
    "/": {},
    "/nodes": {},
    "/letters": {"pipeline": "clicks"},
    "/letters/redrive": {"pipeline": "clicks", "sink": "files", "reason": HOSTILE, "key": HOSTILE},
    "/generations": {},
    "/audit": {},
    "/functions": {},
    "/configuration": {},
    "/alerts": {},
    "/proof": {},
    "/runs": {},
    "/pipelines/{pipeline}": {"pipeline": "clicks"},
    "/pipelines/{pipeline}/partition": {"pipeline": "clicks", "key": f"clicks|{HOSTILE}"},
    "/pipelines/{pipeline}/rewind": {"pipeline": "clicks", "key": f"clicks|{HOSTILE}", "to": HOSTILE},
    "/pipelines/{pipeline}/backfill": {"pipeline": "clicks", "backup": "clicks", "between": HOSTILE},
    "/pipelines/{pipeline}/cell": {"pipeline": "clicks", "index": "3"},
    "/runs/{pipeline}": {"pipeline": "clicks", "run": "rewind-2026-11-17"},
}
WITHOUT_ACTIONS = {
    "overview.html",
    "runs.html",
    "cell.html",
    "audit.html",
    "letters.html",
    "alerts.html",
    "functions.html",
    "configuration.html",
    "redrive.html",
    "rewind.html",
    "backfill.html",
}
OPERATOR = Viewer("ana", Role.OPERATOR, "token-of-ana")


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    with opened(tmp_path_factory.mktemp("fleet")) as (file, settings, store):
        yield Dashboard(file, settings, store)


@pytest.fixture(scope="module")
def shown(dashboard: Dashboard) -> dict[str, Any]:
    """By path, what each page shows of the fleet."""
    return {page.path: page.data(dashboard, ADDRESSES[page.path]) for page in PAGES}


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Dashboard]:
    file = write_file(tmp_path)
    settings = load_settings(file)
    store = open_store(settings)
    yield Dashboard(file, settings, store)
    store.close()


def _rendered(page: Page, data: Any, region: str | None = None, viewer: Viewer = OPERATOR, **context: Any) -> str:
    given = {
        "read_only": False,
        "allow_edit": False,
        "age": 0.4,
        "fault": None,
        "digests": {},
        "csrf": viewer.csrf,
    } | context
    return Templates().render(
        page.template, region, page=data, title=page.title, path=page.path, viewer=viewer, **given
    )


class _Elements(HTMLParser):
    """Collects elements as a browser finds them, with their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def _elements(html: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = _Elements()
    parser.feed(html)
    return parser.found


def _regions(html: str) -> list[str]:
    return re.findall(r'data-region="(\w+)"', html)


def test_every_page_has_an_address_here() -> None:
    assert {page.path for page in PAGES} == ADDRESSES.keys()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path)
def test_a_page_is_plain_json_and_each_region_is_an_entry_of_it(page: Page, shown: dict[str, Any]) -> None:
    data = shown[page.path]
    assert json.loads(json.dumps(data)) == data
    regions = _regions(_rendered(page, data))
    assert regions
    assert set(regions) <= data.keys() - {"head"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path)
def test_a_region_alone_needs_its_own_entry_only(page: Page, shown: dict[str, Any]) -> None:
    data = shown[page.path]
    whole = "".join(_rendered(page, data).split())
    for region in _regions(_rendered(page, data)):
        alone = _rendered(page, {"head": data["head"], region: data[region]}, region)
        assert "".join(alone.split()) in whole
        assert re.match(rf'\s*<\w+[^>]* data-region="{region}"', alone)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path)
def test_hostile_names_stay_text_and_nothing_is_inline(page: Page, shown: dict[str, Any]) -> None:
    elements = _elements(_rendered(page, shown[page.path]))
    assert {tag for tag, _ in elements}.isdisjoint({"img", "style", "iframe", "object"})
    names = {name for _, attributes in elements for name in attributes}
    assert {name for name in names if name == "style" or name.startswith("on")} == set()
    assert all(attributes.get("src") for tag, attributes in elements if tag == "script")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path)
def test_viewers_and_read_only_pages_have_no_actions(page: Page, shown: dict[str, Any]) -> None:
    data = shown[page.path]
    for html in (
        _rendered(page, data, read_only=True),
        _rendered(page, data, viewer=replace(OPERATOR, role=Role.VIEWER)),
    ):
        assert "data-action" not in html
        assert not re.search("(Rewind|Backfill|Redrive \\w+)…", html)
    if page.template not in WITHOUT_ACTIONS:
        assert "data-action" in _rendered(page, data)


@pytest.mark.parametrize("path", ["/", "/nodes", "/runs", "/pipelines/{pipeline}"])
def test_an_empty_fleet_shows_the_next_command(path: str, empty: Dashboard) -> None:
    (page,) = [page for page in PAGES if page.path == path]
    html = _rendered(page, page.data(empty, ADDRESSES[path]))
    assert "<code>holdfast r" in html
    assert "pipeline.yaml" in html


def test_what_nobody_has_measured_is_a_dash_and_never_zero(empty: Dashboard) -> None:
    (page,) = [page for page in PAGES if page.path == "/"]
    html = _rendered(page, page.data(empty, {}))
    assert "lag –" in html
    assert "lag 0" not in html


def test_needs_name_failures_silent_nodes_runs_and_dead_letters(shown: dict[str, Any]) -> None:
    texts = [need["text"] for need in shown["/"]["needs"]]
    assert texts[:3] == [
        "8 partitions have failed in clicks",
        "n7 is silent",
        "run backfill-2026-11-16 is completed with errors",
    ]
    assert "clicks has dead letters" in texts


def test_nothing_is_needed_of_a_fleet_that_works() -> None:
    partitions = dict.fromkeys(Status, 0) | {"ASSIGNED": 3}
    row = {"pipeline": "p", "state": "active", "nodes": 1, "partitions": partitions, "counts": {"dead": 0}}
    node = {"name": "n1", "alive": True, "leases": 3}
    assert list(needs({"pipelines": [row], "nodes": [node], "runs": []}, "f.yaml")) == []
    (needed,) = needs({"pipelines": [row | {"nodes": 0}], "nodes": [], "runs": []}, "f.yaml")
    assert needed["command"] == "holdfast run f.yaml"


def test_a_cell_of_the_map_is_the_partition_at_its_index(dashboard: Dashboard) -> None:
    keys = sorted(row.key for row in dashboard.store.find(Query(dashboard.identifier("clicks"))))
    for index in (0, 7, 1212):
        found = show_cell(dashboard, {"pipeline": "clicks", "index": str(index)})["cell"]
        assert (found["index"], found["key"]) == (index, keys[index])
    for text in ("1213", "-1", "x", ""):
        with pytest.raises(NotFound):
            show_cell(dashboard, {"pipeline": "clicks", "index": text})


def test_all_partitions_are_reached_page_by_page(dashboard: Dashboard) -> None:
    keys, after = list[str](), ""
    while True:
        found = show_pipeline(dashboard, {"pipeline": "clicks", "after": after})["partitions"]
        keys += [row["sourcePartitionKey"] for row in found["rows"]]
        if found["next"] is None:
            break
        assert len(found["rows"]) == PAGE_SIZE
        after = keys[-1]
    assert keys == sorted(keys)
    assert len(keys) == found["matching"] == 1213


@pytest.mark.parametrize(
    ("wanted", "keys"),
    [
        ({"key": "clicks|900"}, ["clicks|900", *(f"clicks|{number}" for number in range(9000, 9010))]),
        ({"key": "clicks|9011"}, ["clicks|9011"]),
        ({"key": "clicks|<"}, [f"clicks|{HOSTILE}"]),
        ({"key": "zebra"}, []),
        ({"node": "n7"}, [f"clicks|{number}" for number in range(9000, 9012)]),
        ({"node": "n7", "key": "clicks|9001"}, ["clicks|9001"]),
        ({"node": "nobody"}, []),
    ],
)
def test_partitions_are_filtered_by_key_and_node(wanted: dict[str, str], keys: list[str], dashboard: Dashboard) -> None:
    found = show_pipeline(dashboard, {"pipeline": "clicks", **wanted})["partitions"]
    assert [row["sourcePartitionKey"] for row in found["rows"]] == keys
    assert found["matching"] is None


def test_partitions_are_filtered_by_status_and_counted(dashboard: Dashboard) -> None:
    found = show_pipeline(dashboard, {"pipeline": "clicks", "status": "failed"})["partitions"]
    assert {row["sourcePartitionStatus"] for row in found["rows"]} == {"FAILED"}
    assert found["matching"] == len(found["rows"]) == 8


def test_what_does_not_exist_is_named(dashboard: Dashboard) -> None:
    pages = {page.path: page.data for page in PAGES}
    with pytest.raises(NotFound, match="clicks"):
        pages["/pipelines/{pipeline}"](dashboard, {"pipeline": "click"})
    with pytest.raises(UsageError, match="UNASSIGNED"):
        pages["/pipelines/{pipeline}"](dashboard, {"pipeline": "clicks", "status": "LOST"})
    with pytest.raises(PartitionNotFound):
        pages["/pipelines/{pipeline}/partition"](dashboard, {"pipeline": "clicks", "key": "no"})
    with pytest.raises(NotFound, match="runs list"):
        pages["/runs/{pipeline}"](dashboard, {"pipeline": "clicks", "run": "no"})


def test_a_partition_offers_what_its_status_allows(empty: Dashboard) -> None:
    (page,) = [page for page in PAGES if page.template == "partition.html"]
    offered = {
        Status.UNASSIGNED: ["Fail"],
        Status.ASSIGNED: ["Release", "Fail"],
        Status.CLOSED: ["Reopen", "Fail"],
        Status.COMPLETED: ["Reopen"],
        Status.FAILED: ["Reopen"],
    }
    identifier = empty.identifier("clicks")
    empty.store.add([Lease(identifier, status, ownership=Ownership(status, due_at=None)) for status in Status])
    for status, actions in offered.items():
        html = _rendered(page, page.data(empty, {"pipeline": "clicks", "key": status.value}))
        assert re.findall(r'data-action="(\w+)"', html) == actions
        assert "Rewind…" not in html


def test_a_partition_of_kafka_that_was_read_can_be_rewound(empty: Dashboard) -> None:
    (page,) = [page for page in PAGES if page.template == "partition.html"]
    for pipeline, key, offered in (("clicks", "clicks|1", True), ("orders", "orders|1", False)):
        empty.store.add([Lease(empty.identifier(pipeline), key, progress=Progress(position={"offset": 9}))])
        html = _rendered(page, page.data(empty, {"pipeline": pipeline, "key": key}))
        assert ("/rewind?key=" in html) is offered


def test_what_a_redrive_would_send_is_shown_and_the_button_names_that_number() -> None:
    (page,) = [page for page in PAGES if page.template == "redrive.html"]
    head = {"file": "f.yaml", "pipeline": "clicks", "sink": "files", "reason": HOSTILE, "key": ""}
    found = {
        "number": 3,
        "partitions": 60,
        "shown": [{"key": HOSTILE, "letters": 2}],
        "refused": {HOSTILE: 1},
        "left": 0,
        "problem": None,
    }
    html = _rendered(page, {"head": head, "preview": found, "letters": []})
    assert "img" not in {tag for tag, _ in _elements(html)}
    assert "and 59 more partitions" in html
    (button,) = [attributes for _, attributes in _elements(html) if "data-action" in attributes]
    assert button["data-url"] == "/api/v1/pipelines/clicks/letters:redrive"
    assert json.loads(button["data-body"] or "") == {"sink": "files", "key": None, "containing": HOSTILE, "expect": 3}
    assert "data-action" not in _rendered(page, {"head": head, "preview": found | {"number": 0}, "letters": []})


@pytest.mark.parametrize(
    ("template", "head", "run", "body"),
    [
        (
            "rewind.html",
            {"key": "clicks|1", "to": "2026-01-01"},
            {"kind": "rewind", "key": "clicks|1", "from": 12_000, "to": 90_000},
            {"key": "clicks|1", "to": "12000"},
        ),
        (
            "backfill.html",
            {"wanted": {"backup": "raw", "between": "", "topics": "a", "names": ""}, "backups": ["raw"]},
            {"kind": "backfill", "backup": "raw", "between": "..", "topics": ["a"], "names": None},
            {"backup": "raw", "between": "..", "topics": ["a"], "names": None},
        ),
    ],
)
def test_what_a_run_would_do_is_shown_before_it_can_be_started(
    template: str, head: dict[str, Any], run: dict[str, Any], body: dict[str, Any]
) -> None:
    (page,) = [page for page in PAGES if page.template == template]
    head = {"file": "f.yaml", "pipeline": "clicks", **head}
    planned = {**run, "generation": 4, "roots": {"files": "/out-g4"}, "partitions": 1, "records": 78_000}
    found = {"wanted": True, "problem": None, "run": planned}
    html = _rendered(page, {"head": head, "preview": found})
    assert "78,000" in html
    assert "/out-g4" in html
    (button,) = [attributes for _, attributes in _elements(html) if "data-action" in attributes]
    assert json.loads(button["data-body"] or "") == body
    problem = {"wanted": True, "problem": f"no {HOSTILE}", "run": None}
    html = _rendered(page, {"head": head, "preview": problem})
    assert "img" not in {tag for tag, _ in _elements(html)}
    assert "data-action" not in html


def test_letters_that_wait_are_shown_as_text_and_offered_to_be_sent_again() -> None:
    (page,) = [page for page in PAGES if page.template == "letters.html"]
    counts = {"waiting": 3, "sent_again": 1, "cannot_be": 0, "first": None, "last": "2026-01-01T00:00:00+00:00"}
    group = {"pipeline": "clicks", "rows": [{"sink": "files", "reason": HOSTILE, **counts}], "waiting": 3}
    away = {"pipeline": "orders", "rows": [], "waiting": 0, "problem": "the bucket is away"}
    letter = {"sink": "files", "key": "clicks|1", "reason": HOSTILE, "raw": HOSTILE, "cannot_be_sent": None}
    head = {"file": "f.yaml", "pipeline": "clicks", "reason": "", "key": ""}
    html = _rendered(page, {"head": head, "groups": [group | {"problem": None}, away], "letters": [letter]})
    assert "img" not in {tag for tag, _ in _elements(html)}
    assert "the bucket is away" in html
    assert "/letters/redrive?pipeline=clicks&amp;sink=files" in html
    assert "/letters/redrive" not in _rendered(page, {"head": head, "groups": [away], "letters": []})
