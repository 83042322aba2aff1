"""One run of a plan from beginning to end: owns it, opens its store, shows it, and answers with an exit code."""

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from harness import errors
from harness.engine import Engine
from harness.live import Live
from harness.ownership import owning
from harness.paths import Root
from harness.plan import LoadedPlan
from harness.settings import read_settings
from harness.state import State
from harness.stops import Stops
from harness.store import Store


def run(
    loaded: LoadedPlan,
    root: Root,
    *,
    jobs: int | None = None,
    only: Sequence[str] = (),
    load: Callable[[], LoadedPlan] | None = None,
) -> int:
    """Run the plan as far as it goes and return the exit code; `load` reads it anew when its file has changed.

    Raises OwnedError, StoreError, PlanError.
    """
    settings = read_settings(root)
    paths = root.plan(loaded.plan.name)
    with ExitStack() as stack:
        stack.enter_context(contextlib.chdir(root.folder))
        stack.enter_context(owning(paths.lock, plan=loaded.plan.name))
        store = stack.enter_context(Store(paths))
        store.begin_run(loaded)
        code = errors.EXIT_INTERNAL
        with Live(paths) as live, Stops() as stops:
            try:
                engine = Engine(loaded, root, store, live=live, stops=stops, envs=settings.envs)
                engine.run(jobs or settings.jobs, list(only), load or (lambda: loaded))
                states = Counter(engine.books.states[name] for name in engine.agenda.frontier.wanted)
                code = exit_code(states, stops)
                live.say(f"{loaded.plan.name}: {summary(states, engine.executed)}")
            finally:
                store.end_run(code)  # before the last look, which then shows a run that has ended
    return code


def summary(states: Counter[State], executed: int) -> str:
    """How many tasks are in which state, and how many attempts it took."""
    parts = ", ".join(f"{number} {state.replace('_', ' ')}" for state, number in states.items())
    return f"{parts}; " + (f"{executed} attempt{'s' * (executed > 1)} executed" if executed else "nothing executed")


def exit_code(states: Counter[State], stops: Stops) -> int:
    """The exit code of a run that ended with tasks in these states."""
    if stops.count:
        return stops.exit_code
    if states[State.FAILED] or states[State.LOST] or states[State.BLOCKED]:
        return errors.EXIT_FAILED
    if states[State.INTERRUPTED]:  # stopped by somebody else than this run
        return errors.EXIT_INTERRUPTED
    if states[State.WAITING_DECISION]:
        return errors.EXIT_DECISION
    if states[State.WAITING_RESOURCES]:
        return errors.EXIT_BLOCKED
    return errors.EXIT_OK
