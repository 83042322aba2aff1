"""Kills at random: whom, by which signal, and at which moment of a trial."""

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from trial import RETRIES, Trial
from victims import Victim

TARGETS = {"engine": 32, "supervisor": 22, "worker": 20, "grandchild": 12, "attempt": 7, "all": 7}
SIGNALS = {"KILL": 45, "STOP, KILL": 20, "TERM": 18, "INT": 17}
MOMENTS = {"any": 38, "commit": 20, "folder": 8, "started": 6, "result": 6, "verdict": 14, "birth": 8}
SEEN_S = 3.0  # how long a moment is waited for
BELOW = ("supervisor", "worker", "grandchild")


def drawn(rng: random.Random, weights: dict[str, int]) -> str:
    return rng.choices(list(weights), list(weights.values()))[0]


def log_uniform(rng: random.Random, least_s: float, most_s: float) -> float:
    """Seconds whose logarithm is uniform: small ones are as likely as big ones."""
    return float(least_s * (most_s / least_s) ** rng.random())


def watched(trial: Trial, moment: str) -> Callable[[], object]:
    """What changes when the moment comes: the database's log, or the files of that name."""
    if moment == "commit":
        log = trial.plan_folder / "state.db-wal"

        def wal() -> object:
            try:
                status = log.stat()
            except FileNotFoundError:
                return None
            return status.st_size, status.st_mtime_ns

        return wal
    pattern = "tasks/*/[0-9]*" + ("" if moment == "folder" else f"/{moment}.json")
    return lambda: sum(1 for _ in trial.plan_folder.glob(pattern))


class Killer:
    """Kills in a trial; counts what it has done by (target, signal)."""

    def __init__(self, trial: Trial, counts: Counter[tuple[str, str]]) -> None:
        self.trial, self.rng, self.counts = trial, trial.rng, counts
        self.hits: Counter[str] = Counter()  # by task: what may have made an attempt fail
        self.losses: Counter[str] = Counter()  # by task: supervisors killed in this run

    def disturb(self, kills: int) -> None:
        """Run the plan to its end, with up to `kills` kills on the way, each followed at once by a rerun if needed."""
        trial = self.trial
        while not trial.hopeless:
            engine = trial.start()
            self.losses.clear()
            while kills > 0 and engine.poll() is None:
                kills -= self._once()
            if not trial.wait():
                trial.hung()
            if trial.ended():
                return

    def _once(self) -> int:
        """One kill at one moment; returns 1, or 0 where the run has ended meanwhile."""
        target, signals = drawn(self.rng, TARGETS), drawn(self.rng, SIGNALS)
        moment = self.await_moment()
        if moment == "birth":
            target = "supervisor"
        victims = self.born if moment == "birth" else self._aim(target)
        ends_at = time.monotonic() + SEEN_S
        while not victims and self._alive() and time.monotonic() < ends_at:
            time.sleep(0.002)
            victims = self._aim(target)
            if victims:
                time.sleep(log_uniform(self.rng, 0.0001, 0.2))
        if not victims or not self._alive():
            return 0
        return int(self._kill(target, signals, victims, moment))

    def _alive(self) -> bool:
        return self.trial.engine is not None and self.trial.engine.poll() is None

    def await_moment(self) -> str:
        """Wait for a random moment of a random kind; returns the kind."""
        moment = drawn(self.rng, MOMENTS)
        if moment == "any":
            time.sleep(log_uniform(self.rng, 0.0005, 2.0))
            return moment
        if moment == "birth":
            self._await_birth()
            return moment
        look = watched(self.trial, moment)
        before, ends_at = look(), time.monotonic() + SEEN_S
        while look() == before and self._alive() and time.monotonic() < ends_at:
            time.sleep(0.0003)
        time.sleep(log_uniform(self.rng, 0.00002, 0.03))
        return moment

    def _await_birth(self) -> None:
        """Wait until a supervisor that is starting has forked its task, which is not yet another program."""
        self.born: list[Victim] = []
        known = {each.pid for each in self.trial.processes()}
        ends_at = time.monotonic() + SEEN_S
        while not self.born and self._alive() and time.monotonic() < ends_at:
            found = [each for each in self.trial.processes() if each.role == "supervisor" and each.pid not in known]
            self.born = [each for each in found if not self.losses[each.task] and self.hits[each.task] < RETRIES - 1][
                :1
            ]
        for each in self.born:
            children = Path(f"/proc/{each.pid}/task/{each.pid}/children")
            with suppress(OSError):
                while not children.read_bytes() and time.monotonic() < ends_at:
                    continue
            ends_at = time.perf_counter() + log_uniform(self.rng, 0.000001, 0.003)
            while time.perf_counter() < ends_at:
                continue

    def _aim(self, target: str) -> list[Victim]:
        """The processes of a random target of that kind; none where there is none that may be hit now."""
        found = self.trial.processes()
        spent = {each.task for each in found if self.hits[each.task] >= RETRIES - 1}
        if target == "engine":
            return [each for each in found if each.role == "engine"]
        if target == "all":
            lost = {each.task for each in found if self.losses[each.task] >= 1}
            return [] if spent or lost else found
        below = [each for each in found if each.role in BELOW and each.task not in spent]
        if target in ("supervisor", "attempt"):  # one that is lost three times in one run is left alone by that run
            below = [each for each in below if not self.losses[each.task]]
        if target == "attempt":
            task = self.rng.choice([each.task for each in below]) if below else ""
            return [each for each in below if each.task == task]
        fit = [each for each in below if each.role == target]
        return [self.rng.choice(fit)] if fit else []

    def _kill(self, target: str, signals: str, victims: list[Victim], moment: str) -> bool:
        order = sorted(victims, key=lambda each: ("engine", *BELOW, "helper").index(each.role))
        if self.rng.random() < 0.5:
            order.reverse()
        hit = []
        for name in signals.split(", "):
            number = getattr(signal, f"SIG{name}")
            hit = [each for each in order if each.send(number)]
            if any(each.role == "engine" for each in hit):
                self.trial.sent.add(number)
            if name == "STOP":
                time.sleep(log_uniform(self.rng, 0.001, 0.3))
        if not hit:
            return False
        for each in order:
            self._explain(each)
        for task in {each.task for each in order if each.task}:
            self.hits[task] += 1
        for task in {each.task for each in order if each.role == "supervisor"}:
            self.losses[task] += 1
        names = ", ".join(f"{each.role} {each.pid} {each.task}".strip() for each in order)
        self.counts[target, signals] += 1
        self.trial.act(f"{signals} to {names} (moment: {moment})")
        return True

    def _explain(self, victim: Victim) -> None:
        """What was hit may have failed or be lost; of a process that is only being forked nobody knows the attempt."""
        allowed = self.trial.allowed
        if victim.role == "helper":
            allowed.hits = None
        elif allowed.hits is not None and victim.task:
            allowed.hits.add((victim.task, victim.attempt))
