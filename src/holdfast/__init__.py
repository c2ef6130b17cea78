"""holdfast: data pipelines on any number of Spark applications, every record exactly once.

The names of `__all__` and those of `holdfast.testing` are public: authors of plugins and users of notebooks import them
from here, and they change only with a note in the changelog. Every other module is private and may change.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "holdfast.assemble": "load_settings new_session open_store",
    "holdfast.buckets.bucket": "Bucket Published StagedFile StagedWriter Verdict",
    "holdfast.config": "ByteSize Duration Options PositiveCount Secret Settings",
    "holdfast.errors": (
        "BatchError BeyondRepair ConfigError Halt HoldfastError LeaseLost PartitionError PartitionNotFound "
        "PartitionNotOwned PartitionUpdateFailed Refused SessionExpired SinkUnavailable SourceUnavailable "
        "StagedDataGone StoreError StoreUnavailable SupplierFailed Unavailable UsageError"
    ),
    "holdfast.events": "Event",
    "holdfast.flow.batch": "Batch Close Cut Done Limits Name Plan Wait",
    "holdfast.flow.fault": "Fault batch_fault cut_fault damage_fault record_fault unavailable_fault",
    "holdfast.flow.format": "Format FormatWriter RawWriter",
    "holdfast.flow.letter": "Letter LetterBox LetterId NewLetter Rebuilder RecordReader SourceRecord new_letters",
    "holdfast.flow.pipeline": "ReportsEvents",
    "holdfast.flow.processor": "Processor TaskStep",
    "holdfast.flow.sink": (
        "KeepsLetters KeepsStaged Publication PublishResult PublishesFiles Restages Sink StagesByBatch "
        "VisibleWhenStaged Witness"
    ),
    "holdfast.flow.source": (
        "AfterPublish BATCH_COLUMN CountsScans CutsShort FAULT_COLUMN FixedColumns PublishingListener "
        "StagingListener ITEM_COLUMN ReportsExtents MayChange OUTPUT_FOLDER_COLUMN OffsetPositions "
        "ReadsByConnector Rebuilds RereadsRecords SIZE_COLUMN SYSTEM_COLUMNS SalvagesDamage Source SplitsPartitions "
        "TaskRows UsesSourceCoordination UsesStoreClock WeighsPartitions"
    ),
    "holdfast.flow.staging": "Room StagedBatch Stager Staging",
    "holdfast.from_python": "Pipeline load run",
    "holdfast.functions.contexts": "FunctionContext FunctionResponse",
    "holdfast.functions.events": "FunctionEvent QualifiedOffset",
    "holdfast.functions.output": "Records",
    "holdfast.leases.keeper": "Keeper",
    "holdfast.leases.lease": "FINISHED Json Key Lease Partition Status",
    "holdfast.leases.query": "Query",
    "holdfast.leases.session": "Session",
    "holdfast.leases.source_coordinator": "SourceCoordinator",
    "holdfast.leases.split": "Split",
    "holdfast.leases.store": "ClaimRequest ClaimingStore Outcome Snapshot Store Swap",
    "holdfast.leases.world": "World host_world",
    "holdfast.observe.progress": "Summary",
    "holdfast.registry": "Plugin Registry",
    "holdfast.spark.columns": "fault",
}
"""Public names by module."""


def lazy_names(package: str, public: dict[str, str]) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """`__all__`, `__getattr__` and `__dir__` of a package whose public names are in other modules.

    Each name is loaded when it is first used, so that importing the package loads nothing else.
    """
    modules = {name: module for module, names in public.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(modules[name]), name)

    return list(modules), load, lambda: sorted([*vars(sys.modules[package]), *modules])


__all__, __getattr__, __dir__ = lazy_names(__name__, _PUBLIC)
