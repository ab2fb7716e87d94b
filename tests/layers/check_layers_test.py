#!/usr/bin/env python3
"""scripts/check-layers names each rule that a planted line breaks, and passes what is allowed.

usage: check_layers_test.py ROOT
"""

import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(sys.argv.pop(1)).resolve()
CHECK_LAYERS = ROOT / "scripts/check-layers"


def check_layers(root):
    run = subprocess.run([CHECK_LAYERS, root], capture_output=True, text=True, check=False)
    return run.returncode, run.stdout.splitlines()


class Planted(unittest.TestCase):
    """Each test adds one file to a small tree that is clean before."""

    def setUp(self):
        self.root = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.root)
        self.plant("src/loop/loop.cpp", "void turn(Work* work) {\n  work->run(work);\n}\n")
        self.plant("src/sys/calls.cpp", "#include <sys/epoll.h>\n#ifdef __linux__\n#endif\n"
                   "long now() { return clock_gettime(1, nullptr); }\n")
        self.plant("include/evix/loop.hpp", "#include <memory>\n#include \"evix/error.hpp\"\n")
        self.assertEqual(check_layers(self.root), (0, []))

    def plant(self, file, text):
        path = self.root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def assert_reported(self, file, line, rule, text):
        self.plant(file, text)
        status, lines = check_layers(self.root)
        self.assertEqual(status, 1)
        starts = [reported.split("]")[0] + "]" for reported in lines]
        self.assertEqual(starts, [f"{file}:{line}: [{rule}]"], lines)

    def assert_clean(self, file, text):
        self.plant(file, text)
        self.assertEqual(check_layers(self.root), (0, []))

    def test_every_edge_of_the_table(self):
        layers = ["base", "op", "sys", "poll", "backend", "loop", "io", "task", "capi"]
        allowed = {
            ("op", "base"), ("sys", "base"), ("poll", "base"), ("poll", "sys"),
            ("backend", "base"), ("backend", "op"), ("backend", "sys"), ("backend", "poll"),
            ("loop", "base"), ("loop", "op"), ("loop", "sys"), ("io", "base"), ("io", "op"), ("io", "loop"),
            ("io", "sys"), ("task", "base"), ("task", "op"), ("task", "loop"), ("task", "io"),
            ("capi", "base"), ("capi", "op"), ("capi", "loop"), ("capi", "io"),
        }
        expected = set()
        for own in layers:
            includes = "".join(f'#include "{other}/x.hpp"\n' for other in layers)
            self.plant(f"src/{own}/edges.cpp", includes)
            expected |= {
                f"src/{own}/edges.cpp:{line}: [edge]"
                for line, other in enumerate(layers, 1)
                if other != own and (own, other) not in allowed
            }
        status, lines = check_layers(self.root)
        self.assertEqual(status, 1)
        self.assertEqual({line.split("]")[0] + "]" for line in lines}, expected)
        self.assertEqual(len(lines), len(expected))

    def test_loop_sees_two_headers_of_the_backend(self):
        self.assert_clean("src/loop/a.hpp", '#include "backend/contract.hpp"\n'
                          '#include "backend/choose.hpp"\n')
        self.assert_reported("src/loop/b.hpp", 1, "edge", '#include "backend/readiness.hpp"\n')

    def test_unknown_layer(self):
        self.assert_reported("src/misc/a.cpp", 1, "edge", "#include <memory>\n")

    def test_include_without_a_layer(self):
        self.assert_reported("src/op/a.cpp", 1, "edge", '#include "op.hpp"\n')

    def test_include_that_climbs(self):
        self.assert_reported("bench/a.cpp", 1, "edge", '#include "../src/base/slab.hpp"\n')

    def test_public_header_of_a_higher_layer(self):
        self.assert_reported("src/poll/a.cpp", 1, "edge", "#include <evix/loop.hpp>\n")

    def test_public_header_that_includes_a_higher_one(self):
        self.assert_reported("include/evix/poller.hpp", 2, "edge",
                             '#include <span>\n#include "evix/loop.hpp"\n')

    def test_public_header_that_includes_a_source_header(self):
        self.assert_reported("include/evix/timer.hpp", 1, "edge", '#include "base/slab.hpp"\n')

    def test_program_that_includes_a_source_header(self):
        for folder in ("cli", "examples/cpp"):
            with self.subTest(folder):
                self.setUp()
                self.assert_reported(f"{folder}/a.cpp", 1, "edge", '#include "loop/turn.hpp"\n')

    def test_benchmark_of_a_data_structure(self):
        self.assert_clean("bench/a.cpp", '#include "base/slab.hpp"\n')

    def test_program_that_includes_a_source_header_in_angles(self):
        self.assert_reported("cli/a.cpp", 1, "edge", "#include <sys/calls.hpp>\n")

    def test_c_program_that_includes_cpp(self):
        self.assert_reported("examples/c/a.c", 1, "edge", "#include <evix/loop.hpp>\n")

    def test_test_that_includes_a_higher_layer(self):
        self.assert_clean("tests/backend/a.cpp", '#include "poll/driver.hpp"\n')
        self.assert_reported("tests/poll/a.cpp", 1, "edge", '#include "backend/contract.hpp"\n')

    def test_os_header_outside_its_home(self):
        for header in ("sys/epoll.h", "unistd.h", "netinet/in.h", "liburing.h"):
            with self.subTest(header):
                self.setUp()
                self.assert_reported("src/backend/readiness.cpp", 1, "os-header",
                                     f"#include <{header}>\n")

    def test_os_header_in_a_header_of_poll(self):
        self.assert_reported("src/poll/driver.hpp", 1, "os-header", "#include <sys/epoll.h>\n")

    def test_os_header_at_home(self):
        for file in ("poll/epoll", "poll/poll", "poll/kqueue", "backend/io_uring"):
            self.assert_clean(f"src/{file}.cpp", "#include <sys/epoll.h>\n")
        for folder in ("cli", "tests/io", "bench", "examples/cpp"):
            self.assert_clean(f"{folder}/a.cpp", "#include <sys/socket.h>\n")

    def test_os_header_in_a_public_header(self):
        self.assert_reported("include/evix/tcp.hpp", 1, "os-header", "#include <sys/socket.h>\n")

    def test_os_if(self):
        for line in ("#ifdef __linux__", "#if defined(_WIN32)", "#  elif __APPLE__",
                     "#if 1 || \\\n    defined(__FreeBSD__)",
                     "#if __has_include(<sys/event.h>)", "#ifndef SYS_epoll_pwait2"):
            with self.subTest(line):
                self.setUp()
                self.assert_reported("src/poll/epoll.cpp", 1, "os-if", line + "\n")

    def test_os_if_in_a_public_header(self):
        self.assert_reported("include/evix/tcp.hpp", 1, "os-if", "#if defined(__linux__)\n")

    def test_os_if_at_home(self):
        self.assert_clean("src/backend/choose.cpp", "#ifdef __linux__\n#endif\n")
        self.assert_clean("src/base/a.cpp", "#ifdef NDEBUG\n#endif\n")

    def test_clock(self):
        for call in ("clock_gettime(CLOCK_MONOTONIC, &at)", "std::chrono::steady_clock::now()",
                     "std::chrono::system_clock::now()", "gettimeofday(&at, nullptr)",
                     "std::time(nullptr) + 1", "calls.clock_now()"):
            with self.subTest(call):
                self.setUp()
                self.assert_reported("src/loop/a.cpp", 2, "clock",
                                     f"// when\nauto at = {call};\n")

    def test_clock_in_a_public_header(self):
        self.assert_reported("include/evix/time.hpp", 1, "clock",
                             "inline auto now() { return steady_clock::now(); }\n")

    def test_clock_door_below_the_loop(self):
        self.assert_clean("src/backend/a.cpp", "auto at = calls.clock_now();\n")

    def test_random(self):
        for call in ("std::random_device{}()", "rand()", "std::rand()", "random()",
                     "getrandom(bytes, 8, 0)", "arc4random()"):
            with self.subTest(call):
                self.setUp()
                self.assert_reported("src/backend/sim.cpp", 1, "random", f"auto seed = {call};\n")

    def test_words_in_comments_and_literals(self):
        self.assert_clean("src/base/a.cpp", '/* clock_gettime(\n rand() */\n'
                          'const char* text = "work->run(work) rand() steady_clock::now()";\n'
                          "int count = 1'000'000;  // random()\n")

    def test_second_dispatch_line(self):
        self.plant("src/io/tcp.cpp", "\nvoid skip(Work* item) { item->run(item); }\n")
        status, lines = check_layers(self.root)
        self.assertEqual(status, 1)
        self.assertEqual([line.split("]")[0] + "]" for line in lines],
                         ["src/io/tcp.cpp:2: [dispatch]", "src/loop/loop.cpp:2: [dispatch]"])

    def test_no_dispatch_line(self):
        self.assert_reported("src/loop/loop.cpp", 1, "dispatch", "void turn(Work*) {}\n")

    def test_machine_path(self):
        for folder in ("work", "home", "root", "Users"):
            with self.subTest(folder):
                self.setUp()
                self.assert_reported("docs/a.md", 2, "machine-path", f"see\n/{folder}/someone/x\n")

    def test_paths_that_are_everywhere(self):
        self.assert_clean("docs/a.md", "/usr/include, /dev/null, build/work/x, ./home/x\n")


if __name__ == "__main__":
    unittest.main()
