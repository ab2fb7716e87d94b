#!/usr/bin/env python3
"""Compares what the conformance suite skips with tests/backend/skips.txt.

  check_skips.py PROGRAM [--filter PATTERN] [--write]

Each line of skips.txt: backend, test, reason, separated by tabs. A skip that is not listed fails,
and so does a listed one that ran. --write prints the lines of this run instead.
"""

import argparse
import pathlib
import re
import subprocess
import sys

LIST = pathlib.Path(__file__).with_name("skips.txt")
STARTED = re.compile(r"\[ RUN      \] (\S+)")
SKIPPED = re.compile(r"\[  SKIPPED \] (\S+) \(")


def skips_of(output):
    """The lines of skips.txt that this output stands for."""
    found = set()
    reason = ""
    lines = output.splitlines()
    for number, line in enumerate(lines):
        if STARTED.match(line):
            reason = "no reason given"
        elif line.endswith(": Skipped"):
            reason = lines[number + 1].strip()
        elif match := SKIPPED.match(line):
            test = match[1].removeprefix("Backends/")
            name, _, backend = test.rpartition("/")
            found.add(f"{backend}\t{name or test}\t{reason}")
    return found


def listed_skips():
    return [line for line in LIST.read_text().splitlines() if line and line[0] != "#"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--filter", default="*")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    done = subprocess.run([options.program, f"--gtest_filter={options.filter}"], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    found = skips_of(done.stdout)
    if " ran. (" not in done.stdout:
        sys.exit(f"{options.program} did not finish:\n{done.stdout[-2000:]}")
    if options.write:
        print("\n".join(sorted(found)))
        return 0
    listed = set(listed_skips())
    for line in sorted(found - listed):
        print(f"skipped, but not in {LIST.name}: {line}")
    for line in sorted(listed - found):
        print(f"in {LIST.name}, but not skipped: {line}")
    for line in sorted(found):
        if not line.startswith("sim\t"):
            print(f"only sim may skip: {line}")
    bad = found != listed or any(not line.startswith("sim\t") for line in found)
    print(f"{len(found)} skips, {len(listed)} listed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
