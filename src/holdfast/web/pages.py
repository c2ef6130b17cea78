"""The pages of the dashboard, see `holdfast.web.page` for how a page is made."""

from __future__ import annotations

from holdfast.web.page import Page
from holdfast.web.pages_configuration import show_configuration
from holdfast.web.pages_fleet import show_nodes, show_overview
from holdfast.web.pages_functions import show_functions
from holdfast.web.pages_health import show_alerts, show_proof
from holdfast.web.pages_history import show_audit, show_generations
from holdfast.web.pages_letters import show_letters, show_redrive
from holdfast.web.pages_partitions import show_cell, show_partition, show_pipeline
from holdfast.web.pages_runs import show_backfill, show_rewind, show_run, show_runs

_FILTER = ("run", "status", "node", "key", "after")
_LETTERS = ("pipeline", "reason", "key")
_BACKFILL = ("backup", "between", "topics", "names")

PAGES = (
    Page("/", "overview.html", show_overview, title="Overview"),
    Page("/pipelines/{pipeline}/partition", "partition.html", show_partition, parameters=("run", "key")),
    Page("/pipelines/{pipeline}/cell", "cell.html", show_cell, title="Partition", parameters=("run", "index")),
    Page("/pipelines/{pipeline}/rewind", "rewind.html", show_rewind, parameters=("key", "to")),
    Page("/pipelines/{pipeline}/backfill", "backfill.html", show_backfill, parameters=_BACKFILL),
    Page("/pipelines/{pipeline}", "pipeline.html", show_pipeline, parameters=_FILTER),
    Page("/nodes", "nodes.html", show_nodes, title="Nodes"),
    Page("/runs", "runs.html", show_runs, title="Runs"),
    Page("/runs/{pipeline}", "run.html", show_run, parameters=("run",)),
    Page("/letters", "letters.html", show_letters, title="Dead letters", parameters=_LETTERS),
    Page("/letters/redrive", "redrive.html", show_redrive, parameters=(*_LETTERS, "sink")),
    Page("/generations", "generations.html", show_generations, title="Generations"),
    Page("/functions", "functions.html", show_functions, title="Functions"),
    Page("/alerts", "alerts.html", show_alerts, title="Alerts"),
    Page("/proof", "proof.html", show_proof, title="Proof"),
    Page("/configuration", "configuration.html", show_configuration, title="Configuration"),
    Page("/audit", "audit.html", show_audit, title="Audit", parameters=("before",)),
)
