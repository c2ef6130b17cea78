from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.config.samples import problems, settings

EVERYTHING = """\
alerts:
  webhook: {url: "${env:HOOK}", allow_private: true, timeout: 2s}
  unreachable_after: 15s
  lag_records: 100000
  lag_seconds: 600
  repeat_after: 30m
"""


def test_every_setting_arrives() -> None:
    alerts = settings(EVERYTHING, {"HOOK": "https://hooks.example.com/T0/sesame"}).alerts

    assert alerts.webhook is not None
    assert alerts.webhook.url.reveal() == "https://hooks.example.com/T0/sesame"
    assert (alerts.webhook.allow_private, alerts.webhook.timeout) == (True, 2)
    assert (alerts.unreachable_after, alerts.repeat_after) == (15, 1800)
    assert (alerts.lag_records, alerts.lag_seconds) == (100_000, 600)
    assert "sesame" not in repr(alerts) + alerts.model_dump_json()


def test_what_is_not_given_has_a_default() -> None:
    alerts = settings("node: {}").alerts
    assert (alerts.webhook, alerts.unreachable_after, alerts.repeat_after) == (None, 20, 3600)
    assert (alerts.lag_records, alerts.lag_seconds) == (None, None)
    webhook = settings("alerts: {webhook: {url: '${env:HOOK}'}}", {"HOOK": "http://h"}).alerts.webhook
    assert webhook is not None
    assert (webhook.allow_private, webhook.timeout) == (False, 5)


def test_the_page_shows_the_defaults() -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/alerts.md").read_text()
    shown = page.partition("```yaml\n")[2].partition("```")[0]
    address = {"ALERT_WEBHOOK": "https://h/"}

    assert (
        settings(shown, address).alerts == settings("alerts: {webhook: {url: '${env:ALERT_WEBHOOK}'}}", address).alerts
    )


def test_the_address_is_a_secret() -> None:
    (problem,) = problems("alerts: {webhook: {url: 'https://hooks.example.com/sesame'}}")
    assert "plain-text secrets are not allowed in the file" in problem
    assert "sesame" not in problem


@pytest.mark.parametrize(
    "url",
    [
        "hooks.example.com/sesame",
        "ftp://hooks.example.com/sesame",
        "file:///etc/sesame",
        "https:///sesame",
        "https://hooks.example.com:port/sesame",
        "https://hooks.example.com:0/sesame",
        "https://[::1/sesame",
        "https://hooks.example.com/sesame and more",
        "https://hooks.example.com/sesame\r\nHost: other",
        "https://hooks.example.com/sesamé",
        "https://user:sesame@hooks.example.com/",
        "https://" + 64 * "a" + ".com/sesame",
    ],
)
def test_an_address_that_is_none_is_refused_and_not_shown(url: str) -> None:
    (problem,) = problems("alerts: {webhook: {url: '${env:HOOK}'}}", {"HOOK": url})

    assert problem.startswith("1:25 ")
    assert "sesam" not in problem
    assert "hooks" not in problem


@pytest.mark.parametrize("text", ["unreachable_after: 0s", "lag_records: 0", "lag_seconds: 0", "repeat_after: 0s"])
def test_limits_are_more_than_nothing(text: str) -> None:
    assert "too small" in problems(f"alerts: {{{text}}}")[0]
