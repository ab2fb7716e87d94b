// Runs the tests that are linked into this program again and again, each time with one system call
// or one allocation failing: tests/torture/run, docs/decisions/0009-call-torture.md.

#include <fnmatch.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <set>
#include <string>
#include <vector>

#include "torture/child.hpp"
#include "torture/fault.hpp"
#include "torture/symbols.hpp"

namespace evix::test {
namespace {

// Tests that take longer, also with their clock put forward, are left out, and said to be.
constexpr std::int64_t took_max_ns = 1'500'000'000;
constexpr int child_wait_max_ms = 30'000;

struct Options {
  std::string only = "Backends/*";
  std::string call;
  std::string error;
  std::uint64_t nth = 0;
  bool ring_operations = false;
  std::uint64_t depth = 2;
  std::uint64_t every = 1;       ///< of the pairs, one in so many
  std::uint64_t every_test = 1;  ///< of the tests
  unsigned jobs = 4;
  bool list = false;
  bool verbose = false;
  bool talks() const { return nth != 0; }
};

/** One test, and what it did without a fault. */
struct Subject {
  std::string name;
  Report plain;     ///< with the kernel's own operations
  Report by_calls;  ///< over io_uring: with its operations made by calls
  bool over_ring = false;
};

struct Pair {
  std::size_t subject;
  Fault fault;
};

struct Task {
  ChildOptions child;
  std::function<void(const Report&)> done;
};

/** Runs children, some at a time. */
class Workers {
 public:
  explicit Workers(unsigned count) : slots_(count) {
    void* const memory = mmap(nullptr, sizeof(Report) * count, PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    reports_ = static_cast<Report*>(memory);
  }

  void run(Task task) {
    Slot* slot = free_slot();
    while (slot == nullptr) {
      wait();
      slot = free_slot();
    }
    Report& report = reports_[slot - slots_.data()];
    new (&report) Report;
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) run_child(task.child, report);
    slot->child = child;
    slot->fd = static_cast<int>(syscall(SYS_pidfd_open, child, 0));
    slot->task = std::move(task);
    if (child < 0 || slot->fd < 0) {
      std::perror("fork");
      std::exit(2);
    }
  }
  void finish() {
    while (std::any_of(slots_.begin(), slots_.end(), [](const Slot& s) { return s.child != 0; })) {
      wait();
    }
  }

 private:
  struct Slot {
    pid_t child = 0;
    int fd = -1;
    Task task;
  };

  Slot* free_slot() {
    for (Slot& slot : slots_) {
      if (slot.child == 0) return &slot;
    }
    return nullptr;
  }

  void wait() {
    std::vector<pollfd> entries;
    for (const Slot& slot : slots_) entries.push_back({slot.fd, POLLIN, 0});
    const int ready = ::poll(entries.data(), entries.size(), child_wait_max_ms);
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      // Its own watchdog has not ended it: it is asleep for good in the kernel, or masks signals.
      if (ready == 0 && slots_[i].child != 0) kill(slots_[i].child, SIGKILL);
      if (ready == 0 || (entries[i].revents & POLLIN) != 0) collect(i);
    }
  }

  static bool is_for_programs(int signal) {
    return signal == SIGUSR1 || signal == SIGUSR2 || signal == SIGHUP || signal == SIGTERM ||
           signal == SIGINT || signal == SIGALRM || signal >= SIGRTMIN;
  }

  void collect(std::size_t place) {
    Slot& slot = slots_[place];
    if (slot.child == 0) return;
    int status = 0;
    waitpid(slot.child, &status, 0);
    kill(-slot.child, SIGKILL);  // what the test has left
    ::close(slot.fd);
    Report& report = reports_[place];
    if (report.verdict == Verdict::died) {
      // The test raises signals, and starting to watch them may have failed.
      const bool by_test = WIFSIGNALED(status) && is_for_programs(WTERMSIG(status));
      report.verdict = by_test ? Verdict::left_waiting : Verdict::violation;
      const std::string how =
          WIFSIGNALED(status)
              ? std::string("it was ended by ") + strsignal(WTERMSIG(status))
              : "the process ended in the test, status " + std::to_string(WEXITSTATUS(status));
      std::strcpy(report.what, how.c_str());
    }
    const Task task = std::move(slot.task);
    slot = Slot();
    task.done(report);
  }

