#include "torture/child.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <exception>
#include <new>
#include <span>
#include <string>
#include <string_view>

#include "support/sanitizers.hpp"
#include "torture/symbols.hpp"

namespace evix::test {
namespace {

// Of a child; what runs this long hangs. The tests take milliseconds.
constexpr int seconds_max = 10;
constexpr int samples_max = 20;
constexpr long sample_ns = 100'000'000;
constexpr std::array crashes = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

int watchdog_signal() { return SIGRTMAX - 1; }

/** The message of a failed assertion that shows a mistake of the library whatever has failed. */
constexpr std::string_view ran_inside = "a callback ran inside the call that started it";

/**
 * Ends the body of the test at its first failed assertion, as nothing after it is meant to work:
 * by an exception, so that all that it has made is destroyed.
 */
class Listener final : public testing::EmptyTestEventListener {
 public:
  void OnTestStart(const testing::TestInfo&) override { Session::current()->begin(); }
  void OnTestEnd(const testing::TestInfo&) override { Session::current()->end(); }
  void OnTestPartResult(const testing::TestPartResult& result) override {
    Session* const session = Session::current();
    if (!result.failed() || !session->active()) return;
    const std::string_view message = result.message();
    if (message.find(ran_inside) != std::string_view::npos) {
      session->violation(std::string(ran_inside));
    }
    session->report().ended_early = true;
    const bool of_exception =
        message.starts_with("C++ exception") || message.starts_with("Unknown C++ exception");
    if (session->fault().kind == FaultKind::none || of_exception) return;
    if (!session->on_main_thread() || std::uncaught_exceptions() > 0) return;
    if (has_other_threads()) return;  // which only the rest of the test ends
    throw testing::AssertionException(result);
  }
};

std::string where() {
  void* room[40];
  return describe(frames_here(room).subspan(1));
}

void crashed(int signal) {
  for (const int each : crashes) ::signal(each, SIG_DFL);
  Session::current()->say(Verdict::violation, "it died of a signal");
  Session::current()->violation(std::string("it died of ") + strsignal(signal) + "\n" + where());
}

void terminated() {
  Session* const session = Session::current();
  void* room[80];
  const std::span<void* const> frames = frames_here(room).subspan(1);
  // Nobody catches what a callback or the constructor of a loop throws in a thread of the test's.
  if (!session->on_main_thread() && outermost_owner_of(frames) == Owner::test) {
    session->leave_waiting("an exception in a thread of the test");
  }
  try {
    if (const auto thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const testing::AssertionException&) {
    session->leave_waiting("an assertion failed where nothing may be thrown");
  } catch (const std::bad_alloc&) {
    session->violation("out of memory where nothing may be thrown\n" + where());
  } catch (const std::exception& error) {
    session->violation(std::string("uncaught exception: ") + error.what() + "\n" + where());
  } catch (...) {
  }
  // A joinable thread of a test whose body has ended early, say.
  if (owner_of(frames) == Owner::test) session->leave_waiting("the test cannot end here");
  session->violation("std::terminate was called\n" + describe(frames));
}

// The time is over. The library hangs when the thread is in it each time that one looks and never
// comes back to the backend's door; else it is slow, or the test itself waits for what the fault
// has made impossible.
void hung(int) {
  static int samples = 0;
  static bool always_library = true;
  static std::uint64_t steps = 0;
  void* room[40];
  const std::span<void* const> frames = frames_here(room);
  always_library = always_library && owner_of(frames.subspan(1)) == Owner::library;
  Session* const session = Session::current();
  if (samples++ == 0) steps = session->steps();
  if (samples < samples_max) return;
  const bool hangs = always_library && session->steps() == steps;
  // Without a fault it only takes long: it is left out.
  if (session->fault().kind == FaultKind::none) session->leave_waiting("too long");
  // It may have been interrupted in malloc(), and the message needs that.
  const Verdict verdict = hangs ? Verdict::violation : Verdict::left_waiting;
  const std::string_view what = hangs ? "it hangs" : "the test waits";
  session->say(verdict, what);
  const std::string text = std::string(what) + "\n" + describe(frames);
  session->say(verdict, text);
  _exit(hangs ? 3 : 4);
}

void watch_time() {
  struct sigaction action{};
  action.sa_handler = hung;
  sigaction(watchdog_signal(), &action, nullptr);
  sigevent event{};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = watchdog_signal();
  event._sigev_un._tid = gettid();
  timer_t timer{};
  timer_create(CLOCK_MONOTONIC, &event, &timer);
  itimerspec time{};
  time.it_value.tv_sec = seconds_max;
  time.it_interval.tv_nsec = sample_ns;
  timer_settime(timer, 0, &time, nullptr);
}

void watch_crashes() {
#ifndef EVIX_TEST_ADDRESS_SANITIZED
  static std::array<std::byte, 256 * 1024> stack;
  const stack_t alternative{stack.data(), 0, stack.size()};
  sigaltstack(&alternative, nullptr);
  struct sigaction action{};
  action.sa_handler = crashed;
  action.sa_flags = SA_ONSTACK | SA_NODEFER;
  for (const int signal : crashes) sigaction(signal, &action, nullptr);
#endif
}

void be_silent() {
  const int nowhere = open("/dev/null", O_RDWR);
  for (const int fd : {0, 1, 2}) dup2(nowhere, fd);
  close(nowhere);
}

}  // namespace

void run_child(const ChildOptions& options, Report& report) {
  setpgid(0, 0);
  Session::open(report, options.fault, options.allowance);
  if (!options.talks) be_silent();
  watch_crashes();
  watch_time();
  std::set_terminate(terminated);
  testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
  if (!options.talks) delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new Listener);
  GTEST_FLAG_SET(filter, options.test);
  watch_resources();
  [[maybe_unused]] const int status = RUN_ALL_TESTS();
  Session::current()->leave_waiting("no such test");
}

}  // namespace evix::test
