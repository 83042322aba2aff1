"""One abstract plan, translated for each engine: ours, its peers, and a bare loop as the floor."""

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
    most = 1_000_000  # tasks in one plan that it is asked for

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


class Installed(Engine):
    """A peer that `make peers` installs into an environment of its own."""

    @classmethod
    def folder(cls) -> Path:
        return ROOT / ".peers" / cls.name / "bin"

    @classmethod
    def available(cls) -> bool:
        return (cls.folder() / "python").exists()

    def python(self, *words: str) -> list[str]:
        return [str(self.folder() / "python"), *words]


class Doit(Installed):
    name = "doit"

    def write(self, folder: Path, tasks: list[Task]) -> None:
        super().write(folder, tasks)
        (folder / "dodo.py").write_text(DODO)

    def run(self) -> list[str]:
        return [str(self.folder() / "doit"), "run", "-v0"]

    def status(self) -> list[str]:
        return [str(self.folder() / "doit"), "list", "--all", "--status"]


SNAKEFILE = """
import json
TASKS = {task["id"]: task for task in json.load(open("plan.json"))}
def needed(wildcards):
    return [TASKS[need]["output"] if need in TASKS else need for need in TASKS[wildcards.id]["needs"]]
rule everything:
    input: [task["output"] for task in TASKS.values()]
rule one:
    input: needed
    output: "out/{id}"
    params: command=lambda wildcards: TASKS[wildcards.id]["command"]
    shell: "{params.command}"
"""


class Snakemake(Installed):
    name = "snakemake"
    most = 1000  # it takes minutes to draw the graph of more

    def write(self, folder: Path, tasks: list[Task]) -> None:
        super().write(folder, tasks)
        (folder / "Snakefile").write_text(SNAKEFILE)

    def run(self) -> list[str]:
        return [str(self.folder() / "snakemake"), "--cores", "1", "--quiet", "all"]

    def status(self) -> list[str]:
        return [str(self.folder() / "snakemake"), "--dry-run", "--quiet", "all"]


LUIGI = """
import json, subprocess, sys
import luigi
TASKS = {task["id"]: task for task in json.load(open("plan.json"))}
class One(luigi.Task):
    name = luigi.Parameter()
    def requires(self):
        return [One(name=need) for need in TASKS[self.name]["needs"]]
    def output(self):
        return luigi.LocalTarget(TASKS[self.name]["output"])
    def run(self):
        subprocess.run(["/bin/sh", "-c", TASKS[self.name]["command"]], check=True)
class Everything(luigi.WrapperTask):
    def requires(self):
        return [One(name=name) for name in TASKS]
sys.setrecursionlimit(100_000)
sys.exit(not luigi.build([Everything()], local_scheduler=True, workers=1, log_level="ERROR"))
"""


class Luigi(Installed):
    name = "luigi"
    most = 1000  # its scheduler takes quadratic time

    def write(self, folder: Path, tasks: list[Task]) -> None:
        super().write(folder, tasks)
        (folder / "everything.py").write_text(LUIGI)

    def run(self) -> list[str]:
        return self.python("everything.py")


DBOS = """
import json, subprocess, sys
from dbos import DBOS, SetWorkflowID
TASKS = json.load(open("plan.json"))
DBOS(config={"name": "bench", "system_database_url": "sqlite:///dbos.sqlite", "run_admin_server": False,
             "log_level": "ERROR", "application_version": "1"})
@DBOS.step()
def one(place):
    subprocess.run(["/bin/sh", "-c", TASKS[place]["command"]], check=True)
@DBOS.workflow()
def everything():
    for place in range(len(TASKS)):
        one(place)
DBOS.launch()
if sys.argv[1:] == ["status"]:
    for each in DBOS.list_workflows():
        print(each.workflow_id, each.status, len(DBOS.list_workflow_steps(each.workflow_id)))
else:
    with SetWorkflowID("bench"):
        DBOS.start_workflow(everything).get_result()
DBOS.destroy()
"""


class Dbos(Installed):
    """Its steps are one after the other whatever they need: it has no graph."""

    name = "dbos"

    def write(self, folder: Path, tasks: list[Task]) -> None:
        super().write(folder, tasks)
        (folder / "everything.py").write_text(DBOS)

    def run(self) -> list[str]:
        return self.python("everything.py")

    def status(self) -> list[str]:
        return self.python("everything.py", "status")


ENGINES: list[type[Engine]] = [Floor, Make, Doit, Snakemake, Luigi, Dbos, Ours]
