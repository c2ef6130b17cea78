"""Every action of a person: what commands, pages and the API share. Each is audited.

What most of them do not need is imported where it is used, so that a command starts quickly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from holdfast.assemble import Emit, StoredPipeline, audit_log_of, fleet
from holdfast.config.models import Settings
from holdfast.errors import PartitionNotFound, SelectionChanged, UsageError
from holdfast.flow.generations import Generation
from holdfast.flow.run import Run, RunStatus
from holdfast.leases.action import Action, ActionOutcome, Request, Verdict
from holdfast.leases.controls import Controls
from holdfast.leases.lease import Json, Lease
from holdfast.leases.store import Store
from holdfast.observe import insights
from holdfast.registry import did_you_mean
from holdfast.runs.audited import Auditor, Report
from holdfast.runs.partition_actions import PartitionActions

if TYPE_CHECKING:
    from holdfast.runs.backfill import Backfill
    from holdfast.runs.letter_selection import Choice, Taken
    from holdfast.runs.reindex_configuration import ReindexConfiguration
    from holdfast.runs.reindex_state import EntityIndex
    from holdfast.runs.replace import Replaced, Replacement
    from holdfast.runs.rewind import Rewind
    from holdfast.runs.verification import Verified

T = TypeVar("T")


def _silent(_event: object) -> None:
    pass


@dataclass(frozen=True)
class Actions:
    """What a person may do to the pipelines and nodes of a file, for one request."""

    settings: Settings
    store: Store
    request: Request

    @property
    def auditor(self) -> Auditor:
        return Auditor(audit_log_of(self.settings, self.store), self.request)

    def pipeline(self, name: str, emit: Emit = _silent) -> PipelineActions:
        """Return the actions on a pipeline of the file."""
        return PipelineActions(StoredPipeline(self.settings, self.store, name), self.auditor, emit)

    def pause(self, pipeline: str) -> Report[None]:
        """Let no node work on the pipeline and its runs."""
        identifier, who = self.settings.identifier(pipeline), self.request.who
        action = Action("pipelines pause", pipeline)
        return self.auditor.perform(action, lambda: self._controls.pause(identifier, who))

    def resume(self, pipeline: str) -> Report[None]:
        """Let nodes work on the pipeline again."""
        identifier = self.settings.identifier(pipeline)
        return self.auditor.perform(Action("pipelines resume", pipeline), lambda: self._controls.resume(identifier))

    def drain(self, node: str) -> Report[None]:
        """Let the node of that name work on nothing. Raises `UsageError` if no node has or had that name."""
        return self._of_node("drain", node, lambda: self._controls.drain(node, self.request.who))

    def undrain(self, node: str) -> Report[None]:
        """Let a drained node work again."""
        return self._of_node("undrain", node, lambda: self._controls.undrain(node))

    def _of_node(self, name: str, node: str, change: Callable[[], None]) -> Report[None]:
        def act() -> None:
            self._check_node(node)
            change()

        return self.auditor.perform(Action(name, parameters={"node": node}), act)

    def _check_node(self, name: str) -> None:
        """Raises `UsageError` for a name that no node has or had, unless it is drained."""
        names = {node.name for node in insights.nodes(self.store, fleet(self.settings), ())} | self._controls.drained()
        if name not in names:
            hint = did_you_mean(name, names) or f"; there are {', '.join(sorted(names)) or 'none'}"
            raise UsageError(f"there is no node {name!r}{hint}")

    @property
    def _controls(self) -> Controls:
        return Controls(self.store, self.auditor.log.new_id, fleet(self.settings))


@dataclass(frozen=True)
class PipelineActions:
    """What a person may do to one pipeline, its partitions, runs and generations."""

    stored: StoredPipeline
    auditor: Auditor
    emit: Emit = _silent
    """Gets the events of runs that are carried out here."""

    def partitions(
        self, each: Callable[[Lease], object] = lambda _row: None, *, halt: bool = False
    ) -> PartitionActions:
        """Return the actions on partitions."""
        return PartitionActions(self.stored, self.auditor, each, halt)

    # --- runs ----------------------------------------------------------------------------------------------------

    def stop_run(self, run: str) -> Report[Run]:
        """Stop a run: nodes give up its partitions within a heartbeat."""

        def act() -> Run:
            runs = self.stored.runs()
            return runs.settle_stop(runs.stop(existing(self.stored, run).id).id)

        return self._of_run("runs stop", act, run=run)

    def resume_run(self, run: str) -> Report[Run]:
        """Let a stopped run continue where it was."""
        runs = self.stored.runs()
        return self._of_run("runs resume", lambda: runs.resume(existing(self.stored, run).id), run=run)

    def throttle_run(self, run: str, rate: float | None) -> Report[Run]:
        """Limit a run to that many records per second over all nodes; None: no limit."""
        runs = self.stored.runs()

        def act() -> Run:
            return runs.throttle(existing(self.stored, run).id, rate)

        return self._of_run("runs throttle", act, run=run, rate=rate)

    def join_run(self, run: str) -> Report[Run]:
        """Work on a run in this process until it has ended.

        Raises `UsageError` if it has ended already, or `Refused`.
        """
        from holdfast.runs import execution
        from holdfast.runs.kinds import run_pipeline_of
        from holdfast.runs.redrive import mark_sent

        def act() -> Run:
            existing(self.stored, run)
            configuration = execution.unfinished(self.stored.runs(), run).configuration
            joined = execution.join(run_pipeline_of(self.stored, configuration), run, self.emit)
            if configuration["kind"] == "redrive":
                mark_sent(self.stored, run)
            return joined

        return self._of_run("runs join", act, run=run)

    def rewind(self, request: Rewind, *, root: str | None = None, detached: bool = True) -> Report[Run]:
        """Read part of a Kafka partition again as the next generation. Blocks unless it is detached."""
        from holdfast.runs.rewind import rewind

        act = partial(rewind, self.stored, request, self.emit, root=root, by=self._who, detached=detached)
        return self._of_run("rewind", act, **asdict(request), root=root, detached=detached)

    def replace(self, request: Rewind) -> Report[Replaced]:
        """Move the files of part of a Kafka partition away, and let the live pipeline write them again."""
        action = Action("rewind --replace", self.stored.name, parameters=asdict(request))
        # It is refused also after the partition was set aside.
        return self.auditor.perform(action, lambda: self._replacement(request).carry_out(), nothing_done=())

    def preview_replacement(self, request: Rewind) -> Replaced:
        """Return what `replace` would do. Changes nothing."""
        return self._replacement(request).preview()

    def _replacement(self, request: Rewind) -> Replacement:
        from holdfast.runs.replace import replacement_of

        return replacement_of(self.stored, request, self.emit, self._who)

    def backfill(self, request: Backfill, *, root: str | None = None, detached: bool = True) -> Report[Run]:
        """Put records from a backup's files through the processors again. Blocks unless it is detached."""
        from holdfast.runs.backfill import backfill

        act = partial(backfill, self.stored, request, self.emit, root=root, by=self._who, detached=detached)
        given = {**asdict(request), "topics": list(request.topics)}
        return self._of_run("backfill", act, **given, root=root, detached=detached)

    def redrive(self, choice: Choice, *, detached: bool = True, expect: int | None = None) -> Report[Run]:
        """Send the records of dead letters through the processors again. Blocks unless it is detached.

        Raises `SelectionChanged` if the number of waiting letters is not `expect`.
        """
        from holdfast.runs.redrive import redrive

        def act() -> Run:
            if expect is not None and (found := self.preview_redrive(choice, detached=detached).number) != expect:
                raise SelectionChanged(found, expect, "letters")
            return redrive(self.stored, choice, self.emit, by=self._who, detached=detached, expect=expect)

        return self._of_run("redrive", act, **asdict(choice), detached=detached, expect=expect)

    def preview_redrive(self, choice: Choice, *, detached: bool = True) -> Taken:
        """Return what `redrive` would send now, and what it would refuse and why. Changes nothing."""
        from holdfast.runs.redrive import look

        return look(self.stored, choice, detached=detached)

    # --- reindexing ----------------------------------------------------------------------------------------------

    def reindex(self, configuration: ReindexConfiguration, *, changed: bool = False) -> Report[Run]:
        """Start a run that copies live tables into search indexes."""
        from holdfast.runs import reindex_start

        act = partial(reindex_start.start, self.stored, configuration, changed=changed, by=self._who)
        return self._of_run("reindex start", act, configuration=configuration.encode(), changed=changed)

    def promote(self, run: str, *, min_ratio: float | None = None) -> Report[Run]:
        """Start a run that promotes the staged indexes of a run that has ended without being promoted."""
        from holdfast.runs import reindex_start

        def act() -> Run:
            ended = existing(self.stored, run)
            return reindex_start.promote(self.stored, ended, min_ratio=min_ratio, by=self._who)

        return self._of_run("reindex promote", act, promoted=run, min_ratio=min_ratio)

    def rollback(self, entities: tuple[str, ...] = (), *, keep: bool = False) -> Report[Mapping[str, EntityIndex]]:
        """Put the former indexes under their aliases again."""
        from holdfast.runs import reindex_start

        act = partial(reindex_start.rollback, self.stored, entities, keep=keep)
        action = Action("reindex rollback", self.stored.name, parameters={"entities": list(entities), "keep": keep})
        # It is refused also for the second entity, when the alias of the first one was moved.
        return self.auditor.perform(action, act, nothing_done=())

    # --- generations ---------------------------------------------------------------------------------------------

    def switch_generation(self, number: int) -> Report[Generation]:
        """Make a later generation the current one."""
        return self.perform("generation switch", lambda: self.stored.generations().switch(number), number=number)

    def previous_generation(self) -> Report[Generation]:
        """Return to the parsing before the current one, under the next number."""
        return self.perform("generation back", lambda: self.stored.generations().back(self._who))

    def verify(self, *, deep: bool = False) -> Report[Verified]:
        """Audit the files of the pipeline, and keep what was found in the store. Blocks until all is read."""
        from holdfast.runs.verification import Verification

        act = partial(Verification(self.stored).carry_out, self._who, deep=deep)
        return self.auditor.perform(
            Action("verify", self.stored.name, parameters={"deep": deep}),
            act,
            lambda found: ActionOutcome(Verdict.DONE, f"{found.verdict}: {found.partitions} partitions checked"),
        )

    def perform(self, name: str, act: Callable[[], T], **parameters: Json) -> Report[T]:
        """Perform another action, audited under that name."""
        return self.auditor.perform(Action(name, self.stored.name, parameters=parameters), act)

    def _of_run(self, name: str, act: Callable[[], Run], **parameters: Json) -> Report[Run]:
        return self.auditor.perform(Action(name, self.stored.name, parameters=parameters), act, _outcome_of_run)

    @property
    def _who(self) -> str:
        return self.auditor.request.who


def existing(pipeline: StoredPipeline, run: str) -> Run:
    """Return that run. Raises `UsageError` if there is none."""
    try:
        return pipeline.runs().show(run)
    except PartitionNotFound:
        raise UsageError(f"there is no run {run!r}; `holdfast runs list` shows all runs") from None


def _outcome_of_run(run: Run) -> ActionOutcome:
    incomplete = run.status in {RunStatus.FAILED, RunStatus.COMPLETED_WITH_ERRORS}
    message = f"run {run.id} is {run.status.value}" + (f": {run.error}" if run.error else "")
    return ActionOutcome(Verdict.PARTLY if incomplete else Verdict.DONE, message, run=run.id)
