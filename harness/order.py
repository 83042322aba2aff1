"""What runs next: dependencies, then priority that flows to prerequisites, then what fits the machine."""

import heapq
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from harness.contract import Needs
from harness.plan import Step

LOOK_PAST = 64  # tasks that don't fit, before the rest is left for later
RANKS = {"high": 0, "medium": 1, "low": 2}


def cycle(needs: Mapping[str, Iterable[str]]) -> list[str] | None:
    """A cycle as a path whose ends are equal, or None. Names that aren't keys are passed over."""
    finished: set[str] = set()
    for start in needs:
        path: dict[str, None] = {}
        stack = [(start, iter(needs[start]))] if start not in finished else []
        path.update(dict.fromkeys([start] if stack else []))
        while stack:
            name, rest = stack[-1]
            following = next((each for each in rest if each in needs and each not in finished), None)
            if following is None:
                stack.pop()
                path.pop(name)
                finished.add(name)
            elif following in path:
                names = list(path)
                return [*names[names.index(following) :], following]
            else:
                path[following] = None
                stack.append((following, iter(needs[following])))
    return None


def prerequisites_first(needs: Mapping[str, Collection[str]]) -> list[str]:
    """Every name after all that it needs, where there is no cycle."""
    open_needs = {name: len(each) for name, each in needs.items()}
    dependants = dependants_of(needs)
    found = [name for name, count in open_needs.items() if not count]
    for name in found:
        for dependant in dependants[name]:
            open_needs[dependant] -= 1
            if not open_needs[dependant]:
                found.append(dependant)
    return found


def dependants_of(needs: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
    """For each name, the names that need it."""
    found: dict[str, list[str]] = {name: [] for name in needs}
    for name, each in needs.items():
        for need in each:
            found[need].append(name)
    return found


def effective_priority(steps: Mapping[str, Step]) -> dict[str, int]:
    """Rank of each task, 0 the highest: its own, or that of the highest task that waits for it."""
    ranks = {name: RANKS[step.task.priority] for name, step in steps.items()}
    for name in reversed(prerequisites_first({name: step.needs for name, step in steps.items()})):
        for need in steps[name].needs:
            ranks[need] = min(ranks[need], ranks[name])
    return ranks


def execution_order(steps: Mapping[str, Step]) -> list[str]:
    """The order in which one worker would run the tasks: dependencies, effective priority, place in the plan."""
    ranks = effective_priority(steps)
    place = {name: position for position, name in enumerate(steps)}
    open_needs = {name: len(step.needs) for name, step in steps.items()}
    dependants = dependants_of({name: step.needs for name, step in steps.items()})
    ready = [(ranks[name], place[name], name) for name, count in open_needs.items() if not count]
    heapq.heapify(ready)
    found = []
    while ready:
        name = heapq.heappop(ready)[2]
        found.append(name)
        for dependant in dependants[name]:
            open_needs[dependant] -= 1
            if not open_needs[dependant]:
                heapq.heappush(ready, (ranks[dependant], place[dependant], dependant))
    return found


@dataclass(frozen=True)
class Capacity:
    """What may be in use at once: `jobs` tasks, and what the machine has."""

    jobs: int
    cpus: int
    gpus: int
    ram_bytes: int


@dataclass(order=True)
class _Entry:
    rank: int
    place: int
    name: str = field(compare=False)
    needs: Needs = field(compare=False)


class Queue:
    """Ready tasks, the highest priority first, handed out as far as they fit beside what is running.

    A task that doesn't fit keeps what it waits for: those behind it get only what it leaves, so that small tasks
    can't starve a big one. A task that asks for more than there is at all is handed out, for preflight to refuse.
    """

    def __init__(self, steps: Mapping[str, Step], capacity: Capacity) -> None:
        self.capacity = capacity
        self._ranks = effective_priority(steps)
        self._places = {name: position for position, name in enumerate(steps)}
        self._heap: list[_Entry] = []
        self.used: dict[str, Needs] = {}

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, name: str, needs: Needs) -> None:
        """Put a task in that may run now."""
        heapq.heappush(self._heap, _Entry(self._ranks[name], self._places[name], name, needs))

    def occupy(self, name: str, needs: Needs) -> None:
        """The task runs and uses what it needs."""
        self.used[name] = needs

    def release(self, name: str) -> None:
        """The task runs no more."""
        self.used.pop(name, None)

    def pick(self) -> tuple[str, Needs] | None:
        """Take out the first task that fits, or None."""
        if len(self.used) >= self.capacity.jobs:
            return None
        free = self._free()
        passed_over: list[_Entry] = []
        picked = None
        while self._heap and picked is None and len(passed_over) < LOOK_PAST:
            entry = heapq.heappop(self._heap)
            asked = self._asked(entry.needs)
            if all(asked[kind] <= free[kind] for kind in free):
                picked = (entry.name, entry.needs)
            else:
                passed_over.append(entry)
                free = {kind: max(0, free[kind] - asked[kind]) for kind in free}
        for entry in passed_over:
            heapq.heappush(self._heap, entry)
        return picked

    def _asked(self, needs: Needs) -> dict[str, int]:
        """What a task takes of each kind, at most all that there is."""
        return {
            "cpus": min(needs.cpus, self.capacity.cpus),
            "gpus": min(needs.gpus, self.capacity.gpus),
            "ram_bytes": min(needs.ram_bytes, self.capacity.ram_bytes),
        }

    def _free(self) -> dict[str, int]:
        free = {"cpus": self.capacity.cpus, "gpus": self.capacity.gpus, "ram_bytes": self.capacity.ram_bytes}
        for needs in self.used.values():
            asked = self._asked(needs)
            free = {kind: max(0, free[kind] - asked[kind]) for kind in free}
        return free
