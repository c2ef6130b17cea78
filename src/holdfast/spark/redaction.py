"""What Spark shows as redacted on its pages, in its logs and in plans."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from holdfast.spark.session import SECRETS

OPTIONS = "spark.sql.redaction.options.regex"
SETTINGS = "spark.redaction.regex"


def redaction(secrets: Iterable[str], settings: Mapping[str, str]) -> dict[str, str]:
    """Return Spark's two settings for it. They cover these names, names that say secret, and what `settings` wants."""
    words = (SECRETS.removeprefix("(?i)"), "jaas", "credential", *map(re.escape, sorted(secrets)))
    ours = f"(?i:{'|'.join(words)})"
    wanted = {SETTINGS: ours, OPTIONS: f"{ours}|(?i:url)"}
    return {name: f"{settings[name]}|{regex}" if settings.get(name) else regex for name, regex in wanted.items()}
