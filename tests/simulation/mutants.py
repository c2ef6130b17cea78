"""All mutants. Each must die within `MOST_SEEDS` seeds, or the simulator proves nothing.

Some that come to mind are not here, because they are equivalent: another guard covers what they break.

- The commit alone ignores pending receipts: a node never sends such a commit, and the sequence refuses it if it did.
  `a_commit_may_cover_one_that_is_not_published` also lets the node send it.
- `mend` accepts whatever was staged anew: publishing compares with the manifest again.
  `a_manifest_is_compared_by_its_commit_alone` takes out both.
- A sweep deletes what the same token staged: a lease is swept when it is taken, before anything is staged under it.
- A write without an answer counts as a lost lease, without cleaning up: the lease is found again on the next pass.
- A driver does not notice that it lost the lock of its run: who took the lock has failed the run or drives it too, and
  the loser's next write of the lock is refused.
- Leftovers are deleted before the receipts are cleared: all of it is visible by then.
- The keeper of a former session is not stopped when the node joins anew: it renews the new one at most once, and ends
  when it looks at its shift.
"""

from __future__ import annotations

from tests.simulation import (
    mutants_of_actions,
    mutants_of_blame,
    mutants_of_files,
    mutants_of_finality,
    mutants_of_floor,
    mutants_of_forwarding,
    mutants_of_generations,
    mutants_of_guards,
    mutants_of_index,
    mutants_of_kafka,
    mutants_of_leases,
    mutants_of_outputs,
    mutants_of_promotion,
    mutants_of_rebuilds,
    mutants_of_redriving,
    mutants_of_replacing,
    mutants_of_runs,
    mutants_of_sourcing,
    mutants_of_splits,
    mutants_of_staging,
    mutants_of_tenures,
    mutants_of_tolerance,
    mutants_of_topic,
    mutants_of_visible,
    mutants_of_watching,
)
from tests.simulation.mutation import Mutant

MODULES = (
    mutants_of_files,
    mutants_of_finality,
    mutants_of_leases,
    mutants_of_forwarding,
    mutants_of_outputs,
    mutants_of_guards,
    mutants_of_generations,
    mutants_of_floor,
    mutants_of_sourcing,
    mutants_of_splits,
    mutants_of_runs,
    mutants_of_visible,
    mutants_of_watching,
    mutants_of_index,
    mutants_of_kafka,
    mutants_of_rebuilds,
    mutants_of_redriving,
    mutants_of_replacing,
    mutants_of_staging,
    mutants_of_tolerance,
    mutants_of_topic,
    mutants_of_actions,
    mutants_of_blame,
    mutants_of_promotion,
    mutants_of_tenures,
)
DEFINED = [found for module in MODULES for found in vars(module).values()]
MUTANTS = [found for found in DEFINED if isinstance(found, Mutant)]
