"""Errors of a wrong file: position and plain message."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.config import load
from holdfast.errors import ConfigError, Mark
from tests.unit.config.samples import PIPELINE, REGISTRY, failure, problems


def test_an_error_names_the_file_and_shows_the_line_and_the_place() -> None:
    assert str(failure("source_coordination:\n  partion_prefix: team-a\n")) == (
        "holdfast.yaml:2:3: unknown key 'partion_prefix'; did you mean 'partition_prefix'?\n"
        "    2 |   partion_prefix: team-a\n"
        "          ^"
    )


def test_all_problems_are_told_at_once_in_the_order_of_the_file() -> None:
    text = """\
        node:
          log: jsn
          log: text
        pipelines:
          clicks:
            source: {kafak: }
            sinks: [{files: {pat: out}}]
            batch: {timeout: 30x, max_bytes: "${env:NOPE}"}
        pipelins: 1
    """
    assert problems(text) == [
        "2:8 expected 'text' or 'json', not 'jsn'; did you mean 'json'?",
        "3:3 the key 'log' is given twice",
        "6:14 source 'kafak' is not installed; installed: objects",
        "7:22 unknown key 'pat'; did you mean 'path'?",
        "8:22 '30x' is not a duration; write 30s, 5m, 1h or PT30S",
        "8:38 the environment variable 'NOPE' is not set",
        "9:1 unknown key 'pipelins'; did you mean 'pipelines'?",
    ]


class TestKeys:
    def test_an_unknown_key_of_a_plugin_is_answered_with_the_right_one(self) -> None:
        text = PIPELINE.replace("path: in", "path: in, pasword: x")
        assert problems(text) == ["3:34 unknown key 'pasword'; did you mean 'password'?"]

    def test_an_unknown_key_deep_in_a_plugin_is_answered_with_the_right_one(self) -> None:
        text = PIPELINE.replace("path: in", "path: in, endpoint: {host: a, prt: 1}")
        assert problems(text) == ["3:54 unknown key 'prt'; did you mean 'port'?"]

    def test_a_key_that_resembles_none_is_answered_with_all(self) -> None:
        assert problems("source_coordination: {zzz: 1}") == [
            "1:23 unknown key 'zzz'; possible: ownership_timeout, partition_prefix, store"
        ]

    def test_a_missing_key_is_told_at_the_mapping_that_lacks_it(self) -> None:
        text = """\
            pipelines:
              clicks:
                generation: 1
                sinks:
                  - files:
                      format: {jsonl: }
        """
        assert problems(text) == [
            "3:5 missing key 'source' in pipelines.clicks",
            "6:11 missing key 'path' in pipelines.clicks.sinks.0.files",
        ]

    def test_a_key_that_stands_twice_is_told_at_the_second(self) -> None:
        assert problems("node:\n  log: text\n  'log': text") == ["3:3 the key 'log' is given twice"]

    @pytest.mark.parametrize("name", ["my clicks", "$clicks", "a" * 65, "clicks.raw", ""])
    def test_a_pipelines_name_is_a_word(self, name: str) -> None:
        shown = name if len(name) <= 60 else name[:57] + "..."
        assert problems(PIPELINE.replace("clicks", f"'{name}'")) == [
            f"2:3 '{shown}' is not a name; use 1 to 64 letters, digits, '_' and '-'"
        ]

    def test_a_merge_key_is_refused(self) -> None:
        assert problems("node:\n  <<: {log: text}") == ["2:3 merging with '<<' is not supported; repeat the keys"]

    def test_a_list_as_key_is_refused(self) -> None:
        assert problems("node: {[a, b]: 1}") == ["1:8 a key must be plain text"]


class TestPlugins:
    def test_a_store_that_is_not_installed(self) -> None:
        assert problems("source_coordination: {store: {dynamodb: {a: 1}}}") == [
            "1:31 store 'dynamodb' is not installed; installed: in_memory, sqlite"
        ]

    def test_a_misspelt_plugin_is_answered_with_the_right_one(self) -> None:
        assert problems("source_coordination: {store: {sqllite: {path: a}}}") == [
            "1:31 store 'sqllite' is not installed; did you mean 'sqlite'? installed: in_memory, sqlite"
        ]

    def test_a_plugin_inside_a_plugin(self) -> None:
        text = PIPELINE.replace("path: out", "path: out, format: {parqet: }")
        assert problems(text) == ["4:42 format 'parqet' is not installed; installed: jsonl"]

    def test_settings_that_are_not_indented_below_their_plugin(self) -> None:
        text = "source_coordination:\n  store:\n    sqlite:\n    path: a\n"
        assert problems(text) == [
            "4:5 only one store is possible here, not 'sqlite' and 'path'; indent the settings of 'sqlite' below it"
        ]

    @pytest.mark.parametrize(
        ("store", "message"),
        [
            ("sqlite", "'sqlite' is the name of a store and needs a ':' after it"),
            ("[sqlite]", "expected the name of a store with its settings"),
            ("{}", "the name of a store is missing here"),
        ],
    )
    def test_a_plugin_that_is_not_a_key(self, store: str, message: str) -> None:
        assert problems(f"source_coordination: {{store: {store}}}") == [f"1:30 {message}"]

    def test_settings_of_a_plugin_that_are_no_mapping(self) -> None:
        assert problems("source_coordination: {store: {sqlite: state.db}}") == [
            "1:39 expected a mapping of 'key: value' lines, not 'state.db'; write 'path: state.db'"
        ]

    def test_a_plugin_that_fails_on_its_settings_is_named(self) -> None:
        text = PIPELINE.replace("path: in", "path: in, fragile: glass")
        assert problems(text) == ["3:23 source 'objects' failed while checking its settings: KeyError: 'glass'"]

    def test_a_message_of_a_plugin_is_passed_on(self) -> None:
        text = PIPELINE.replace("path: in", "path: in, label: bad")
        assert problems(text) == ["3:41 cannot use ad"]


class TestSinks:
    def test_two_sinks_of_one_name(self) -> None:
        text = PIPELINE.replace("{files: {path: out}}", "{name: a, files: {path: x}}, {files: {path: y}, name: a}")
        assert problems(text) == ["4:67 'a' is the name of another sink of this pipeline"]

    def test_a_name_that_is_no_word_is_told_with_the_other_problems_of_the_sink(self) -> None:
        text = PIPELINE.replace("{files: {path: out}}", "{name: a/b, files: {}}")
        assert problems(text) == [
            "4:20 'a/b' is not a name; use 1 to 64 letters, digits, '_' and '-'",
            "4:32 missing key 'path' in pipelines.clicks.sinks.0.files",
        ]

    def test_a_pipeline_needs_a_sink(self) -> None:
        text = PIPELINE.replace("[{files: {path: out}}]", "[]")
        assert problems(text) == ["4:12 this list has too few entries; it needs at least 1"]


class TestValues:
    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("node: {session_timeout: 30}", "1:25 30 is not a duration; write 30s, 5m, 1h or PT30S"),
            ("node: {session_timeout: 30.5}", "1:25 30.5 is not a duration; write 30s, 5m, 1h or PT30S"),
            ("node: {session_timeout: 0s}", "1:25 '0s' is too small; it must be at least 1s"),
            ("node: {session_timeout: 999ms}", "1:25 '999ms' is too small; it must be at least 1s"),
            ("node: {heartbeat_interval: 0s}", "1:28 '0s' is too small; it must be more than 0"),
            ("node: {metrics_port: ninety}", "1:22 expected a whole number, not 'ninety'"),
            ("node: {metrics_port: 70000}", "1:22 70000 is too large; it must be at most 65535"),
            ("node: {metrics_port: true}", "1:22 true is not a whole number"),
            ("node: {metrics_port: [1]}", "1:22 expected a whole number, not this list"),
            ("node: {name: 5}", "1:14 expected text, not 5; put it in quotes"),
            ("node: {name: $x}", "1:14 '$x' must have 1 to 128 visible characters and not begin with '$'"),
            ("node:", "1:6 expected a mapping of 'key: value' lines, but there is no value here"),
            ("spark: {conf: {a: [1]}}", "1:19 this list is not a value for Spark; write text, a number, true or false"),
            ("allow_plaintext_secrets: maybe", "1:26 expected true or false, not 'maybe'"),
            ("pipelines: []", "1:12 expected a mapping of 'key: value' lines, not this list"),
        ],
    )
    def test_a_wrong_value_is_told_at_the_value(self, text: str, problem: str) -> None:
        assert problems(text) == [problem]

    @pytest.mark.parametrize("session", ["", "session_timeout: 30s, "])
    def test_the_heartbeat_is_at_most_half_of_the_session(self, session: str) -> None:
        text = f"node: {{{session}heartbeat_interval: 16s}}"
        assert problems(text) == [
            f"1:{text.index('16s') + 1} '16s' is too long; at most half of session_timeout, 15s, is safe"
        ]

    def test_a_wrong_session_says_nothing_about_the_heartbeat(self) -> None:
        assert problems("node: {session_timeout: x}") == ["1:25 'x' is not a duration; write 30s, 5m, 1h or PT30S"]

    def test_the_lock_of_a_run_is_renewed_in_time(self) -> None:
        text = PIPELINE + "    runs: {lock_timeout: 1m, lock_refresh: 40s}"
        assert problems(text) == ["5:44 '40s' is too long; at most half of lock_timeout, 30s, is safe"]

    def test_the_longest_wait_is_at_least_the_first(self) -> None:
        text = PIPELINE + "    retries: {backoff: 1m, max_backoff: 30s}"
        assert problems(text) == ["5:41 '30s' is less than backoff, which is 1m"]

    def test_entries_that_failed_do_not_make_a_list_too_short(self) -> None:
        text = PIPELINE.replace("path: out", "path: 1")
        assert problems(text) == ["4:28 expected text, not 1; put it in quotes"]


class TestYaml:
    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("a: b: c", "1:5 a ':' is not allowed here; check the indentation, or quote the value"),
            ("node:\n\tlog: text", "2:1 this line is indented with a tab; YAML needs spaces"),
            ("node:\n  log: \ttext", "2:8 a tab is not allowed here; use spaces"),
            ("node:\n  log:text\n  name: a", "2:6 a blank is missing after the ':' of 'log'"),
            ("node:\n  log:text", "2:3 a blank is missing after the ':' of 'log'"),
            ("node: {log:text}", "1:8 a blank is missing after the ':' of 'log'"),
            (
                "node:\n  log: text\n    name: a",
                "3:9 this line is indented below a line that has a value already; give both the same indentation",
            ),
            ("a:\n    b: 1\n  c: 2", "3:3 this line does not fit the indentation of the lines above"),
            ("node:\nlog\nx: 1", "3:1 a ':' is missing after this key"),
            ('node: "text', "1:7 the quote that is opened here is never closed"),
            ("a: 1\n---\nb: 2", "2:1 only one document is allowed in a file; remove this '---'"),
            ("node: *nobody", "1:7 this alias has no anchor above it"),
            (
                "a: {b: ${env:X}}",
                "1:9 a '{' is not allowed here; within {…} and […] a reference needs quotes: \"${env:NAME}\"",
            ),
            ("node: !!python/name:os.system x", "1:7 the tag 'tag:yaml.org,2002:python/name:os.system' is not allowed"),
            ("node: !!python/object:a.B {}", "1:7 the tag 'tag:yaml.org,2002:python/object:a.B' is not allowed"),
            ("node: !!int abc", "1:7 this cannot be read as int"),
            ("node: !!bool abc", "1:7 this cannot be read as bool"),
            ("- a\n- b", "1:1 expected keys such as 'pipelines:' at the top of the file"),
            ("just text", "1:1 expected keys such as 'pipelines:' at the top of the file"),
            ("", "1:1 the file is empty"),
            ("# only a comment\n", "1:1 the file is empty"),
            ("node: a\x07b", "1:8 the character U+0007 is not allowed in YAML"),
        ],
    )
    def test_what_is_no_yaml_for_us(self, text: str, problem: str) -> None:
        assert problems(text) == [problem]

    def test_aliases_cannot_unfold_without_end(self) -> None:
        levels = "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9))
        assert "aliases expand to too many values here" in problems(f"a0: &a0 [x]\n{levels}")[0]

    def test_an_alias_cannot_hold_itself(self) -> None:
        assert problems("node: &n {a: *n}") == ["1:7 an alias refers to the value that it is part of"]

    def test_there_are_not_more_aliases_than_anybody_needs(self) -> None:
        assert problems(f"a: &a 1\nb: [{'*a, ' * 101}]")[0].endswith("more than 100 aliases are not allowed")

    def test_there_are_not_more_levels_than_anybody_needs(self) -> None:
        assert problems("[" * 100_000)[0].endswith("more than 64 levels are not allowed")

    def test_there_are_not_more_values_than_anybody_needs(self) -> None:
        assert problems("[" + "a, " * 50_001 + "]")[0].endswith("more than 50000 values are not allowed")

    @pytest.mark.parametrize("text", [r'"\UFFFFFFFF"', "%YAML " + "9" * 5000 + ".1\n---\na: 1"])
    def test_what_pyyaml_stumbles_over(self, text: str) -> None:
        assert "not valid YAML" in problems(text)[0]

    def test_a_number_that_python_refuses_to_read(self) -> None:
        assert problems("node: {metrics_port: " + "9" * 5000 + "}") == ["1:22 this cannot be read as int"]

    def test_half_a_character(self) -> None:
        assert problems(r'node: {name: "\ud800", "\ud800": 1}') == [
            "1:14 this text cannot be encoded as UTF-8",
            "1:24 a key must be plain text",
        ]


class TestFiles:
    def test_a_missing_file(self, tmp_path: Path) -> None:
        assert _refusal(tmp_path / "x.yaml") == f"{tmp_path}/x.yaml: no such file"

    def test_a_directory(self, tmp_path: Path) -> None:
        assert _refusal(tmp_path) == f"{tmp_path}: is a directory, not a file"

    def test_a_path_that_leads_through_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "a").touch()
        assert _refusal(tmp_path / "a" / "b") == f"{tmp_path}/a/b: cannot be read: Not a directory"

    def test_a_path_that_cannot_be(self) -> None:
        assert "cannot be read" in _refusal("a\0b")

    def test_an_empty_file(self, tmp_path: Path) -> None:
        (tmp_path / "x.yaml").touch()
        assert _refusal(tmp_path / "x.yaml") == f"{tmp_path}/x.yaml:1:1: the file is empty"

    def test_bytes_that_are_no_text(self, tmp_path: Path) -> None:
        (tmp_path / "x.yaml").write_bytes(b"node:\n  name: \xff\n")
        assert _refusal(tmp_path / "x.yaml") == f"{tmp_path}/x.yaml:2:9: this is not UTF-8 text"

    def test_a_file_that_is_too_large(self, tmp_path: Path) -> None:
        (tmp_path / "x.yaml").write_text("#" * 1_000_001)
        assert _refusal(tmp_path / "x.yaml") == f"{tmp_path}/x.yaml: is larger than 1 MB"

    def test_a_byte_order_mark_is_no_part_of_the_text(self, tmp_path: Path) -> None:
        (tmp_path / "x.yaml").write_bytes(b"\xef\xbb\xbfnodes: 1")
        refusal = _refusal(tmp_path / "x.yaml").splitlines()
        assert refusal[0].startswith(f"{tmp_path}/x.yaml:1:1: unknown key 'nodes'")
        assert refusal[1:] == ["    1 | nodes: 1", "        ^"]


class TestQuotedLines:
    def test_the_caret_stands_below_its_place_after_tabs_and_wide_characters(self) -> None:
        error = ConfigError([(Mark("f", 1, 4, "名\ta: b"), "wrong")])
        assert str(error) == "f:1:4: wrong\n    1 | 名\ta: b\n          \t ^"

    def test_a_long_line_is_cut_around_the_caret(self) -> None:
        error = ConfigError([(Mark("f", 1, 501, "a" * 500 + "b" * 500), "wrong")])
        _, line, caret = str(error).splitlines()
        assert line == "    1 | " + "a" * 60 + "b" * 60
        assert line[len(caret) - 1] == "b"
        assert line[len(caret) - 2] == "a"

    def test_what_a_terminal_would_obey_is_not_quoted(self) -> None:
        assert "\x1b" not in str(failure("node: a\x1b[31mb"))
        assert "\x1b" not in str(failure(r'pipelines: {"\e[31m": {}}'))


def _refusal(path: Path | str) -> str:
    with pytest.raises(ConfigError) as refused:
        load(path, REGISTRY)
    return str(refused.value)
