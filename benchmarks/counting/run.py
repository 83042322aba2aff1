"""What the campaign's tasks do: units with progress checkpoints, and a plain function, both before witnesses."""

import fcntl
import hashlib
import json
import os
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from counting.spec import CountParams
from harness.contract import Context, Result, ToolError, write_text, writing

HELPED = 7  # every so many units one is done by a process of its own


class Witness:
    """Writes effects down, one line each, in one append; and tells when two copies of a task live at once."""

    def __init__(self, folder: str, task: str, attempt: int) -> None:
        self.who = f"{task} {attempt}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._effects = os.open(f"{folder}/effects", flags, 0o644)
        self._lock = os.open(f"{folder}/{task}.lock", flags, 0o644)  # the kernel lets go of it when we die
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.tell("overlap")
        self.tell("start")

    def tell(self, what: str, unit: int | str = "-") -> None:
        os.write(self._effects, f"{what} {self.who} {unit}\n".encode())


def digest(paths: Iterable[str]) -> str:
    """One SHA-256 of all files."""
    found = hashlib.sha256()
    for path in paths:
        found.update(Path(path).read_bytes())
    return found.hexdigest()


def main(params: CountParams, context: Context) -> Result:
    """Do the units that are still to be done; what was done so far is in scratch, as a rolling digest."""
    context.catch_stop()
    witness = Witness(params.witness, context.task, context.attempt)
    subprocess.Popen(["sleep", "600"], start_new_session=True)  # the supervisor has to end it
    kept = context.scratch / "progress.json"
    progress = json.loads(kept.read_text()) if kept.exists() else {"done": 0, "digest": digest(params.inputs)}
    while progress["done"] < params.units:
        context.stop_point()
        unit = progress["done"]
        time.sleep(params.unit_s)
        word = helped(unit) if unit % HELPED == HELPED - 1 else str(unit)
        witness.tell("unit", unit)
        rolled = hashlib.sha256(f"{progress['digest']} {word}".encode()).hexdigest()
        progress = {"done": unit + 1, "digest": rolled}
        write_text(kept, json.dumps(progress))
        context.progress(unit + 1, params.units, unit="units")
    with writing(Path(params.out)) as partial:
        partial.write_text(f"{context.task} {progress['done']} {progress['digest']}\n")
    witness.tell("end")
    return Result(values={"units": progress["done"]}, note=f"{progress['done']} units")


def helped(unit: int) -> str:
    """A unit's word as another process says it. Raises ToolError when that one is killed."""
    done = subprocess.run(["/bin/sh", "-c", f"sleep 0.05; echo {unit}"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ToolError("the helper of a unit was killed", found=f"exit code {done.returncode}")
    return done.stdout.strip()


def join(out: str, witness: str, inputs: list[str], units: list[int]) -> dict[str, Any]:
    """A plain function: the digest of its inputs, and the sum of what other tasks have counted."""
    folder = Path(os.environ["HARNESS_ATTEMPT"])
    seen = Witness(witness, folder.parent.name, int(folder.name))
    time.sleep(0.1)
    with writing(Path(out)) as partial:
        partial.write_text(f"{digest(inputs)} {sum(units)}\n")
    seen.tell("end")
    return {"units": sum(units)}
