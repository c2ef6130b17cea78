"""Final output folders of the files sink: `_SUCCESS`, hooks, and which records are late for the stager."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.buckets.bucket import Bucket
from holdfast.finalize.output import FinalFolder, FinalizableOutput, FinalTime
from holdfast.finalize.rules import Period, Rules
from holdfast.flow.batch import Batch, Name
from holdfast.flow.manifest import Manifest, decode_manifest
from holdfast.flow.names import Layout, manifest_key
from holdfast.sinks.files.config import FinalizeConfig
from holdfast.sinks.files.hooks import BuiltHook
from holdfast.sinks.files.late_records import LateRule
from holdfast.sinks.files.periods import Periods

SUCCESS = "_SUCCESS"
LEAST_PATIENCE = 600.0


class FilesFinalizing(FinalizableOutput):
    """Output folders of one root. `set_final_times` and `rule` may be called by different threads."""

    def __init__(self, sink: str, bucket: Bucket, root: str, layout: Layout, config: FinalizeConfig) -> None:
        self._sink = sink
        self._bucket = bucket
        self._root = root.rstrip("/") if "://" in root else f"file://{Path(root).absolute().as_posix()}"
        self._layout = layout
        self._config = config
        self._hooks = [BuiltHook(hook) for hook in config.hooks]
        self._periods = Periods(config.templates(), config.zone)
        self.time_patterns = tuple((template, config.zone) for template in config.templates())
        self._final_times: Mapping[str, FinalTime] = {}
        self.rules = Rules(config.lateness, config.idle_after)
        self.interval = config.interval
        self.patience = LEAST_PATIENCE + sum(hook.timeout for hook in self._hooks)

    def period(self, output_folder: str) -> Period | None:
        return self._periods.of(output_folder)

    def manifest(self, name: Name, sequence: int) -> Manifest | None:
        data = self._bucket.read(manifest_key(name, sequence))
        return None if data is None else decode_manifest(data)

    def finish(self, final: FinalFolder) -> str | None:
        fact, only_late = self._fact(final), final.content.late == final.content.rows
        if self._config.success:
            content = json.dumps({**fact, "ends": dict(final.ends)}, sort_keys=True).encode()
            is_new = self._bucket.create(f"{fact['folder']}/{SUCCESS}", content)
            only_late = only_late and not is_new
        for hook in self._hooks:
            if only_late and not hook.on_late:
                continue
            try:
                hook.call(fact)
            except Exception as error:  # noqa: BLE001 - a hook is the user's code; it is called again later
                return f"{type(error).__name__}: {error}"
        return None

    def _fact(self, final: FinalFolder) -> dict[str, Any]:
        folder = self._layout.folder(final.topic, final.output_folder)
        return {
            "pipeline": final.pipeline,
            "sink": self._sink,
            "topic": final.topic,
            "place": final.output_folder,
            "folder": folder,
            "location": f"{self._root}/{folder}",
            "files": final.content.files,
            "rows": final.content.rows,
            "bytes": final.content.size,
            "late": final.content.late,
        }

    # --- for staging -------------------------------------------------------------------------------------------

    def set_final_times(self, topics: Mapping[str, FinalTime]) -> None:
        self._final_times = dict(topics)

    def rule(self, batches: Sequence[Batch]) -> LateRule:
        """Which rows of these batches are late."""
        final_times = self._final_times
        found = {batch.id: final for batch in batches if (final := self._final_for(batch, final_times)) is not None}
        return LateRule(self._periods, self._config.late, self._config.late_place, found)

    def _final_for(self, batch: Batch, final_times: Mapping[str, FinalTime]) -> float | None:
        """The time up to which output folders are final for the batch; None if it has no late records."""
        if batch.restages is not None:
            return ((batch.lease.commit.receipts or {}).get(self._sink) or {}).get("final")
        topic, start = final_times.get(batch.name.stream), batch.cut.start
        if topic is None:
            return None
        offset = start.get("offset", 0) if isinstance(start, dict) else 0
        return None if offset < topic.through.get(batch.name.label, 0) else topic.final
