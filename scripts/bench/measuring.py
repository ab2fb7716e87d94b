"""What the measuring scripts share: servers, the raw load, CPU clocks and tables.

Only the standard library, so that the scripts run wherever evix builds.
"""

import json
import os
import pathlib
import select
import shlex
import signal
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SERVER_CORE = "0"
LOAD_CORE = "1"


class MeasureError(Exception):
    """Says what could not be measured and why."""


def program(name):
    """The path of one of the raw programs, as built by CMake or by build-floor.

    EVIX_BENCH_PROGRAMS names another folder to look in, and is then the only one.
    """
    chosen = os.environ.get("EVIX_BENCH_PROGRAMS")
    for folder in (chosen,) if chosen else ("build/release/bin", "build/floor"):
        path = ROOT / folder / name
        if path.exists():
            return os.path.relpath(path)
    raise MeasureError(f"{name} is not built: run scripts/bench/build-floor")


class Process:
    """A child pinned to one core, spoken to by lines."""

    def __init__(self, command, core, wrapper=()):
        words = shlex.split(command) if isinstance(command, str) else list(command)
        self.command = shlex.join(words)
        self.child = subprocess.Popen(
            ["taskset", "-c", core, *wrapper, *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def line(self, timeout_s):
        """The next line; output of these programs is flushed line by line."""
        ready, _, _ = select.select([self.child.stdout], [], [], timeout_s)
        if not ready:
            raise MeasureError(f"no line within {timeout_s} s from: {self.command}")
        text = self.child.stdout.readline()
        if not text:
            raise MeasureError(f"ended with {self.child.wait()}: {self.command}")
        return text.rstrip("\n")

    def step(self):
        self.child.stdin.write("\n")
        self.child.stdin.flush()

    def wait(self, timeout_s):
        self.child.stdin.close()
        try:
            return self.child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise MeasureError(f"still running after {timeout_s} s: {self.command}") from None
        finally:
            self.end()

    def end(self):
        if self.child.poll() is None:
            self.child.kill()
            self.child.wait()
        self.child.stdout.close()


class Server(Process):
    """A server that says `listening on ADDRESS`, as a context."""

    def __init__(self, command, wrapper=(), timeout_s=10):
        super().__init__(command, SERVER_CORE, wrapper)
        try:
            while not (text := self.line(timeout_s)).startswith("listening on "):
                pass
        except MeasureError:
            self.end()
            raise
        self.address = text.split()[2]

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
            try:
                self.child.wait(10)
            except subprocess.TimeoutExpired:
                print(f"does not end on SIGTERM: {self.command}", file=sys.stderr)
        self.end()

    def tasks(self):
        return pathlib.Path(f"/proc/{self.child.pid}/task").iterdir()

    def cpu_ns_when_idle(self):
        """CPU time of the process, user and kernel, threads that ended included.

        The kernel brings a thread's time up to date when it goes to sleep; read while it runs,
        it can be a clock tick old. So this waits until every thread sleeps.
        """
        deadline = time.monotonic() + 10
        while any(self.running(task) for task in self.tasks()):
            if time.monotonic() > deadline:
                raise MeasureError(f"never idle: {self.command}")
        # The clock of a process by its number, see clock_getcpuclockid(3).
        return time.clock_gettime_ns((~self.child.pid << 3) | 2)

    @staticmethod
    def running(task):
        try:
            return (task / "stat").read_text().rsplit(")", 1)[1].split()[0] == "R"
        except FileNotFoundError:
            return False

    def open_descriptors(self):
        return len(os.listdir(f"/proc/{self.child.pid}/fd"))


class Load(Process):
    """The raw load, stopped at each step while the server is idle."""

    def __init__(self, address, *options):
        super().__init__([program("floor_load"), address, "--steps", *map(str, options)],
                         LOAD_CORE)

    def expect(self, word, timeout_s=60):
        text = self.line(timeout_s)
        if text != word:
            raise MeasureError(f"expected '{word}', got '{text}': {self.command}")

    def result(self, timeout_s=120):
        return json.loads(self.line(timeout_s))


def clean(result):
    return result["errors"] == 0 and result["lost"] == 0 and result["wrong_bytes"] == 0


def numbers(text):
    return [int(word) for word in text.split(",")]


def limits(text, connections):
    """`1.05` for all, or `1:1.10,50:1.05` for each number of connections."""
    if text is None:
        return {}
    if ":" not in text:
        return {number: float(text) for number in connections}
    return {int(number): float(limit)
            for number, limit in (pair.split(":") for pair in text.split(","))}


def spread(values):
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"
