"""Supervises one attempt for its whole life, outlives a killed engine, and leaves one verdict.

    python -I -S shim.py FOLDER CWD GRACE_S TIMEOUT_S ARGV...        (TIMEOUT_S 0: none; the environment is the task's)

It holds a lock for life, so that liveness needs no process ids; is the reaper of every descendant, so that none
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

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
WATCHED = {signal.SIGCHLD, signal.SIGTERM, signal.SIGQUIT}
PRCTL = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]


def quoted(text: str) -> str:
    """`text` as a JSON string."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c >= " " else f"\\u{ord(c):04x}" for c in plain) + '"'


def write(folder: str, name: str, text: str) -> None:
    """Write a file atomically and durably, trying again for ever: a full disk must not lose a verdict."""
    while True:
        try:
            temporary = os.open(f"{folder}/.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                os.write(temporary, text.encode("utf-8", "replace"))
                os.fsync(temporary)
            finally:
                os.close(temporary)
            os.rename(f"{folder}/.{name}", f"{folder}/{name}")
            directory = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError:
            if not os.path.isdir(folder):
                return  # somebody removed the attempt: nobody is left to tell
            time.sleep(1)
        else:
            return


def lock(folder: str) -> None:
    """Take the attempt's lock for life; a reader that just asks about it holds it for some microseconds."""
    descriptor = os.open(f"{folder}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    for _ in range(10):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(0.02)
        else:
            return
    sys.exit("another supervisor has this attempt")


def start(folder: str, cwd: str, argv: list[str]) -> tuple[int, str]:
    """Fork and exec the task in its own process group; returns its pid, and why it could not be started if so."""
    told, tell = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
            _ctypes.call_function(PRCTL, (PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
            log = os.open(f"{folder}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(log)
            os.chdir(cwd)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
            os.execvp(argv[0], argv)
        except OSError as problem:
            os.write(tell, f"{problem.strerror}: '{problem.filename or argv[0]}'".encode())
        finally:
            os._exit(127)
    os.close(tell)
    reason = os.read(told, 4096).decode("utf-8", "replace")
    os.close(told)
    return pid, reason


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


def follow(leader: int, grace_s: float, timeout_s: float) -> tuple[int, str]:
    """Wait until the leader and all else are gone; returns the leader's wait status, and who stopped it."""
    status, stop = -1, ""
    ends_at = time.monotonic() + timeout_s if timeout_s else float("inf")
    kills_at = float("inf")
    while True:
        until = min(ends_at, kills_at) - time.monotonic() if status < 0 else 0.02
        info = signal.sigtimedwait(WATCHED, max(0.0, min(until, 3600.0)))
        now = time.monotonic()
        asked = info.si_signo if info else 0
        if asked == signal.SIGTERM or now >= ends_at:
            stop = stop or ("timeout" if now >= ends_at else "stop")
            ends_at, kills_at = float("inf"), min(kills_at, now + grace_s)
            send(signal.SIGTERM, [-leader])
            send(signal.SIGCONT, [-leader])  # a stopped process can't act on TERM
        if asked == signal.SIGQUIT or now >= kills_at:
            stop = stop if stop == "timeout" else "hard"
            kills_at = float("inf")
            send(signal.SIGKILL, [-leader, *descendants()])
        while True:
            try:
                pid, ended = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return status, stop
            if pid == 0:
                break
            if pid == leader:
                status = ended
        if status >= 0:  # whatever the task left behind ends with it
            send(signal.SIGKILL, descendants())


def main(folder: str, cwd: str, limits: tuple[float, float], argv: list[str]) -> None:
    lock(folder)
    _ctypes.call_function(PRCTL, (PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    os.environ["HARNESS_ATTEMPT"] = folder
    started_at = time.time()
    leader, error = start(folder, cwd, argv)
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot_id = file.read().strip()
    pids = f'"shim_pid": {os.getpid()}, "pid": {leader}'
    write(folder, "started.json", f'{{{pids}, "boot_id": "{boot_id}", "started_at": {started_at:.6f}}}\n')
    status, stop = follow(leader, *limits)
    code = "null" if error or os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    number = os.WTERMSIG(status) if not error and os.WIFSIGNALED(status) else "null"
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    write(
        folder,
        "verdict.json",
        f'{{"exit_code": {code}, "signal": {number}, "stop": "{stop}", "started_at": {started_at:.6f}, '
        f'"ended_at": {time.time():.6f}, "cpu_s": {used.ru_utime + used.ru_stime:.3f}, '
        f'"peak_rss_bytes": {used.ru_maxrss * 1024}, "error": {quoted(error)}}}\n',
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], (float(sys.argv[3]), float(sys.argv[4])), sys.argv[5:])
