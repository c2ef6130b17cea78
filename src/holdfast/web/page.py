"""How a page is made.

Each page has one function that returns a plain dictionary, exactly what `?format=json` returns, and one template that
gets it as `page`. The function is called in a thread, once for all viewers who look at the same page with the same
parameters: it must not depend on who looks. It may raise `NotFound` (404) and what a store raises (the last
data are shown with their age, or 503 if there are none).

A page is divided into regions: a region is a top-level entry of the dictionary, and a block of the template that is
named `region_` and the name of the entry:

    {% extends "layout.html" %}
    {% block main %}
    {% block region_counts %}
    <section id="region-counts" data-region="counts"> … {{ page.counts.FAILED }} … </section>
    {% endblock %}
    {% endblock %}

`GET <page>?region=counts` returns that block alone. A region may use its own entry of `page` and `page.head`, which is
what does not change. When an entry has changed, the live channel names the region, and the browser fetches and morphs
it. A block is rendered alone, so macros are imported inside of it. Entries without a block are data only.

Templates also get:

- `link(path)`: an address on this server with the prefix of the proxy; `static(name)`: that of a static file;
- `viewer` with `name` and `role`, and `viewer.may(role)`; `csrf`: the token that a form sends back as `csrf`;
- `read_only`: there are no actions; `allow_edit`: the configuration may be saved;
- `age` (seconds) and `fault` (None, or why the data are old); `path`: the page's path with its parameters;
- `digests`: those of the regions' data, which the live channel gets back.

An undefined name is an error, and every value is escaped. There are no inline scripts and no inline styles.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from holdfast.errors import NotFound
from holdfast.web.dashboard import Dashboard

Parameters = Mapping[str, str]
Data = dict[str, Any]
STATIC = Path(__file__).parent / "static"


@dataclass(frozen=True)
class Page:
    """A page. `path` may have parameters in braces; `parameters` are those of the query, which are optional.

    Both kinds are in the mapping that `data` gets. All other parameters of the query are ignored.
    """

    path: str
    template: str
    data: Callable[[Dashboard, Parameters], Data]
    title: str = ""
    parameters: tuple[str, ...] = ()


def as_json(value: Any) -> str:
    """Return JSON, as commands print it with `--json`. Integers keep all their digits."""
    return json.dumps(value)


def digests_of(value: Mapping[str, Any]) -> dict[str, str]:
    """Return a digest of the data of each region, by which a client and the server agree on what is shown."""
    return {name: blake2b(as_json(part).encode(), digest_size=12).hexdigest() for name, part in value.items()}


class Templates:
    """The templates, with autoescape; an undefined name raises."""

    def __init__(self, base_path: str = "") -> None:
        self._digests: dict[str, str] = {}
        self._base_path = base_path
        self._environment = Environment(
            loader=PackageLoader("holdfast.web"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.globals.update(link=self.link, static=self.static)

    def link(self, path: str) -> str:
        """Return an address on this server, which the browser sees below the base path."""
        return f"{self._base_path}{path}"

    def static(self, name: str) -> str:
        """Return the address of a static file; it changes with the file, so that browsers may keep it forever."""
        if name not in self._digests:
            self._digests[name] = sha256((STATIC / name).read_bytes()).hexdigest()[:16]
        return self.link(f"/static/{name}?{self._digests[name]}")

    def render(self, template: str, region: str | None = None, **context: Any) -> str:
        """Return the HTML of a page or of one of its regions. Raises `NotFound` for a region that it does not have."""
        found = self._environment.get_template(template)
        if region is None:
            return found.render(context)
        block = found.blocks.get(f"region_{region}")
        if block is None:
            raise NotFound(f"this page has no region {region!r}")
        return "".join(block(found.new_context(context)))