  std::vector<Slot> slots_;
  Report* reports_ = nullptr;
};

std::vector<std::string> all_tests(const std::string& pattern) {
  std::vector<std::string> names;
  const testing::UnitTest& unit = *testing::UnitTest::GetInstance();
  for (int i = 0; i < unit.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *unit.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      std::string name = std::string(suite.name()) + "." + suite.GetTestInfo(j)->name();
      if (fnmatch(pattern.c_str(), name.c_str(), 0) == 0) names.push_back(std::move(name));
    }
  }
  return names;
}

/** "Suite/backend": loops of one suite are made in the same way. */
std::string family(const std::string& test) {
  const std::size_t point = test.find('.');
  const std::size_t slash = test.rfind('/');
  const bool over = slash != std::string::npos && slash > point;
  return test.substr(0, point) + (over ? test.substr(slash) : "");
}

class Torture {
 public:
  explicit Torture(const Options& options)
      : options_(options),
        errors_(read_errors(EVIX_SOURCE_DIR "/tests/torture/errnos.txt")),
        workers_(options.jobs) {}

  int run() {
    std::size_t number = 0;
    for (std::string& name : all_tests(options_.only)) {
      if (number++ % options_.every_test != 0) continue;
      const bool over_ring = name.ends_with("/io_uring");
      subjects_.push_back({std::move(name), {}, {}, over_ring});
    }
    if (subjects_.empty()) {
      std::fprintf(stderr, "no test is named %s\n", options_.only.c_str());
      return 2;
    }
    count();
    const std::vector<Pair> pairs = make_pairs();
    if (options_.list) {
      for (const Pair& pair : pairs) std::printf("%s\n", command(pair).c_str());
      return 0;
    }
    for (const Pair& pair : pairs) inject(pair);
    workers_.finish();
    return summary();
  }

 private:
  std::string command(const Pair& pair) const {
    return "tests/torture/run --only '" + subjects_[pair.subject].name + "'" +
           to_options(pair.fault);
  }

  // ---- What each test does when nothing fails ----

  void count() {
    for (Subject& subject : subjects_) count(subject, false);
    workers_.finish();
    // With threads several loops would share what makes the ring's operations.
    for (Subject& subject : subjects_) {
      if (subject.over_ring && !subject.plain.other_threads) count(subject, true);
    }
    workers_.finish();
  }

  void count(Subject& subject, bool ring_operations) {
    Fault none;
    none.ring_operations = ring_operations;
    workers_.run({{subject.name, none, {}, false}, [&subject, this, none](const Report& report) {
                    (none.ring_operations ? subject.by_calls : subject.plain) = report;
                    if (report.verdict == Verdict::violation) {
                      fail("without a fault: ", "tests/torture/run --only '" + subject.name + "'",
                           report);
                    }
                  }});
  }

  // ---- The pairs ----

  bool usable(const Report& report) const {
    const bool short_enough = report.took_ns < took_max_ns || options_.nth != 0;
    return report.verdict == Verdict::held && short_enough;
  }
  /**
   * The loops of its 57 or 200 threads are made and used without a look at what failed, and a
   * failed assertion cannot end what a thread does.
   */
  static bool has_loops_in_threads(const Subject& subject) {
    constexpr std::string_view known[] = {"Resting.EveryStateRests", "Resting.TwoHundredLoops"};
    const auto named = [&](std::string_view part) { return subject.name.contains(part); };
    return std::ranges::any_of(known, named);
  }
  /** Its own faults are lies, or its loop runs out of buffers and sleeps until it has some. */
  static bool sleeps(const Subject& subject) {
    constexpr std::string_view known[] = {"AlsoWithFaults", "InterruptedAndSpuriousCalls",
                                          "MoreSourcesThanBuffers"};
    const auto named = [&](std::string_view part) { return subject.name.contains(part); };
    return subject.plain.sleeps || subject.by_calls.sleeps || std::ranges::any_of(known, named);
  }

