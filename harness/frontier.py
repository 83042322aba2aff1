"""Which tasks have everything settled that they need, kept up as others settle, fail or run again."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from harness.order import dependants_of
from harness.plan import Step


class Frontier:
    """The tasks of `wanted` and their needs, and which of them are settled; no recursion, whatever the plan's depth."""

    def __init__(self, steps: Mapping[str, Step], only: Iterable[str] | None = None) -> None:
        self._steps = steps
        self.wanted = _closure(steps, only)
        self.dependants = dependants_of({name: step.needs for name, step in steps.items()})
        self._unsettled = {name: len(step.needs) for name, step in steps.items()}
        self._settled: set[str] = set()
        self._open = deque(name for name in self.wanted if not self._unsettled[name])

    def __bool__(self) -> bool:
        """Whether any task waits to be considered."""
        return bool(self._open)

    def pop(self) -> str | None:
        """The next task to consider: all that it needs is settled and it isn't. None where there is none now."""
        while self._open:
            name = self._open.popleft()
            if name in self.wanted and name not in self._settled and not self._unsettled[name]:
                return name
        return None

    def reconsider(self, name: str) -> None:
        """Consider the task once more."""
        self._open.append(name)

    def settle(self, name: str) -> None:
        """The task is up to date or skipped: what waited only for it may be considered."""
        if name in self._settled:
            return
        self._settled.add(name)
        for dependant in self.dependants[name]:
            self._unsettled[dependant] -= 1
            if not self._unsettled[dependant]:
                self._open.append(dependant)

    def unsettle(self, name: str) -> set[str]:
        """The task has to run again: consider it, and let all that waits for it, however far, be considered anew after.

        Returns what waits for it.
        """
        self._open.append(name)
        affected: set[str] = set()
        pending = [name]
        while pending:
            task = pending.pop()
            if task not in self._settled:
                continue
            self._settled.discard(task)
            for dependant in self.dependants[task]:
                self._unsettled[dependant] += 1
                affected.add(dependant)
                pending.append(dependant)
        return affected

    def below(self, name: str, *, leave: Callable[[str], bool]) -> dict[str, str]:
        """Every wanted task that waits for `name`, however far, each with the need that leads there.

        Those that `leave` holds for are left out, and what lies behind them.
        """
        pending = [(dependant, name) for dependant in self.dependants[name]]
        found: dict[str, str] = {}
        while pending:
            task, by = pending.pop()
            if task in self.wanted and task not in found and not leave(task):
                found[task] = by
                pending.extend((dependant, task) for dependant in self.dependants[task])
        return found


def _closure(steps: Mapping[str, Step], only: Iterable[str] | None) -> dict[str, None]:
    """The tasks of `only` and all that they need, in plan order; every task when that is None."""
    found = set(steps if only is None else only)
    pending = list(found)
    while pending:
        for need in steps[pending.pop()].needs:
            if need not in found:
                found.add(need)
                pending.append(need)
    return dict.fromkeys(name for name in steps if name in found)
