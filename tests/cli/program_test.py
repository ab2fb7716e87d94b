#!/usr/bin/env python3
"""Runs the program evix from outside: help, exit codes, messages, echo and load.

usage: EVIX_PROGRAM=build/release/bin/evix EVIX_VERSION=0.1.0 program_test.py [-v] [CLASS...]

Nothing here waits for time to pass: each wait is for a line, a byte or the end of a process.
"""

import ctypes
import json
import os
import pty
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import unittest

import servers

PROGRAM = os.environ["EVIX_PROGRAM"]
VERSION = os.environ["EVIX_VERSION"]
LIMIT_S = 60  # only a broken program takes as long

CLEAN_ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "EVIX_BACKEND"}


def environment(backend=None):
    return dict(CLEAN_ENVIRONMENT, EVIX_BACKEND=backend) if backend else CLEAN_ENVIRONMENT


def evix(*arguments, backend=None, **options):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=LIMIT_S,
                          env=environment(backend), **options)


def descriptor_limit(count):
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))


def usable_backends():
    """Those with which a real network can be reached."""
    report = json.loads(evix("doctor", "--json").stdout)
    return [b["name"] for b in report["backends"] if b["available"] and b["name"] != "sim"]


def largest_buffer(name):
    with open(f"/proc/sys/net/ipv4/{name}", encoding="ascii") as file:
        return int(file.read().split()[2])


def start_load(*arguments, stderr=subprocess.PIPE):
    return subprocess.Popen([PROGRAM, "load", *arguments], stdout=subprocess.PIPE, stderr=stderr,
                            text=True, env=CLEAN_ENVIRONMENT)