  /** The first `depth`, then every power of four; the one that is asked for in any case. */
  bool chosen(std::uint64_t number) const {
    const bool power_of_four = std::has_single_bit(number) && std::countr_zero(number) % 2 == 0;
    return number <= options_.depth || power_of_four || options_.nth != 0;
  }

  std::vector<Pair> make_pairs() {
    std::vector<Pair> pairs;
    std::set<std::string> known;
    for (std::size_t i = 0; i < subjects_.size(); ++i) {
      const bool with_set_up = known.insert(family(subjects_[i].name)).second;
      if (!usable(subjects_[i].plain) || has_loops_in_threads(subjects_[i])) {
        left_out_ += 1;
        continue;
      }
      add_calls(pairs, i, subjects_[i].plain, with_set_up, false);
      if (usable(subjects_[i].by_calls)) {
        add_calls(pairs, i, subjects_[i].by_calls, false, true);
      }
      add_allocations(pairs, i, with_set_up);
    }
    std::vector<Pair> some;
    for (std::size_t i = 0; i < pairs.size(); i += options_.every) some.push_back(pairs[i]);
    return some;
  }

  /** @param set_up the calls that make a loop: the same in each test of a family. */
  void add_calls(std::vector<Pair>& pairs, std::size_t subject, const Report& report, bool set_up,
                 bool ring_operations) {
    for (std::size_t call = 0; call < call_count; ++call) {
      if (ring_operations && !is_ring_operation(static_cast<detail::CallId>(call))) continue;
      const std::uint64_t before = set_up ? 0 : report.set_up_calls[call];
      for (std::uint64_t nth = before + 1; nth <= report.calls[call]; ++nth) {
        if (!chosen(nth - before)) continue;
        for (Fault fault : errors_[call]) {
          fault.nth = nth;
          fault.ring_operations = ring_operations;
          fault.lies = fault.lies || sleeps(subjects_[subject]);
          if (is_wanted(fault)) pairs.push_back({subject, fault});
        }
      }
    }
  }

  static bool is_ring_operation(detail::CallId call) {
    using enum detail::CallId;
    return call == accept || call == receive || call == send;
  }

  void add_allocations(std::vector<Pair>& pairs, std::size_t subject, bool set_up) {
    const Report& report = subjects_[subject].plain;
    const std::uint64_t before = set_up ? 0 : report.set_up_allocations;
    for (std::uint64_t nth = before + 1; nth <= report.allocations; ++nth) {
      if (!chosen(nth - before)) continue;
      Fault fault;
      fault.kind = FaultKind::allocation;
      fault.nth = nth;
      fault.lies = sleeps(subjects_[subject]);
      if (is_wanted(fault)) pairs.push_back({subject, fault});
    }
  }

  bool is_wanted(const Fault& fault) const {
    const bool allocation = fault.kind == FaultKind::allocation;
    const std::string_view call = allocation ? "allocation" : call_name(fault.call);
    if (!options_.call.empty() && options_.call != call) return false;
    if (options_.nth != 0 && options_.nth != fault.nth) return false;
    if (options_.nth != 0 && options_.ring_operations != fault.ring_operations) return false;
    return options_.error.empty() || allocation || options_.error == error_name(fault);
  }

  // ---- Running them ----

  void inject(const Pair& pair) {
    const Subject& subject = subjects_[pair.subject];
    const Report& plain = pair.fault.ring_operations ? subject.by_calls : subject.plain;
    const Allowance allowance{plain.blocks_left, plain.mappings_left};
    workers_.run({{subject.name, pair.fault, allowance, options_.talks()},
                  [this, pair](const Report& report) { note(pair, report); }});
  }

