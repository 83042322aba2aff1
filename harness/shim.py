"""Supervises one attempt for its whole life, outlives a killed engine, and leaves one verdict.

    python -I -S shim.py FOLDER CWD GRACE_S TIMEOUT_S STALL_S PY_SPY ARGV...

(limits of 0: none; PY_SPY: its path, or ""; the environment is the task's; descriptor 3 is the attempt's lock, held.)

It holds the lock for life, so that liveness needs no process ids; is the reaper of every descendant, so that none
outlives it; and writes the verdict when all of them are gone. SIGTERM stops the task (TERM, then KILL after the grace
period), SIGQUIT kills it. Only builtin modules: its start is paid for by every task.
"""

import _ctypes  # the C module below ctypes, which costs 8 ms
import _signal as signal  # type: ignore[import-not-found]  # the C module below signal, whose enums cost 10 ms
import fcntl
import os
import resource
import sys
import time

LOCK = 3
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
WATCHED = {signal.SIGCHLD, signal.SIGTERM, signal.SIGQUIT}
# Python and we ignore them, a task doesn't. A worker restores the first itself, when it has imported what it needs.
RESTORED = (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ)
PRCTL = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]
DUMP_S = 10.0  # what py-spy may take for one process
DUMPED = 16  # processes at most


def quoted(text: str) -> str:
    """`text` as a JSON string."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c >= " " else f"\\u{ord(c):04x}" for c in plain) + '"'


def write(folder: str, name: str, text: str, *, durably: bool) -> bool:
    """Write a file atomically; says whether that worked."""
    try:
        temporary = os.open(f"{folder}/.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            content = text.encode("utf-8", "replace")
            if os.write(temporary, content) < len(content):
                return False  # the disk has become full within it
            if durably:
                os.fsync(temporary)
        finally:
            os.close(temporary)
        os.rename(f"{folder}/.{name}", f"{folder}/{name}")
        if durably:
            directory = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
    except OSError:
        return False
    return True


def oom_kills() -> tuple[int, int]:
    """How many processes the kernel has killed for want of memory: in our cgroup, and on the whole machine."""
    return max(map(counted, [*cgroup_files(), ""])), counted("/proc/vmstat")


def cgroup_files() -> list[str]:
    """Where the kernel counts its kills in our memory cgroup, of version 1 and of version 2."""
    try:
        with open("/proc/self/cgroup") as file:
            groups = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return []
    root = "/sys/fs/cgroup"
    first = [f"{root}/memory{path}/memory.oom_control" for _, kinds, path in groups if "memory" in kinds.split(",")]
    return [*first, *(f"{root}{path}/memory.events" for _, kinds, path in groups if not kinds)]


def counted(path: str) -> int:
    """The number behind "oom_kill" in the file, 0 where there is none."""
    try:
        with open(path) as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    except OSError:
        return 0


def redact(source: int, target: int, secrets: list[bytes]) -> None:
    """Copy all that comes from `source` to `target` with every secret hidden, also one that comes in pieces."""
    held = b""
    while chunk := os.read(source, 65536):
        text = held + chunk
        for secret in secrets:
            text = text.replace(secret, b"[secret]")
        keep = max((n for s in secrets for n in range(1, len(s)) if text.endswith(s[:n])), default=0)
        held = text[len(text) - keep :]
        try:
            os.write(target, text[: len(text) - keep])
        except OSError:
            continue  # a full disk loses some of the log, not the task
    os.write(target, held)


def log_of(folder: str, secrets: list[bytes]) -> tuple[int, int]:
    """Where the task writes its log to, and the pid of the process between that hides secrets (0: none)."""
    log = os.open(f"{folder}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    if not secrets:
        return log, 0
    source, target = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            os.close(target)
            os.close(LOCK)  # it may outlive the supervisor, and must not pass for it
            redact(source, log, secrets)
        finally:
            os._exit(0)
    os.close(source)
    return target, pid


def is_worker(argv: list[str]) -> bool:
    """Whether the command is our own front door of a tool."""
    return argv[1:4] == ["-P", "-m", "harness.worker"]


def start(log: int, cwd: str, argv: list[str]) -> int:
    """Fork and exec the task in its own process group; returns its pid. Raises OSError when it can't be started."""
    told, tell = os.pipe2(os.O_CLOEXEC)
    supervisor = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
            _ctypes.call_function(PRCTL, (PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
            if os.getppid() != supervisor:
                return 0  # it was killed before we asked to die with it (the finally below exits)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.chdir(cwd)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
            for number in RESTORED[is_worker(argv) :]:
                signal.signal(number, signal.SIG_DFL)
            os.execvp(argv[0], argv)
        except OSError as problem:
            os.write(tell, f"{problem.errno} {problem.filename or argv[0]}".encode())
        finally:
            os._exit(127)
    os.close(tell)
    code, _, place = os.read(told, 8192).decode("utf-8", "surrogateescape").partition(" ")
    os.close(told)
    if code:
        os.waitpid(pid, 0)
        raise OSError(int(code), os.strerror(int(code)), place)
    return pid


def descendants() -> list[int]:
    """Every living process below us, found through the kernel's lists of children."""
    found, pending = [], [os.getpid()]
    while pending:
        pid = pending.pop()
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children") as children:
                    below = [int(child) for child in children.read().split()]
                found += below
                pending += below
        except OSError:
            continue
    return found


def send(number: int, pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            continue


class Activity:
    """Notices when the task has shown no progress for too long: in its events, or where it writes none, in its log."""

    def __init__(self, folder: str, stall_s: float) -> None:
        self.folder, self.stall_s = folder, stall_s
        self.every_s = min(max(stall_s / 20, 0.05), 5.0)
        self._seen: tuple[int, int] = (0, 0)
        self._ends_at = time.monotonic() + stall_s

    def stalled(self, now: float) -> bool:
        """Whether there has been none for `stall_s` seconds."""
        seen = self._look("events.jsonl")
        if not seen[0]:
            seen = self._look("log")
        if seen != self._seen:
            self._seen, self._ends_at = seen, now + self.stall_s
        return now >= self._ends_at

    def _look(self, name: str) -> tuple[int, int]:
        try:
            status = os.stat(f"{self.folder}/{name}")
        except OSError:
            return (0, 0)
        return (status.st_size, status.st_mtime_ns)


class Task:
    """The running task: its leader, where its log goes, and the process that hides secrets in it (0: none)."""

    def __init__(self, leader: int, log: int, redactor: int, *, py_spy: str, worker: bool) -> None:
        self.leader, self.log, self.redactor, self.py_spy, self.worker = leader, log, redactor, py_spy, worker

    def others(self) -> list[int]:
        """All that lives below us and has to go with the task; what hides secrets ends by itself, after the rest."""
        return [pid for pid in descendants() if pid != self.redactor]

    def stop(self) -> None:
        send(signal.SIGTERM, [-self.leader])
        send(signal.SIGCONT, [-self.leader])  # a stopped process can't act on TERM

    def kill(self) -> None:
        send(signal.SIGKILL, [-self.leader, *self.others()])

    def dump_stacks(self) -> None:
        """Write into the log where each of its Python processes hangs."""
        try:  # noqa: SIM105 - contextlib would slow its start
            os.write(self.log, b"\nharness: no progress for too long, so the task is stopped. Its stacks:\n")
        except OSError:
            pass  # it may hang because the disk is full
        if self.worker:  # it dumps its own
            send(signal.SIGUSR2, [self.leader])
            time.sleep(0.3)
        for pid in self.others()[:DUMPED] if self.py_spy else []:
            try:
                if "python" in os.path.basename(os.readlink(f"/proc/{pid}/exe")):
                    self._spy(pid)
            except OSError:
                continue

    def _spy(self, pid: int) -> None:
        child = os.fork()
        if child == 0:
            try:
                os.dup2(self.log, 1)
                os.dup2(self.log, 2)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
                os.execv(self.py_spy, [self.py_spy, "dump", "--pid", str(pid)])
            finally:
                os._exit(127)
        ends_at = time.monotonic() + DUMP_S
        while os.waitpid(child, os.WNOHANG)[0] == 0:
            if time.monotonic() > ends_at:
                send(signal.SIGKILL, [child])
            time.sleep(0.02)


def follow(task: Task, activity: Activity, grace_s: float, timeout_s: float) -> tuple[int, str]:
    """Wait until the task and all below it are gone; returns the leader's wait status, and who stopped it."""
    status, stop = -1, ""
    ends_at = time.monotonic() + timeout_s if timeout_s else float("inf")
    kills_at = float("inf")
    while True:
        until = min(ends_at, kills_at) - time.monotonic() if status < 0 else 0.02
        watching = bool(activity.stall_s) and not stop and status < 0
        info = signal.sigtimedwait(WATCHED, max(0.0, min(until, activity.every_s if watching else 3600.0)))
        asked = info.si_signo if info else 0
        stalled = watching and activity.stalled(time.monotonic())
        if stalled:
            task.dump_stacks()
        now = time.monotonic()
        if asked == signal.SIGTERM or now >= ends_at or stalled:
            stop = stop or ("stalled" if stalled else "timeout" if now >= ends_at else "stop")
            ends_at, kills_at = float("inf"), min(kills_at, now + grace_s)
            task.stop()
        if asked == signal.SIGQUIT or now >= kills_at:
            stop = stop if stop in ("timeout", "stalled") else "hard"
            kills_at = float("inf")
            task.kill()
        while True:
            try:
                pid, ended = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return status, stop
            if pid == 0:
                break
            if pid == task.leader:
                status = ended
                os.close(task.log)  # ours: what hides secrets ends when the last writer has gone
        if status >= 0:  # whatever the task left behind ends with it
            send(signal.SIGKILL, task.others())


def launch(folder: str, cwd: str, py_spy: str, argv: list[str]) -> tuple[Task, OSError | None]:
    """Start the task; the error is why it could not be."""
    secrets = [os.environb[os.fsencode(name)] for name in os.environ.pop("HARNESS_SECRETS", "").split()]
    secrets.sort(key=len, reverse=True)  # one may be part of another
    log = redactor = leader = 0
    error = None
    try:
        log, redactor = log_of(folder, secrets)
        leader = start(log, cwd, argv)
    except OSError as problem:
        error = problem
    return Task(leader, log, redactor, py_spy=py_spy, worker=is_worker(argv)), error


def main(folder: str, cwd: str, limits: list[str], argv: list[str]) -> None:
    fcntl.fcntl(LOCK, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    _ctypes.call_function(PRCTL, (PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    grace_s, timeout_s, stall_s = map(float, limits[:3])
    started_at, killed = time.time(), oom_kills()
    task, error = launch(folder, cwd, limits[3], argv)
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot_id = file.read().strip()
    pids = f'"shim_pid": {os.getpid()}, "pid": {task.leader}'
    facts = f'{{{pids}, "boot_id": "{boot_id}", "started_at": {started_at:.6f}}}\n'
    write(folder, "started.json", facts, durably=False)  # it only tells who is who
    status, stop = follow(task, Activity(folder, stall_s), grace_s, timeout_s) if not error else (0, "")
    code = "null" if error or os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    number = os.WTERMSIG(status) if not error and os.WIFSIGNALED(status) else "null"
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    reason = f"{error.strerror}: '{error.filename}'" if error else ""
    own, anybodys = (after - before for after, before in zip(oom_kills(), killed, strict=True))
    own = own or (anybodys if code == 137 or number == signal.SIGKILL else 0)  # it may live in a cgroup of its own
    verdict = (
        f'{{"exit_code": {code}, "signal": {number}, "stop": "{stop}", "started_at": {started_at:.6f}, '
        f'"ended_at": {time.time():.6f}, "cpu_s": {used.ru_utime + used.ru_stime:.3f}, '
        f'"peak_rss_bytes": {used.ru_maxrss * 1024}, "oom_kills": {own}, '
        f'"error": {quoted(reason)}, "errno": {error.errno if error else 0}}}\n'
    )
    while not write(folder, "verdict.json", verdict, durably=True):  # a full disk must not lose a verdict
        if not os.path.isdir(folder):
            return  # somebody removed the attempt: nobody is left to tell
        time.sleep(1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:7], sys.argv[7:])
