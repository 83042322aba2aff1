"""What `harness doctor --fix` does: only what can't lose anything."""

import contextlib
import os
import shutil

from harness import leftovers
from harness.errors import StoreError
from harness.holdings import unfinished
from harness.ownership import owning
from harness.paths import PlanPaths
from harness.store import Store


def cure(paths: PlanPaths) -> list[str]:
    """End the processes of dead attempts, remove stale unfinished files, make the ballast, empty the database's log.

    Returns what was done, a sentence each. Raises OwnedError when a run owns the plan.
    """
    done = []
    with owning(paths.lock, plan=paths.folder.name):
        done += [f"process {pid} of a dead attempt was ended" for pid in leftovers.end(paths)]
        for each in (each for each in unfinished(paths) if each.stale):
            if each.path.is_dir():
                shutil.rmtree(each.path, ignore_errors=True)
            else:
                each.path.unlink(missing_ok=True)
            if not os.path.lexists(each.path):
                done.append(f"'{each.path}' was removed")
        had = paths.ballast.exists()
        with contextlib.suppress(StoreError), Store(paths) as store:  # what is wrong with it is diagnosed after this
            store.database.rows("PRAGMA wal_checkpoint(TRUNCATE)")
        if not had and paths.ballast.exists():
            done.append("the ballast was made")
    return done
