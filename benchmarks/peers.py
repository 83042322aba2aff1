"""One abstract plan, translated for each engine: ours, make, doit, and a bare loop as the floor."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
Task = dict[str, Any]  # id, needs, command, output


def chain(count: int, *, independent: bool = False) -> list[Task]:
    """Tasks that each append their id to `log` and make out/<id>."""
    return [
        {
            "id": f"t{n:05d}",
            "needs": [] if independent or not n else [f"t{n - 1:05d}"],
            "command": f"echo t{n:05d} >> log; : > out/t{n:05d}",
            "output": f"out/t{n:05d}",
        }
        for n in range(count)
    ]


class Engine:
    """`write` puts the plan into a folder; `run` and `status` are command lines to be run there."""

    name = ""

    @classmethod
    def available(cls) -> bool:
        return True

    def write(self, folder: Path, tasks: list[Task]) -> None:
        (folder / "out").mkdir(parents=True, exist_ok=True)
        (folder / "plan.json").write_text(json.dumps(tasks))

    def run(self) -> list[str]:
        raise NotImplementedError

    def status(self) -> list[str] | None:
        return None


class Floor(Engine):
    """What any durable runner costs: a shell and two commits a task."""

    name = "bare loop"

    def run(self) -> list[str]:
        return [sys.executable, str(Path(__file__).with_name("floor.py"))]

    def status(self) -> list[str]:
        return [*self.run(), "status"]


class Ours(Engine):
    name = "harness"

    def write(self, folder: Path, tasks: list[Task]) -> None:
        super().write(folder, tasks)
        lines = ["name: bench", "tasks:"]
        for task in tasks:
            head = f"{{id: {task['id']}, content: {task['id']}, tool: shell, needs: {json.dumps(task['needs'])}"
            body = f"with: {{command: {json.dumps(task['command'])}}}, outputs: {{o: {task['output']}}}}}"
            lines.append(f"  - {head}, {body}")
        (folder / "plans").mkdir(exist_ok=True)
        (folder / "plans" / "bench.yaml").write_text("\n".join(lines) + "\n")

    def run(self) -> list[str]:
        return [str(ROOT / ".venv/bin/harness"), "run", "plans/bench.yaml"]

    def status(self) -> list[str]:
        return [str(ROOT / ".venv/bin/harness"), "status"]


class Make(Engine):
    name = "make"

    @classmethod
    def available(cls) -> bool:
        return shutil.which("make") is not None

    def write(self, folder: Path, tasks: list[Task]) -> None:
        super().write(folder, tasks)
        outputs = {task["id"]: task["output"] for task in tasks}
        lines = [f"all: {' '.join(outputs.values())}"]
        for task in tasks:
            needs = " ".join(outputs.get(need, need) for need in task["needs"])
            lines += [f"{task['output']}: {needs}", f"\t{task['command']}"]
        (folder / "Makefile").write_text("\n".join(lines) + "\n")

    def run(self) -> list[str]:
        return ["make", "-s", "all"]

    def status(self) -> list[str]:
        return ["make", "-n", "all"]


DODO = """
import json
TASKS = json.load(open("plan.json"))
OUTPUTS = {task["id"]: task["output"] for task in TASKS}
DOIT_CONFIG = {"check_file_uptodate": "timestamp"}
def task_all():
    for task in TASKS:
        yield {"name": task["id"], "actions": [task["command"]], "targets": [task["output"]],
               "file_dep": [OUTPUTS.get(need, need) for need in task["needs"]], "uptodate": [True]}
"""


class Doit(Engine):
    name = "doit"
    program = ROOT / ".peers/bin/doit"

    @classmethod
    def available(cls) -> bool:
        return cls.program.exists()

    def write(self, folder: Path, tasks: list[Task]) -> None:
        super().write(folder, tasks)
        (folder / "dodo.py").write_text(DODO)

    def run(self) -> list[str]:
        return [str(self.program), "run", "-v0"]

    def status(self) -> list[str]:
        return [str(self.program), "list", "--all", "--status"]


ENGINES: list[type[Engine]] = [Floor, Make, Doit, Ours]
