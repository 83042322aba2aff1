"""The whole error tree, with the exit code of each.

HarnessError                70  what, where, found, do: four short sentences, empty ones left out
├── UsageError               2  a wrong argument or option
├── PlanError                3  the plan file is wrong; carries every mistake, not the first
├── DecisionNeeded           4  a person has to choose before anything else can run
├── BlockedError             5  the machine lacks what a task asks for (GPU, disk, RAM, port, file)
│   └── StoreError           5  the database can't be read or written
├── OwnedError               6  another run owns this plan
├── NotFoundError            7  no such plan, task or attempt
└── ToolError                1  a tool says why its task failed; a mistake of the input, never a bug
    └── Interrupted         75  a tool stopped because it was asked to, with its progress saved
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_PLAN = 3
EXIT_DECISION = 4
EXIT_BLOCKED = 5
EXIT_OWNED = 6
EXIT_NOT_FOUND = 7
EXIT_INTERNAL = 70
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
WORKER_INTERRUPTED = 75  # a worker's own exit code, EX_TEMPFAIL of sysexits.h; never harness's


class HarnessError(Exception):
    """An error with an exit code and up to four parts: what, where, what was found, what to do."""

    exit_code = EXIT_INTERNAL
    code = "internal"

    def __init__(self, what: str, *, where: str = "", found: str = "", do: str = "") -> None:
        super().__init__(what)
        self.what, self.where, self.found, self.do = what, where, found, do

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        if self.found:
            text += f"; found {self.found}"
        return f"{text}. {self.do}" if self.do else text


class UsageError(HarnessError):
    exit_code = EXIT_USAGE
    code = "usage"


@dataclass(frozen=True, order=True)
class Mistake:
    """One thing wrong in a plan file. `line` and `column` count from 1; 0 means the file as a whole."""

    file: str
    line: int
    column: int
    what: str
    found: str = ""
    do: str = field(default="", compare=False)

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        found = f"; found {self.found}" if self.found else ""
        do = f". {self.do}" if self.do else ""
        return f"{place}: {self.what}{found}{do}"


class PlanError(HarnessError):
    exit_code = EXIT_PLAN
    code = "plan_invalid"

    def __init__(self, mistakes: list[Mistake]) -> None:
        super().__init__(f"{len(mistakes)} mistake{'s' * (len(mistakes) != 1)} in the plan")
        self.mistakes = sorted(mistakes)

    def __str__(self) -> str:
        return "\n".join(str(mistake) for mistake in self.mistakes)


class DecisionNeeded(HarnessError):  # noqa: N818 - it is a question, not an error
    exit_code = EXIT_DECISION
    code = "decision_needed"


class BlockedError(HarnessError):
    exit_code = EXIT_BLOCKED
    code = "blocked_resources"


class StoreError(BlockedError):
    """`passing` says that the cause can go away, so that it is worth trying again: a full or read-only disk, a lock."""

    code = "store"
    passing = False


class OwnedError(HarnessError):
    exit_code = EXIT_OWNED
    code = "busy"


class NotFoundError(HarnessError):
    exit_code = EXIT_NOT_FOUND
    code = "not_found"


class ToolError(HarnessError):
    exit_code = EXIT_FAILED
    code = "task_failed"


class Interrupted(ToolError):  # noqa: N818 - not an error of anybody's
    exit_code = WORKER_INTERRUPTED
    code = "interrupted"


def nearest(name: str, known: Iterable[str]) -> str:
    """ "Did you mean 'x'?" for the nearest of `known`, or nothing."""
    import difflib  # noqa: PLC0415 - only a mistake pays for it

    near = difflib.get_close_matches(name, list(known), 1)
    return f"Did you mean '{near[0]}'?" if near else ""