  void note(const Pair& pair, const Report& report) {
    const bool waits = report.verdict == Verdict::left_waiting;
    if (!report.injected) {
      ++not_reached_;
    } else {
      ++done_;
      allocations_ += pair.fault.kind == FaultKind::allocation ? 1 : 0;
      ended_early_ += report.ended_early ? 1 : 0;
      waiting_ += waits ? 1 : 0;
    }
    if (report.verdict == Verdict::violation) fail("", command(pair), report);
    if (waits && (options_.verbose || options_.talks())) {
      std::printf("WAITS %s\n  %s\n", command(pair).c_str(), report.what);
    }
    if ((done_ + not_reached_) % 5000 == 0) std::printf("%zu pairs\n", done_ + not_reached_);
  }

  void fail(const char* when, const std::string& how, const Report& report) {
    ++failures_;
    std::printf("FAILED %s%s\n  %s\n", when, how.c_str(), report.what);
    std::fflush(stdout);
  }

  int summary() const {
    std::printf(
        "%zu pairs done, %zu of them with an allocation that fails; %zu failures\n"
        "  %zu ended at a failed assertion of the test, %zu where the test waits for ever\n"
        "  %zu more did not come to the call; %zu of %zu tests left out: too long, not here, or\n"
        "  with threads that do not look at what failed\n",
        done_, allocations_, failures_, ended_early_, waiting_, not_reached_, left_out_,
        subjects_.size());
    return failures_ == 0 ? 0 : 1;
  }

  const Options options_;
  const Errors errors_;
  Workers workers_;
  std::vector<Subject> subjects_;
  std::size_t done_ = 0;
  std::size_t allocations_ = 0;
  std::size_t ended_early_ = 0;
  std::size_t waiting_ = 0;
  std::size_t not_reached_ = 0;
  std::size_t failures_ = 0;
  std::size_t left_out_ = 0;
};

[[noreturn]] void usage(int status) {
  std::fputs(
      "usage: tests/torture/run [--only TEST] [--call CALL] [--nth K] [--errno NAME]\n"
      "                         [--ring-operations] [--depth N] [--every-test N] [--every N]\n"
      "                         [--jobs N] [--list] [--verbose]\n"
      "TEST may have * in it; CALL is a name of errnos.txt, or allocation.\n"
      "--depth: the first N calls of each kind fail in turn, then those with a power of\n"
      "four (default 2).\n"
      "--every-test, --every: of the tests, of the pairs only one in N.  --nth: the one pair, and "
      "what the test prints.\n",
      status == 0 ? stdout : stderr);
  std::exit(status);
}

Options parse(int count, char** arguments) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string_view name = arguments[i];
    const auto text = [&]() -> std::string {
      if (++i == count) usage(2);
      return arguments[i];
    };
    const auto number = [&] {
      const unsigned long value = std::strtoul(text().c_str(), nullptr, 10);
      if (value == 0) usage(2);
      return value;
    };
    if (name == "--only") {
      options.only = text();
    } else if (name == "--call") {
      options.call = text();
    } else if (name == "--errno") {
      options.error = text();
    } else if (name == "--nth") {
      options.nth = number();
    } else if (name == "--depth") {
      options.depth = number();
    } else if (name == "--every") {
      options.every = number();
    } else if (name == "--every-test") {
      options.every_test = number();
    } else if (name == "--jobs") {
      options.jobs = static_cast<unsigned>(number());
    } else if (name == "--ring-operations") {
      options.ring_operations = true;
    } else if (name == "--list") {
      options.list = true;
    } else if (name == "--verbose") {
      options.verbose = true;
    } else {
      usage(name == "--help" ? 0 : 2);
    }
  }
  return options;
}

}  // namespace
}  // namespace evix::test

int main(int count, char** arguments) {
  testing::InitGoogleTest(&count, arguments);
  const evix::test::Options options = evix::test::parse(count, arguments);
  evix::test::load_symbols();
  return evix::test::Torture(options).run();
}
