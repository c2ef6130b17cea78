"""The page of the configuration: the text of the file on this host, what is wrong with it, and triggers as a form."""

from __future__ import annotations

from holdfast.observe import insights
from holdfast.web.configuration_file import ConfigurationFile
from holdfast.web.dashboard import Dashboard
from holdfast.web.page import Data, Parameters
from holdfast.web.pages_fleet import head, runs_another
from holdfast.web.pages_functions import functions_in
from holdfast.web.trigger import trigger_fields


def show_configuration(dashboard: Dashboard, _parameters: Parameters) -> Data:
    """Return the file as it is written: references are not resolved. Without text if it has secrets in plain text."""
    found = ConfigurationFile(dashboard.file).read()
    shown = {"digest": found.digest, "text": found.text, "fault": found.fault, "text_digest": found.text_digest}
    return {
        "head": head(dashboard),
        "file": {**shown, "triggers": _triggers(dashboard, found.text)},
        "problems": found.problems,
        "nodes": _nodes(dashboard, found.text_digest),
    }


def _nodes(dashboard: Dashboard, digest: str | None) -> Data:
    """Return who has read another text of the file than the one that is here now, and how many have read this one."""
    found = [node for node in insights.nodes(dashboard.store, dashboard.fleet, ()) if node.alive]
    others = [node for node in found if runs_another(node, digest)]
    return {
        "same": sum(None is not digest == node.file_digest for node in found),
        "unknown": sum(node.file_digest is None for node in found),
        "others": [{"name": node.name, "digest": node.file_digest} for node in others],
        "dashboard": digest is None or dashboard.settings.file_digest in {None, digest},
    }


def _triggers(dashboard: Dashboard, text: str | None) -> list[Data]:
    names = [] if text is None else [name for name, _ in functions_in(dashboard)]
    found = {name: trigger_fields(text or "", name) for name in names}
    return [
        {"pipeline": name, "fields": [{**field.row(), "name": field.setting} for field in fields]}
        for name, fields in found.items()
        if fields
    ]
