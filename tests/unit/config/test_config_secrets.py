"""Secrets come in by reference and never come out."""

from __future__ import annotations

import errno
import os
import pickle
import traceback
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from holdfast.config import Secret, load_text
from holdfast.config.secrets import PlaintextRule, References, Resolved, SecretUrl
from holdfast.errors import ConfigError
from holdfast.registry import Registry
from tests.unit.config.samples import PIPELINE, Objects, failure, problems, settings

SESAME = {"PASSWORD": "sesame"}
NO_PLAIN_TEXT = {"plaintext": PlaintextRule(allowed=False)}


def pipeline(source: str) -> str:
    return PIPELINE.replace("path: in", f"path: in, {source}")


def source(text: str, environ: dict[str, str]) -> Objects:
    config = settings(pipeline(text), environ).pipelines["clicks"].source.config
    assert isinstance(config, Objects)
    return config


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("sesame\n")
    path.chmod(0o600)
    return path


class TestReferences:
    def test_a_variable(self) -> None:
        password = source('password: "${env:PASSWORD}"', SESAME).password
        assert password is not None
        assert password.reveal() == "sesame"

    def test_a_file_without_its_last_line_break(self, secret_file: Path) -> None:
        assert source(f'password: "${{file:{secret_file}}}"', {}).password == Secret("sesame")

    def test_a_reference_within_text_of_any_setting(self) -> None:
        assert source('user: "a-${env:PASSWORD}-${env:PASSWORD}"', SESAME).user == "a-sesame-sesame"

    def test_a_number_may_be_a_reference(self) -> None:
        assert settings("node: {metrics_port: '${env:PORT}'}", {"PORT": "9090"}).node.metrics_port == 9090

    def test_two_dollars_stand_for_one(self) -> None:
        assert source('user: "$${env:PASSWORD} $5"', SESAME).user == "${env:PASSWORD} $5"

    def test_a_value_is_not_read_as_a_reference_again(self) -> None:
        assert source('user: "${env:A}"', {"A": "${env:B}", "B": "x"}).user == "${env:B}"

    def test_a_variable_that_is_not_set(self) -> None:
        assert problems(pipeline('user: "${env:NOPE}"')) == ["3:40 the environment variable 'NOPE' is not set"]

    def test_a_variable_that_is_not_set_is_one_error(self) -> None:
        text = pipeline('endpoint: {host: "${env:NOPE}", port: "${env:NOPE}"}')
        assert [problem.partition(" ")[2] for problem in problems(text)] == 2 * [
            "the environment variable 'NOPE' is not set"
        ]

    @pytest.mark.parametrize("environ", [{}, {"NAME": ""}])
    def test_a_default_stands_for_a_variable_that_is_unset_or_empty(self, environ: dict[str, str]) -> None:
        assert source('user: "${env:NAME:-nobody}"', environ).user == "nobody"

    def test_a_variable_that_is_set_comes_before_its_default(self) -> None:
        assert source('user: "${env:NAME:-nobody}"', {"NAME": "ada"}).user == "ada"

    def test_a_default_of_a_secret_is_plain_text(self) -> None:
        (problem,) = problems(pipeline('password: "${env:NOPE:-sesame}"'))
        assert problem.startswith("3:44 plain-text secrets are not allowed in the file")

    def test_a_variable_that_is_no_text(self) -> None:
        assert problems(pipeline('user: "${env:A}"'), {"A": "\udcff"}) == [
            "3:40 the environment variable 'A' is not UTF-8 text"
        ]

    def test_a_variable_that_cannot_be(self) -> None:
        with pytest.raises(ValueError, match="is not set"):
            References(os.environ).resolve("${env:\ud800}")

    @pytest.mark.parametrize("text", ["${PASSWORD}", "${evn:PASSWORD}", "${env:}", "${env:PASSWORD"])
    def test_what_looks_like_a_reference_but_is_none(self, text: str) -> None:
        assert problems(pipeline(f'user: "{text}"'), SESAME) == [
            "3:40 '${' does not begin a reference; write ${env:NAME} or ${file:PATH}, or $${ for a literal ${"
        ]


