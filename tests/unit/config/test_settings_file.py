"""Where a setting is in the file, when something finds out later that it is wrong."""

from __future__ import annotations

import pytest

from holdfast.config import Settings, load_text
from holdfast.config.settings_file import Fragment, SettingProblem
from holdfast.errors import ConfigError
from holdfast.registry import Registry

TEXT = """\
pipelines:
  orders:
    source: {objects: {folder: in}}
    processors:
      - filter: {where: "id > 3 AND stat = 5"}
      - sql:
          query: |
            SELECT *,
              upper(nam) AS name
            FROM records
      - parse_json: {source: valu, schema: id BIGINT}
      - sql: {select: [id, upper(nam) AS n]}
    sinks:
      - opensearch: {hosts: ["http://h:9200"], index: "logs-{tennant}"}
"""
SETTINGS = load_text(TEXT, "shop.yaml", Registry.installed())


def where(path: tuple[str | int, ...], message: str = "wrong", fragment: Fragment | None = None) -> str:
    error = SETTINGS.error([SettingProblem(("pipelines", "orders", *path), message, fragment)])
    ((mark, shown),) = error.problems
    assert shown == message
    return str(mark)


def test_a_part_of_an_expression_is_found_within_its_line() -> None:
    fragment = Fragment("stat", 0, 11, 11)
    assert where(("processors", 0, "filter"), fragment=fragment) == "shop.yaml:5:37"
    assert TEXT.splitlines()[4][36:].startswith("stat")


def test_a_part_of_a_query_of_several_lines_is_found() -> None:
    assert where(("processors", 1, "sql"), fragment=Fragment("nam", 1, 8, 8)) == "shop.yaml:9:21"
    assert TEXT.splitlines()[8][20:].startswith("nam")


def test_the_expression_among_several_is_the_one_that_has_the_fragment_there() -> None:
    assert where(("processors", 3, "sql"), fragment=Fragment("upper(nam) AS n", 0, 0, 6)) == "shop.yaml:12:34"


def test_a_fragment_that_is_nowhere_points_at_the_plugin() -> None:
    assert where(("processors", 0, "filter"), fragment=Fragment("nonsense", 0, 0, 0)) == "shop.yaml:5:9"


def test_a_value_that_the_message_quotes_is_pointed_at() -> None:
    message = "parse_json: there is no column 'valu'; did you mean 'value'?"
    assert where(("processors", 2, "parse_json"), message) == "shop.yaml:11:30"
    assert where(("sinks", 0, "opensearch"), "a template names 'tennant'") == "shop.yaml:14:55"


def test_settings_from_code_name_the_path() -> None:
    made = Settings.model_validate({"pipelines": {}})
    with pytest.raises(ConfigError, match=r"^pipelines\.orders\.source: wrong$"):
        raise made.error([SettingProblem(("pipelines", "orders", "source"), "wrong")])


def test_a_quoted_line_hides_secrets() -> None:
    text = TEXT + "allow_plaintext_secrets: true\n"
    text = text.replace("hosts: [", "username: u, password: hunter22, hosts: [").replace("http:", "https:")
    settings = load_text(text, "shop.yaml", Registry.installed())
    shown = str(settings.error([SettingProblem(("pipelines", "orders", "sinks", 0, "opensearch"), "wrong")]))
    assert "opensearch" in shown
    assert "hunter22" not in shown
