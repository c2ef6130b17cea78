"""The trigger of a function: read and changed in the text of a file, whose references and comments stay."""

from __future__ import annotations

import pytest

from holdfast.errors import UsageError
from holdfast.web.trigger import LABELS, trigger_fields, with_trigger

BLOCK = """\
pipelines:
  orders:
    sinks:
      - files: {root: x}
      - name: mine
        function:
          # the handler
          handler: handler.py
          maxWorkers: 8  # as many as shards
          seekTo: Earliest
          password: ${env:ACCESS_KEY}
  flow:
    sinks: [{function: {handler: h.py, url: "http://w:8081/users/s@cg0"}}]
"""


def values(text: str, pipeline: str) -> dict[str, str | None]:
    return {field.row()["label"]: field.value for field in trigger_fields(text, pipeline)}


def test_fields_have_the_names_of_nuclios_dashboard_and_references_as_written() -> None:
    assert values(BLOCK, "orders") == {
        "URL": None,
        "Max Workers": "8",
        "Seek To": "Earliest",
        "Read Batch Size": "64",
        "Polling Interval": "0s",
        "Password": "${env:ACCESS_KEY}",
        "Session Timeout": "10s",
        "Heartbeat Interval": "3s",
    }
    assert values(BLOCK, "flow")["URL"] == "http://w:8081/users/s@cg0"
    assert trigger_fields(BLOCK, "other") == []


def test_a_password_in_plain_text_is_not_shown() -> None:
    assert values(BLOCK.replace("${env:ACCESS_KEY}", "hunter2"), "orders")["Password"] is None


def test_a_change_touches_its_value_only() -> None:
    same = {"workers": "8", "password": "${env:ACCESS_KEY}", "session_timeout": "10s", "url": ""}
    assert with_trigger(BLOCK, "orders", same) == BLOCK
    changed = with_trigger(BLOCK, "orders", {**same, "workers": "16", "password": "${file:/run/key}"})
    assert changed == BLOCK.replace("maxWorkers: 8", "maxWorkers: 16").replace(
        "password: ${env:ACCESS_KEY}", 'password: "${file:/run/key}"'
    )


@pytest.mark.parametrize("pipeline", ["orders", "flow"])
def test_settings_that_the_file_does_not_have_are_added(pipeline: str) -> None:
    wanted = {"read_batch_size": "100", "heartbeat_interval": "2s", "polling_interval": "250ms"}
    changed = with_trigger(BLOCK, pipeline, wanted)
    assert {name: values(changed, pipeline)[LABELS[name]] for name in wanted} == wanted
    assert "# as many as shards" in changed


def test_what_the_form_cannot_do_is_refused() -> None:
    with pytest.raises(UsageError, match="in the text"):
        with_trigger(BLOCK, "orders", {"workers": ""})
    with pytest.raises(UsageError, match="no setting 'handler'"):
        with_trigger(BLOCK, "orders", {"handler": "evil.py"})
    with pytest.raises(UsageError, match="no function"):
        with_trigger(BLOCK, "other", {"workers": "1"})