class EchoProcess:
    """`evix echo` on a free port, ready for connections; a context manager."""

    def __init__(self, *arguments, listen="127.0.0.1:0", **options):
        self.process = subprocess.Popen([PROGRAM, "echo", "--listen", listen, *arguments],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        env=CLEAN_ENVIRONMENT, **options)
        self.first_line = self.process.stdout.readline()
        self.address = self.first_line.removeprefix("listening on ").strip()
        self.port = int(self.address.rpartition(":")[2] or 0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.returncode is None:
            self.process.kill()
            self.process.communicate()

    def connect(self):
        host = self.address.rpartition(":")[0].strip("[]")
        return socket.create_connection((host, self.port), timeout=LIMIT_S)

    def end(self, number=signal.SIGTERM):
        """(exit code, standard error) after this signal."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self):
        _, errors = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, errors


def echo_once(connection, message):
    connection.sendall(message)
    return servers.receive_exactly(connection, len(message))


class Case(unittest.TestCase):
    def check_exit(self, code, result):
        self.assertEqual(code, result.returncode, result.stdout + result.stderr)

    def check_totals(self, counts, errors):
        """The waits are as many as there happened to be."""
        self.assertRegex(errors, f"^{re.escape(counts)}, [1-9][0-9]* waits\n$")


class Usage(Case):
    def test_version(self):
        result = evix("--version")
        self.check_exit(0, result)
        self.assertEqual(f"evix {VERSION}\n", result.stdout)

    def test_output_that_cannot_be_written_is_exit_code_1(self):
        for arguments in (["doctor"], ["doctor", "--json"], ["echo", "--listen", "127.0.0.1:0"]):
            with self.subTest(arguments=arguments), open("/dev/full", "w") as full:
                result = subprocess.run([PROGRAM, *arguments], stdout=full, text=True,
                                        stderr=subprocess.PIPE, timeout=LIMIT_S,
                                        env=CLEAN_ENVIRONMENT)
                self.assertEqual(1, result.returncode, result.stderr)
                self.assertIn("could be written to the standard output", result.stderr)

    def test_help_of_every_command_lists_options_and_exit_codes(self):
        table = {
            (): ["doctor", "echo", "load", "--version"],
            ("doctor",): ["--json", "--backend"],
            ("echo",): ["--listen", "--backend", "--echoes", "--quiet", "listening on"],
            ("load",): ["ADDRESS:PORT", "--connections", "--size", "--pipeline", "--duration",
                        "--echoes", "--backend", "--json", "--idle", "--hold"],
        }
        for command, words in table.items():
            with self.subTest(command=command):
                result = evix(*command, "--help")
                self.check_exit(0, result)
                self.assertEqual("", result.stderr)
                for word in words + ["Exit codes:", "0  done", "2  wrong usage"]:
                    self.assertIn(word, result.stdout)

    def test_wrong_usage_is_exit_code_2_with_a_message(self):
        address = "127.0.0.1:9"
        table = [
            [], ["nonsense"], ["--nonsense"], ["doctor", "nonsense"], ["echo"], ["load"],
            ["doctor", "--backend", "nonsense"], ["doctor", "--backend"],
            ["echo", "--listen", "127.0.0.1:0", "--echoes", "0"],
            ["echo", "--listen", "127.0.0.1:0", "--echoes", "-1"],
            ["echo", "--listen", "127.0.0.1:0", "nonsense"],
            ["load", address, address],
            ["load", address, "--connections", "0"], ["load", address, "--connections", "200001"],
            ["load", address, "--connections", "many"],
            ["load", address, "--size", "0"], ["load", address, "--size", "64kb"],
            ["load", address, "--size", "2g"],
            ["load", address, "--pipeline", "0"], ["load", address, "--pipeline", "65537"],
            ["load", address, "--duration", "5"], ["load", address, "--duration", "0s"],
            ["load", address, "--duration", "-1s"], ["load", address, "--duration", "300y"],
            ["load", address, "--duration", "9999999999999s"],
            ["load", address, "--connections", "100000", "--pipeline", "60000"],
            ["load", address, "--connections", "1000", "--pipeline", "100", "--size", "1m"],
            ["load", address, "--backend", "nonsense"], ["load", "127.0.0.1:0"],
        ]
        for arguments in table:
            with self.subTest(arguments=arguments):
                result = evix(*arguments)
                self.check_exit(2, result)
                self.assertEqual("", result.stdout)
                self.assertNotEqual("", result.stderr)

    def test_a_misspelled_command_is_named(self):
        for arguments in (["ecko"], ["ecko", "--listen", "127.0.0.1:0"]):
            with self.subTest(arguments=arguments):
                result = evix(*arguments)
                self.check_exit(2, result)
                self.assertEqual("'ecko' is no command of evix\n"
                                 "Run with --help for more information.\n", result.stderr)

    def test_bad_addresses_are_exit_code_2_with_an_example(self):
        for text in ["", "127.0.0.1", "127.0.0.1:", ":3000", "3000", "localhost:3000",
                     "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:3000x", "127.0.0.1.1:3000",
                     "127.0.0:3000", "256.0.0.1:3000", "::1:3000", "[::1]", "[::1]3000",
                     "[::g]:3000", "[127.0.0.1]:3000", "127.0.0.1 :3000", "http://127.0.0.1:3000"]:
            for arguments in (["echo", "--listen", text], ["load", text]):
                with self.subTest(arguments=arguments):
                    result = evix(*arguments)
                    self.check_exit(2, result)
                    self.assertIn("such as 127.0.0.1:3000 or [::1]:3000", result.stderr)

    def test_an_unknown_backend_names_those_that_exist(self):
        result = evix("echo", "--listen", "127.0.0.1:0", "--backend", "nonsense")
        self.check_exit(2, result)
        self.assertIn("epoll", result.stderr)
        self.assertIn("poll", result.stderr)


class Doctor(Case):
    def report(self, *arguments, backend=None):
        result = evix("doctor", "--json", *arguments, backend=backend)
        self.check_exit(0, result)
        return json.loads(result.stdout)

    def test_json_is_complete(self):
        report = self.report()
        self.assertEqual({"version", "kernel", "cores", "backend", "decided_by", "error",
                          "backends", "fallbacks", "limits"}, set(report))
        self.assertEqual(VERSION, report["version"])
        self.assertEqual(f"{os.uname().sysname} {os.uname().release}", report["kernel"])
        self.assertEqual(len(os.sched_getaffinity(0)), report["cores"])
        self.assertIsInstance(report["fallbacks"], list)
        for choice in report["backends"]:
            self.assertEqual({"name", "available", "chosen", "reason"}, set(choice))
            self.assertNotEqual("", choice["reason"], choice["name"])

    def test_limits_are_those_of_the_process(self):
        result = evix("doctor", "--json", preexec_fn=descriptor_limit(321))
        limits = json.loads(result.stdout)["limits"]
        self.assertEqual(321, limits["nofile_soft"])
        self.assertEqual(321, limits["nofile_hard"])
        unlimited = resource.RLIM_INFINITY
        soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        self.assertEqual(None if soft == unlimited else soft, limits["memlock_soft_bytes"])
        self.assertEqual(None if hard == unlimited else hard, limits["memlock_hard_bytes"])
        with open("/proc/sys/net/core/somaxconn", encoding="ascii") as file:
            self.assertEqual(int(file.read()), limits["somaxconn"])

    def test_exactly_one_backend_is_chosen_by_whom_it_says(self):
        self.check_choice(self.report(), self.report()["backend"], "automatic")

    def test_every_usable_backend_can_be_chosen(self):
        for backend in usable_backends():
            with self.subTest(backend=backend):
                by_option = self.report("--backend", backend)
                self.check_choice(by_option, backend, "LoopOptions::backend")
                self.check_choice(self.report(backend=backend), backend, "EVIX_BACKEND")

    def test_the_option_counts_more_than_the_environment(self):
        report = self.report("--backend", "poll", backend="epoll")
        self.check_choice(report, "poll", "LoopOptions::backend")

    def check_choice(self, report, backend, decided_by):
        self.assertEqual(backend, report["backend"])
        self.assertIn(decided_by, report["decided_by"])
        chosen = [choice["name"] for choice in report["backends"] if choice["chosen"]]
        self.assertEqual([backend], chosen)

    def test_a_backend_that_cannot_run_is_exit_code_1_with_the_reason(self):
        for name in ("kqueue", "io_uring"):
            choices = self.report()["backends"]
            if any(choice["name"] == name and choice["available"] for choice in choices):
                continue
            for arguments, variable in ((["--backend", name], None), ([], name)):
                with self.subTest(arguments=arguments, variable=variable):
                    result = evix("doctor", *arguments, backend=variable)
                    self.check_exit(1, result)
                    self.assertIn("backend: none", result.stdout)
                    self.assertIn("no loop can run", result.stderr)

    def test_an_unknown_name_in_the_environment_is_exit_code_1(self):
        result = evix("doctor", "--json", backend="nonsense")
        self.check_exit(1, result)
        report = json.loads(result.stdout)
        self.assertIsNone(report["backend"])
        self.assertIn("nonsense", report["error"])
        self.assertEqual([], [choice for choice in report["backends"] if choice["chosen"]])
        self.assertIn("nonsense", result.stderr)

    def test_the_environment_is_ignored_where_it_is_not_trusted(self):
        if os.geteuid() != 0:
            self.skipTest("only root can make a program that runs as someone else")
        nobody = 65534
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            program = shutil.copy(PROGRAM, folder)

            def decided_by(mode):
                os.chmod(program, mode)
                report = json.loads(subprocess.run(
                    [program, "doctor", "--json"], capture_output=True, text=True, timeout=LIMIT_S,
                    env=environment("poll"), user=nobody, check=True).stdout)
                return report["decided_by"]

            self.assertEqual("EVIX_BACKEND", decided_by(0o755))
            if os.statvfs(folder).f_flag & os.ST_NOSUID:
                self.skipTest("set-user-id programs mean nothing in the temporary folder")
            self.assertEqual("automatic choice", decided_by(0o4755))

    def test_text_names_every_backend_and_limit(self):
        result = evix("doctor")
        self.check_exit(0, result)
        for word in ["evix " + VERSION, "backend: ", "epoll", "poll", "sim", "io_uring", "kqueue",
                     "fallbacks:", "descriptors", "locked bytes", "listen backlog"]:
            self.assertIn(word, result.stdout)


class Echo(Case):
    def test_the_address_line_names_the_port(self):
        with EchoProcess() as server:
            self.assertRegex(server.first_line, r"^listening on 127\.0\.0\.1:[1-9][0-9]*\n$")
            self.assertNotEqual(0, server.port)

    def test_ipv6(self):
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError as error:
            self.skipTest(f"no IPv6 here: {error}")
        with EchoProcess(listen="[::1]:0") as server, server.connect() as client:
            self.assertRegex(server.first_line, r"^listening on \[::1\]:[1-9][0-9]*\n$")
            self.assertEqual(b"six", echo_once(client, b"six"))

    def test_signals_end_it_cleanly_with_exact_totals(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number=number), EchoProcess() as server:
                with server.connect() as first, server.connect() as second:
                    self.assertEqual(b"abc", echo_once(first, b"abc"))
                    self.assertEqual(b"defgh", echo_once(first, b"defgh"))
                    self.assertEqual(b"ij", echo_once(second, b"ij"))
                    code, errors = server.end(number)
                self.assertEqual(0, code)
                self.check_totals("evix echo: 2 connections, 3 echoes, 10 bytes, 0 errors", errors)

    def test_quiet_prints_no_totals(self):
        with EchoProcess("--quiet") as server:
            self.assertEqual((0, ""), server.end())

    def test_ends_by_itself_after_the_wanted_echoes(self):
        with EchoProcess("--echoes", "3") as server, server.connect() as client:
            for message in (b"1", b"22", b"333"):
                self.assertEqual(message, echo_once(client, message))
            self.assertEqual(b"", client.recv(1))
            code, errors = server.wait()
            self.assertEqual(0, code)
            self.check_totals("evix echo: 1 connections, 3 echoes, 6 bytes, 0 errors", errors)

    def test_a_reset_is_counted_and_serving_goes_on(self):
        with EchoProcess() as server, server.connect() as other:
            client = server.connect()
            self.assertEqual(b"a", echo_once(client, b"a"))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            client.close()
            self.assertEqual(b"b", echo_once(other, b"b"))
            code, errors = server.end()
            self.assertEqual(0, code)
            self.check_totals("evix echo: 2 connections, 2 echoes, 2 bytes, 1 errors", errors)

    def test_a_slow_reader_gets_every_byte(self):
        # More than all buffers between the two take: Linux 6.16 raised tcp_rmem's largest to 32 MiB.
        buffers = 2 * (largest_buffer("tcp_rmem") + largest_buffer("tcp_wmem"))
        message = os.urandom(1 << 20) * (2 + (buffers >> 20))
        for backend in usable_backends():
            with self.subTest(backend=backend), EchoProcess("--backend", backend) as server:
                with server.connect() as client:
                    self.send_until_stuck_then_read(client, message)
                code, errors = server.end()
                self.assertEqual(0, code)
                self.assertIn(f" {len(message)} bytes, 0 errors", errors)

    def send_until_stuck_then_read(self, client, message):
        def send():
            client.sendall(message)
            client.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        # Not writable for so long: the server has stopped reading. Were it only slow, the bytes
        # below would be the same.
        while select.select([], [client], [], 0.1)[1]:
            pass
        self.assertTrue(sender.is_alive(), "the server took everything without a limit")
        received = bytearray()
        while piece := client.recv(1 << 20):
            received += piece
        sender.join()
        self.assertTrue(received == message, f"{len(received)} of {len(message)} bytes, or wrong")

    def test_a_port_in_use(self):
        with EchoProcess() as server:
            result = evix("echo", "--listen", server.address)
            self.check_exit(1, result)
            self.assertEqual("", result.stdout)
            self.assertIn(f"{server.address}: address already in use", result.stderr)
            self.assertIn("choose another port, or port 0", result.stderr)

    def test_a_privileged_port(self):
        with open("/proc/sys/net/ipv4/ip_unprivileged_port_start", encoding="ascii") as file:
            if int(file.read()) <= 1:
                self.skipTest("no port is privileged here")

        def give_up_the_privilege():
            pr_capbset_drop, cap_net_bind_service = 24, 10
            if os.geteuid() == 0 and ctypes.CDLL(None).prctl(
                    pr_capbset_drop, cap_net_bind_service, 0, 0, 0) != 0:
                raise PermissionError("cannot give up CAP_NET_BIND_SERVICE")

        try:
            result = evix("echo", "--listen", "127.0.0.1:1", preexec_fn=give_up_the_privilege)
        except subprocess.SubprocessError as error:
            self.skipTest(f"root that must stay privileged: {error}")
        self.check_exit(1, result)
        self.assertIn("127.0.0.1:1: permission denied", result.stderr)
        self.assertIn("need privileges: choose a higher port", result.stderr)

    def test_an_address_of_another_machine(self):
        result = evix("echo", "--listen", "192.0.2.1:0")
        self.check_exit(1, result)
        self.assertIn("this machine has no such address", result.stderr)

    def test_the_simulated_backend_is_refused(self):
        for arguments, variable in ((["--backend", "sim"], None), ([], "sim")):
            result = evix("echo", "--listen", "127.0.0.1:0", *arguments, backend=variable)
            self.check_exit(1, result)
            self.assertIn("choose automatic, io_uring, epoll or poll", result.stderr)

    # At the limit the sanitizer cannot make the pipe with which it reads an object's type, and then
    # calls a good object a bad one.
    @unittest.skipIf("undefined" in os.environ.get("EVIX_SANITIZE", ""),
                     "the sanitizer needs a pipe")
    def test_too_few_descriptors_are_reported_and_serving_goes_on(self):
        with EchoProcess(preexec_fn=descriptor_limit(40)) as server:
            clients = [server.connect() for _ in range(60)]  # the backlog takes them all
            line = server.process.stderr.readline()
            self.assertIn("too many open files", line)
            self.assertIn("ulimit -n", server.process.stderr.readline())
            self.assertEqual(b"in", echo_once(clients[0], b"in"))
            waiting = clients[50:]
            for client in clients[:50]:
                client.close()
            for client in waiting:
                self.assertEqual(b"late", echo_once(client, b"late"))
                client.close()
            code, errors = server.end()
            self.assertEqual(0, code)
            self.assertIn("evix echo: 60 connections, 11 echoes, 42 bytes", errors)


JSON_KEYS = {"connections", "size_bytes", "pipeline", "backend", "duration_seconds", "requests",
             "requests_per_second", "echoes_min_per_connection", "errors", "lost_bytes",
             "wrong_bytes", "latency_ns"}


class LoadCase(Case):
    def load(self, address, *arguments, code=0, **options):
        result = evix("load", address, "--json", *arguments, **options)
        self.check_exit(code, result)
        report = json.loads(result.stdout)
        self.assertEqual(JSON_KEYS, set(report))
        self.assertEqual({"p50", "p90", "p99", "p999", "max"}, set(report["latency_ns"]))
        if code == 0:
            self.assertEqual("", result.stderr)
        return report

    def check_clean(self, report):
        self.assertEqual((0, 0, 0),
                         (report["errors"], report["lost_bytes"], report["wrong_bytes"]))


class Load(LoadCase):
    def test_every_backend_on_both_sides(self):
        for backend in usable_backends():
            with self.subTest(backend=backend), EchoProcess("--backend", backend) as server:
                report = self.load(server.address, "--connections", "20", "--size", "100",
                                   "--pipeline", "3", "--duration", "300ms", "--backend", backend)
                self.check_clean(report)
                self.assertEqual((20, 100, 3, backend),
                                 tuple(report[k] for k in
                                       ("connections", "size_bytes", "pipeline", "backend")))
                self.assertGreaterEqual(report["duration_seconds"], 0.3)
                self.assertGreaterEqual(report["echoes_min_per_connection"], 3)
                self.assertGreaterEqual(report["requests"], 20)
                rate = report["requests"] / report["duration_seconds"]
                self.assertAlmostEqual(rate, report["requests_per_second"], delta=rate * 1e-6)
                latency = report["latency_ns"]
                steps = [latency[k] for k in ("p50", "p90", "p99", "p999", "max")]
                self.assertEqual(sorted(steps), steps)
                self.assertGreater(steps[0], 0)
                code, errors = server.end()
                self.assertEqual(0, code)
                self.assertIn("evix echo: 20 connections, ", errors)
                self.assertIn(" 0 errors", errors)

    def test_the_environment_chooses_the_backend(self):
        with EchoProcess() as server:
            report = self.load(server.address, "--echoes", "10", backend="poll")
            self.assertEqual("poll", report["backend"])

    def test_sizes_and_pipelines(self):
        with EchoProcess() as server:
            for size, pipeline in (("1", 1), ("1", 1000), ("64k", 1), ("65537", 3), ("1m", 1),
                                   ("1m", 24), ("20m", 1)):
                with self.subTest(size=size, pipeline=pipeline):
                    echoes = 4 * pipeline
                    report = self.load(server.address, "--connections", "2", "--size", size,
                                       "--pipeline", str(pipeline), "--echoes", str(echoes),
                                       "--duration", "50s")
                    self.check_clean(report)
                    self.assertEqual(echoes, report["requests"])

    def test_echoes_are_exact_to_the_message_on_both_sides(self):
        with EchoProcess("--echoes", "1000") as server:
            report = self.load(server.address, "--connections", "1", "--echoes", "1000",
                               "--duration", "50s")
            self.check_clean(report)
            self.assertEqual(1000, report["requests"])
            self.assertEqual(1000, report["echoes_min_per_connection"])
            code, errors = server.wait()
            self.assertEqual(0, code)
            self.check_totals("evix echo: 1 connections, 1000 echoes, 64000 bytes, 0 errors", errors)

    def test_idle_sends_nothing(self):
        with EchoProcess() as server:
            report = self.load(server.address, "--connections", "300", "--idle", "--duration",
                               "50ms")
            self.check_clean(report)
            self.assertEqual(0, report["requests"])
            self.assertEqual(dict.fromkeys(("p50", "p90", "p99", "p999", "max"), 0),
                             report["latency_ns"])
            code, errors = server.end()
            self.assertEqual(0, code)
            self.check_totals("evix echo: 300 connections, 0 echoes, 0 bytes, 0 errors", errors)

    def test_hold_keeps_the_connections_until_a_signal(self):
        with EchoProcess() as server:
            load = start_load(server.address, "--connections", "7", "--echoes", "7", "--hold",
                              "--json")
            line = load.stderr.readline()
            self.assertEqual("evix: holding 7 connections until SIGINT or SIGTERM\n", line)
            load.send_signal(signal.SIGTERM)
            output, _ = load.communicate(timeout=LIMIT_S)
            self.assertEqual(0, load.returncode)
            self.assertEqual(7, json.loads(output)["requests"])

    def test_a_signal_ends_the_measured_time_with_a_report(self):
        begun = threading.Event()
        with servers.FaultyServer(servers.echoes_and_tells(begun)) as server, start_load(
                server.address, "--connections", "1", "--duration", "1h", "--json") as load:
            self.assertTrue(begun.wait(LIMIT_S))
            load.send_signal(signal.SIGINT)
            output, errors = load.communicate(timeout=LIMIT_S)
            self.assertEqual((0, ""), (load.returncode, errors))
            self.check_clean(json.loads(output))

    def test_the_table(self):
        with EchoProcess() as server:
            result = evix("load", server.address, "--connections", "2", "--echoes", "2000")
            self.check_exit(0, result)
            self.assertEqual("", result.stderr)
            self.assertIn("2 connections, 64 bytes, 1 in flight on each", result.stdout)
            rows = dict(re.findall(r"^(\S.*?) {2,}(\S.*)$", result.stdout, re.M))
            self.assertEqual(("2,000", "0", "0", "0"),
                             tuple(rows[k] for k in
                                   ("requests", "errors", "lost bytes", "wrong bytes")))
            for name in ("requests/s", "latency p50", "latency p90", "latency p99",
                         "latency p99.9", "latency max"):
                self.assertIn(name, rows)

    def test_a_progress_line_on_a_terminal(self):
        terminal, program_side = pty.openpty()
        with EchoProcess() as server, start_load(server.address, "--duration", "1h",
                                                 stderr=program_side) as load:
            os.close(program_side)
            seen = b""
            while not re.search(rb"1 s  [0-9,]+ requests/s  p50 .* errors 0  wrong bytes 0", seen):
                seen += os.read(terminal, 4096)
            load.send_signal(signal.SIGINT)
            load.communicate(timeout=LIMIT_S)
            self.assertEqual(0, load.returncode)
            os.close(terminal)


class Faults(LoadCase):
    def test_every_wrong_byte_is_counted(self):
        with servers.FaultyServer(servers.flips_bytes([0, 10, 4095, 16383])) as server:
            report = self.load(server.address, "--connections", "3", "--size", "4k", "--pipeline",
                               "4", "--echoes", "12", code=1)
            self.assertEqual(12, report["wrong_bytes"])
            self.assertEqual((0, 0, 12),
                             (report["errors"], report["lost_bytes"], report["requests"]))

    def test_bytes_that_nobody_sent_are_wrong(self):
        with servers.FaultyServer(servers.adds_bytes(256, b"extra")) as server:
            report = self.load(server.address, "--connections", "1", "--size", "256", "--echoes",
                               "1", code=1)
            self.assertEqual(5, report["wrong_bytes"])

    def test_an_early_end_loses_exactly_what_did_not_come_back(self):
        with servers.FaultyServer(servers.ends_after(400, 250)) as server:
            result = evix("load", server.address, "--connections", "2", "--size", "100",
                          "--pipeline", "4", "--echoes", "8", "--json")
            self.check_exit(1, result)
            report = json.loads(result.stdout)
            self.assertEqual(300, report["lost_bytes"])
            self.assertEqual((2, 0, 4, 2),
                             (report["errors"], report["wrong_bytes"], report["requests"],
                              report["echoes_min_per_connection"]))
            self.assertEqual("evix: 2 connections closed by the server before the end\n",
                             result.stderr)

    def test_a_reset_is_an_error_with_its_name(self):
        with servers.FaultyServer(servers.resets_after(64)) as server:
            result = evix("load", server.address, "--connections", "2", "--json")
            self.check_exit(1, result)
            report = json.loads(result.stdout)
            self.assertEqual((2, 128), (report["errors"], report["lost_bytes"]))
            self.assertIn("connection reset by peer", result.stderr)

    def test_a_silent_server_loses_everything_after_the_limit(self):
        with servers.FaultyServer(servers.read_to_end) as server:
            report = self.load(server.address, "--connections", "2", "--size", "1k", "--pipeline",
                               "2", "--duration", "10ms", code=1)
            self.assertEqual((0, 4096, 0),
                             (report["errors"], report["lost_bytes"], report["wrong_bytes"]))

    def test_refused_connections_are_counted_with_the_true_error(self):
        with socket.socket() as bound:  # not listening, so nobody can
            bound.bind(("127.0.0.1", 0))
            address = "127.0.0.1:%d" % bound.getsockname()[1]
            result = evix("load", address, "--connections", "1000", "--json")
        self.check_exit(1, result)
        report = json.loads(result.stdout)
        self.assertEqual((1000, 0), (report["errors"], report["requests"]))
        self.assertEqual(0, report["echoes_min_per_connection"])
        self.assertIn(f"connect {address}: connection refused (1,000 times)", result.stderr)
        self.assertIn(f"start 'evix echo --listen {address}'", result.stderr)

    def test_a_server_that_dies_in_the_middle(self):
        with EchoProcess("--echoes", "500") as server:
            report = self.load(server.address, "--connections", "5", "--duration", "1h", code=1)
            self.assertEqual(5, report["errors"])
            self.assertEqual(0, report["wrong_bytes"])

    def test_too_few_descriptors_are_refused_before_the_start(self):
        result = evix("load", "127.0.0.1:9", "--connections", "100",
                      preexec_fn=descriptor_limit(64))
        self.check_exit(1, result)
        self.assertIn("this process may have 64", result.stderr)
        self.assertIn("ulimit -n", result.stderr)


if __name__ == "__main__":
    unittest.main()
