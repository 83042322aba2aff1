"""What somebody asks of a plan, stop, cancel or retry: of the run that owns it, or done at once where none does."""

import getpass
import selectors
import time
from collections.abc import Iterator

from harness import process
from harness.errors import BlockedError, OwnedError
from harness.ownership import owner, owning
from harness.paths import PlanPaths
from harness.state import State
from harness.store import Store

ANSWER_S = 15.0
LOOK_S = 0.1


def ask(paths: PlanPaths, verb: str, task: str | None) -> Iterator[str]:
    """Yield what was done, a line each. Raises BlockedError when the run that owns the plan doesn't answer."""
    with Store(paths) as store:
        if owner(paths.lock) is None:
            try:
                with owning(paths.lock, plan=paths.folder.name):
                    yield from _without_a_run(paths, store, verb, task)
                return
            except OwnedError:  # a run has just begun
                pass
        sequence = store.ask(verb, task, by=getpass.getuser())
        ends_at = time.monotonic() + ANSWER_S
        while (answer := store.answer_to(sequence)) is None:
            if time.monotonic() > ends_at or owner(paths.lock) is None:
                store.answer(sequence, "nobody took it in time")
                facts = owner(paths.lock) or {"pid": "?", "host": "?"}
                raise BlockedError(
                    f"the run does not answer (pid {facts['pid']} on {facts['host']})",
                    do="It may hang or be suspended: look at it, or kill it and resume",
                )
            time.sleep(LOOK_S)
        yield answer


def _without_a_run(paths: PlanPaths, store: Store, verb: str, task: str | None) -> Iterator[str]:
    """Do it ourselves, as the plan's owner."""
    records = store.records()
    names = [task] if task else list(records)
    attempts = {}
    for name in names:
        if records[name].state == State.RUNNING and verb in ("stop", "cancel"):
            found = process.adopt(paths.attempt(name, records[name].attempt))
            if isinstance(found, process.Attempt):
                attempts[name] = found
    yield from _stopped(attempts)
    if verb == "stop":
        yield from () if attempts else ("nothing runs",)
        return
    state = records[names[0]].state
    if state == State.COMPLETED or (verb == "retry" and state == State.RUNNING):
        yield f"'{task}' is {state}" + "; harness forget lets it run again" * (state == State.COMPLETED)
    elif verb == "cancel":
        store.cancel(names[0], f"cancelled by {getpass.getuser()}")
        yield f"'{task}' is cancelled; what needs it is blocked"
    else:
        store.renew(names[0])
        yield f"'{task}' is tried again with the next run: harness resume {paths.folder.name}"


def _stopped(attempts: dict[str, process.Attempt]) -> Iterator[str]:
    """Stop attempts that no run follows, and wait until they have ended."""
    with selectors.DefaultSelector() as selector:
        for name, attempt in attempts.items():
            attempt.stop()
            selector.register(attempt, selectors.EVENT_READ, name)
            yield f"'{name}' is being stopped"
        while selector.get_map():
            for key, _ in selector.select():
                selector.unregister(key.fileobj)
                attempts[key.data].close()
                yield f"'{key.data}' has ended; the next run takes it in"