class TestSecretFiles:
    @pytest.mark.parametrize("mode", [0o400, 0o440, 0o444, 0o600, 0o640, 0o644])
    def test_a_file_as_kubernetes_mounts_it(self, tmp_path: Path, mode: int) -> None:
        version = tmp_path / "..2026_01_31_12_00_00.1"
        version.mkdir()
        (version / "password").write_text("sesame\n")
        (version / "password").chmod(mode)
        (tmp_path / "..data").symlink_to(version.name)
        (tmp_path / "password").symlink_to("..data/password")
        assert source(f'password: "${{file:{tmp_path}/password}}"', {}).password == Secret("sesame")

    @pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
    def test_a_file_that_others_may_write(self, secret_file: Path, mode: int) -> None:
        secret_file.chmod(mode)
        assert problems(pipeline(f'password: "${{file:{secret_file}}}"')) == [
            f"3:44 other users may write the secret file '{secret_file}' (mode {mode:04o}); run chmod go-w on it"
        ]

    def test_a_file_that_this_process_may_not_read(self, secret_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> int:
            raise PermissionError(errno.EACCES, "Permission denied")

        # Root may read every file, so the refusal is simulated.
        monkeypatch.setattr(os, "open", refuse)
        with pytest.raises(ValueError, match="cannot be read") as caught:
            References({}).resolve(f"${{file:{secret_file}}}")
        assert str(caught.value) == (
            f"the secret file '{secret_file}' cannot be read: Permission denied; "
            f"the process runs as user {os.geteuid()}, group {os.getegid()}"
        )

    @pytest.mark.parametrize(("content", "value"), [("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a\n"), (" a ", " a ")])
    def test_only_the_last_line_break_is_removed(self, secret_file: Path, content: str, value: str) -> None:
        secret_file.write_bytes(content.encode())
        assert References({}).resolve(f"${{file:{secret_file}}}") == value

    def test_a_missing_file(self, tmp_path: Path) -> None:
        assert problems(pipeline(f'password: "${{file:{tmp_path}/nope}}"')) == [
            f"3:44 the secret file '{tmp_path}/nope' cannot be read: No such file or directory"
        ]

    def test_a_pipe_does_not_stop_the_program(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe", 0o600)
        assert problems(pipeline(f'password: "${{file:{tmp_path}/pipe}}"')) == [
            f"3:44 the secret file '{tmp_path}/pipe' is not a regular file"
        ]

    def test_a_file_that_is_too_large(self, secret_file: Path) -> None:
        secret_file.write_text("x" * 65_537)
        assert "is larger than 64 KiB" in problems(pipeline(f'password: "${{file:{secret_file}}}"'))[0]

    def test_a_file_that_is_no_text(self, secret_file: Path) -> None:
        secret_file.write_bytes(b"\xff")
        assert "is not UTF-8 text" in problems(pipeline(f'password: "${{file:{secret_file}}}"'))[0]

    def test_a_path_that_cannot_be(self) -> None:
        assert "cannot be read" in problems(pipeline(r'password: "${file:\0}"'))[0]


class TestPlainText:
    def test_it_is_refused_and_not_quoted(self) -> None:
        error = failure(pipeline("password: hunter2"))
        assert str(error) == (
            "holdfast.yaml:3:44: plain-text secrets are not allowed in the file; write ${env:NAME} or ${file:PATH}, "
            "or set allow_plaintext_secrets: true\n"
            "    3 |     source: {objects: {path: in, password: *******}}\n"
            "                                                   ^"
        )

    @pytest.mark.parametrize("allow", ["true", "yes", '"${env:ALLOW}"'])
    def test_it_is_taken_where_the_file_says_so(self, allow: str) -> None:
        text = f"allow_plaintext_secrets: {allow}\n" + pipeline("password: hunter2")
        loaded = settings(text, {"ALLOW": "on"})
        assert loaded.allow_plaintext_secrets
        assert loaded.pipelines["clicks"].source.config.password == Secret("hunter2")

    def test_it_must_be_text_even_then(self) -> None:
        text = "allow_plaintext_secrets: true\n" + pipeline("password: [hunter2]")
        assert problems(text) == ["4:44 a secret must be text; put it in quotes"]

    @pytest.mark.parametrize(
        "text",
        [
            pipeline("password: hunter2, usr: 1"),
            pipeline("pasword: hunter2"),
            pipeline("password: 'hunter2', fragile: hunter2"),
            pipeline("password: [hunter2, hunter2]"),
            pipeline('password: "hunter2'),
            PIPELINE + "    password: hunter2\n   x: 1\n",
            PIPELINE + "    api_key: |\n      hunter2\n      hunter2\n",
            PIPELINE + "password: hunter2 hunter2: x\n",
            "spark: {conf: {fs.secret.key: hunter2}, secret_token: hunter2}",
            "node: {password: hunter2, metrics_port: x}",
            "node: {password: hunter2, name: '\x07'}",
            pipeline("label: 'bad://me:hunter2@host'") + "x: 1",
            "node: {log: 'x://me:hunter2@host'}",
            "node: {log: 'x://me:hunter2@host'",
            pipeline("password: 'x${hunter2}'"),
            pipeline("password: !!int hunter2"),
            pipeline("access_key: hunter2"),
            "alerts: {wbhook: {url: 'https://hooks.example/hunter2/hunter2?x=hunter2'}}",
            "alerts: {webhook: {url: https://hooks.example/hunter2",
            "node: {password: !hunter2 x}",
            "node:\n  password: !hunter2\n",
            "node: {password: !hunter2,x x",
            "spark: {conf: {sasl.jaas.config: hunter2}, x: 1}",
        ],
    )
    @pytest.mark.parametrize("allow", ["", "allow_plaintext_secrets: true\n"])
    def test_no_error_repeats_it(self, text: str, allow: str) -> None:
        assert "hunter2" not in str(failure(allow + text))


class TestUrls:
    @pytest.mark.parametrize(
        "url",
        ["postgresql://h/d", "mysql://user@h:3306/d?ssl=1", "sqlite:////tmp/passwords.db", "postgresql+psycopg://h/d"],
    )
    def test_one_without_a_password_may_be_written_as_it_is(self, url: str) -> None:
        assert TypeAdapter(SecretUrl).validate_python(url, context=NO_PLAIN_TEXT) == Secret(url)

    @pytest.mark.parametrize(
        "url",
        [
            "postgresql://u:hunter2@h/d",
            "postgresql://h/d?password=hunter2",
            "postgresql://h/d?pass%77ord=hunter2",
            "postgresql://h/d?sslmode=require;SSLPassword=hunter2",
            "mysql://h/d?passwd=hunter2",
            "host=h password = hunter2",
            "host=h",
            "jdbc:postgresql://u:hunter2@h/d",
            "http://[",
        ],
    )
    def test_everything_else_is_a_secret(self, url: str) -> None:
        with pytest.raises(ValidationError, match="plain-text secrets"):
            TypeAdapter(SecretUrl).validate_python(url, context=NO_PLAIN_TEXT)


class TestNeverShown:
    def test_a_secret_does_not_show_itself(self) -> None:
        secret = Secret("sesame")
        for shown in (str(secret), repr(secret), f"{secret}", f"{secret!r:>3}", TypeAdapter(Secret).dump_json(secret)):
            assert shown in {"***", b'"***"'}

    def test_secrets_are_compared_by_value_and_survive_a_trip_to_an_executor(self) -> None:
        secret = Secret("sesame")
        assert pickle.loads(pickle.dumps(secret)) == secret  # noqa: S301 (our own bytes)
        assert len({secret, Secret("sesame")}) == 1
        assert secret != Secret("other")
        assert secret != "sesame"

    def test_resolved_text_shows_its_reference(self) -> None:
        resolved = References(SESAME).resolve("${env:PASSWORD}")
        assert repr(resolved) == "'${env:PASSWORD}'"
        copy = pickle.loads(pickle.dumps(resolved))  # noqa: S301 (our own bytes)
        assert isinstance(copy, Resolved)
        assert (copy, copy.written) == ("sesame", "${env:PASSWORD}")

    def test_settings_do_not_show_it(self) -> None:
        text = pipeline('password: "${env:PASSWORD}"') + 'spark: {conf: {fs.key: "${env:PASSWORD}"}}'
        loaded = settings(text, SESAME)
        for shown in (repr(loaded), loaded.model_dump_json(), str(loaded.model_dump())):
            assert "sesame" not in shown
        assert loaded.spark.plain_conf() == {"fs.key": "sesame"}

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            (
                pipeline('label: "bad${env:PASSWORD}"'),
                "3:41 'bad${env:PASSWORD}' is not accepted; the reason is not shown because it may contain the value",
            ),
            (
                PIPELINE.replace("path: in", 'path: "${env:PASSWORD}", user: "${env:PASSWORD}"'),
                "3:23 user ${env:PASSWORD} is the path, too",
            ),
            (
                pipeline('fragile: "${env:PASSWORD}"'),
                "3:23 source 'objects' failed while checking its settings: KeyError: '${env:PASSWORD}'",
            ),
            ("node: {metrics_port: '${env:PASSWORD}'}", "1:22 expected a whole number, not '${env:PASSWORD}'"),
            (
                "node: {session_timeout: '${env:PASSWORD}'}",
                "1:25 '${env:PASSWORD}' is not a duration; write 30s, 5m, 1h or PT30S",
            ),
            ("node: {log: '${env:PASSWORD}'}", "1:13 expected 'text' or 'json', not '${env:PASSWORD}'"),
            ("node: {nmae: '${env:PASSWORD}'}", "1:8 unknown key 'nmae'; did you mean 'name'?"),
        ],
    )
    def test_no_error_carries_what_a_reference_stands_for(self, text: str, problem: str) -> None:
        assert problems(text, SESAME) == [problem]
        error = failure(text, SESAME)
        assert "sesame" not in "".join(traceback.format_exception(error))
        assert error.__context__ is None

    @pytest.mark.parametrize(
        "text",
        [
            "processors: [{grok: {match: {value: '%{${env:PASSWORD}}'}}}]",
            "sinks: [{opensearch: {hosts: ['https://h'], index: 'a-{${env:PASSWORD}'}}]",
            "sinks: [{opensearch: {hosts: ['https://h'], index: a, document_id: '{${env:PASSWORD}'}}]",
            "sinks: [{files: {root: 's3:///${env:PASSWORD}', format: jsonl}}]",
            "sinks: [{files: {root: /x, format: '${env:PASSWORD}'}}]",
            "sinks: [{files: {root: /x, format: jsonl, layout: '{${env:PASSWORD}}'}}]",
            "routes: {a: '${env:PASSWORD} ('}",
        ],
    )
    def test_nor_does_one_of_a_built_in_plugin(self, text: str) -> None:
        with pytest.raises(ConfigError) as caught:
            load_text(f"pipelines: {{p: {{{text}}}}}", "f.yaml", Registry.installed(), {"PASSWORD": "s3sesame"})
        assert "s3sesame" not in "".join(traceback.format_exception(caught.value)).replace('"s3sesame"', "")

    def test_values_that_are_parts_of_words_leave_messages_readable(self) -> None:
        text = (
            "pipelines: {p: {sinks: [{opensearch: {hosts: ['https://h'], index: '$${env:B}${env:A}', username: x}}]}}"
        )
        with pytest.raises(ConfigError, match="username and password are needed together"):
            load_text(text, "f.yaml", Registry.installed(), {"A": "e"})

    @pytest.mark.parametrize("key", ["pa\tssword", "pass word", "'password", "pw"])
    def test_nor_the_line_of_a_plain_secret_whose_key_is_a_mistake(self, key: str) -> None:
        text = f"source_coordination:\n  store:\n    postgresql:\n      {key}: s3sesame\n"
        with pytest.raises(ConfigError) as caught:
            load_text(text, "f.yaml", Registry.installed(), {})
        assert "s3sesame" not in str(caught.value)
