"""Routes: which rows go to which sink. Pure.

A row may go to several sinks, and to none if the settings want that. Rows with a fault have no route: every sink keeps
them as dead letters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.config.models import PipelineSettings
from holdfast.config.sinks import DEFAULT_ROUTE


@dataclass(frozen=True)
class Routes:
    """The conditions of a pipeline by name, and the routes of those sinks that have some."""

    conditions: Mapping[str, str] = field(default_factory=dict)
    by_sink: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def leave_out(self, sinks: int) -> bool:
        """Whether there may be rows that none of so many sinks takes."""
        asked = {route for routes in self.by_sink.values() for route in routes}
        return len(self.by_sink) == sinks and not asked >= {DEFAULT_ROUTE, *self.conditions}


def routes_of(pipeline: PipelineSettings) -> Routes:
    """The routes that the settings tell of."""
    by_sink = {named.name: named.routes for named in pipeline.sinks if named.routes is not None}
    return Routes(pipeline.routes, by_sink)
