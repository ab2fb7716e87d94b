#!/usr/bin/env python3
"""Writes docs/conformance.md, what each backend does in the conformance suite, or checks it.

  conformance_table.py PROGRAM [--write]

--write runs the suite and writes the results; without it the table must have every suite with the
number of tests that PROGRAM has now, and the skips of skips.txt.
"""

import argparse
import collections
import json
import pathlib
import subprocess
import sys
import tempfile

from check_skips import listed_skips

TABLE = pathlib.Path(__file__).resolve().parents[2] / "docs/conformance.md"
BACKENDS = ["epoll", "poll", "io_uring", "sim"]
INTRODUCTION = """\
# Conformance

One suite, `tests/backend`, runs over every backend. Written by
`tests/backend/conformance_table.py build/debug/bin/test_backend --write`; a test compares its suites
and numbers of tests with the program. A cell is the number of tests that passed; what a backend
skips is listed below with the reason.

"""


def split(name):
    """("TcpSend", "epoll") of the suite and test "Backends/TcpSend" "Name/epoll"; None: not one."""
    suite, _, test = name.partition(".")
    backend = test.rpartition("/")[2]
    if not suite.startswith("Backends/") or backend not in BACKENDS:
        return None
    return suite.removeprefix("Backends/"), backend


def listed(program):
    """Number of tests by suite and backend."""
    output = subprocess.run([program, "--gtest_list_tests"], capture_output=True, text=True,
                            check=True).stdout
    counts = collections.Counter()
    suite = ""
    for line in output.splitlines():
        line = line.partition("#")[0].rstrip()
        if not line.startswith(" "):
            suite = line
        elif key := split(suite + line.strip()):
            counts[key] += 1
    return counts


def run(program):
    """(results by suite and backend, names of failed tests) of a run of the whole suite."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        ended = subprocess.run([program, "--gtest_filter=Backends/*", "--gtest_brief=1",
                                f"--gtest_output=json:{file.name}"],
                               stdout=subprocess.DEVNULL, check=False).returncode
        report = json.load(file)
    passed = collections.Counter()
    failed = []
    for suite in report["testsuites"]:
        for test in suite["testsuite"]:
            name = f"{suite['name']}.{test['name']}"
            if "failures" in test:
                failed.append(name)
            elif (key := split(name)) and test["result"] != "SKIPPED":
                passed[key] += 1
    if ended != 0 and not failed:
        sys.exit(f"not written, the program ended with {ended}")
    return passed, failed


def skips():
    return [line.split("\t") for line in listed_skips()]


def text_of(passed):
    lines = ["| suite | " + " | ".join(BACKENDS) + " |", "|---" * (len(BACKENDS) + 1) + "|"]
    for suite in sorted({suite for suite, _ in passed}):
        cells = [str(passed[suite, backend]) for backend in BACKENDS]
        lines.append(f"| {suite} | " + " | ".join(cells) + " |")
    totals = [str(sum(count for (_, other), count in passed.items() if other == backend))
              for backend in BACKENDS]
    lines += ["| **all** | " + " | ".join(totals) + " |", "", "## Skipped", "",
              "| backend | test | reason |", "|---|---|---|"]
    lines += [f"| {backend} | {test} | {reason} |" for backend, test, reason in skips()]
    return INTRODUCTION + "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.write:
        passed, failed = run(options.program)
        if failed:
            sys.exit("not written, these failed:\n  " + "\n  ".join(failed))
        TABLE.write_text(text_of(passed))
        return 0
    expected = listed(options.program)
    if not all(sum(count for (_, other), count in expected.items() if other == backend)
               for backend in BACKENDS):
        print("not every backend can be used here")
        return 77
    for backend, test, _ in skips():
        expected[test.partition(".")[0], backend] -= 1
    if TABLE.read_text() == text_of(expected):
        return 0
    print(f"{TABLE.name} is not what {options.program} has: write it anew\n"
          f"  tests/backend/conformance_table.py {options.program} --write")
    return 1


if __name__ == "__main__":
    sys.exit(main())
