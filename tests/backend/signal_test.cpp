#include <pthread.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "backend/conformance.hpp"
#include "sys/calls.hpp"

/** @file
 * Signals as events of loops, and what is left of them afterwards.
 */
namespace evix::test {
namespace {

class Signal : public Conformance {};
EVIX_OVER_BACKENDS(Signal);

constexpr int signal_max = 64;
// The kernel's two that nobody catches, and the two that the C library keeps for itself.
const std::set<int> uncatchable{SIGKILL, SIGSTOP, 32, 33};

struct sigaction disposition(int signal) {
  struct sigaction now{};
  EXPECT_EQ(::sigaction(signal, nullptr, &now), 0);
  return now;
}

bool same(const struct sigaction& a, const struct sigaction& b) {
  bool same_mask = true;
  for (int signal = 1; signal <= signal_max; ++signal) {
    same_mask = same_mask && ::sigismember(&a.sa_mask, signal) == ::sigismember(&b.sa_mask, signal);
  }
  return same_mask && a.sa_flags == b.sa_flags && a.sa_sigaction == b.sa_sigaction;
}

/** Puts the disposition of a signal back at the end of a test. */
class Restore {
 public:
  explicit Restore(int signal) : signal_(signal), before_(disposition(signal)) {}
  Restore(const Restore&) = delete;
  Restore& operator=(const Restore&) = delete;
  ~Restore() { ::sigaction(signal_, &before_, nullptr); }

 private:
  int signal_;
  struct sigaction before_;
};

// ---- T104 ------------------------------------------------------------------------------------

volatile std::sig_atomic_t old_handler_calls = 0;

void old_handler(int, siginfo_t*, void*) { old_handler_calls = old_handler_calls + 1; }

struct sigaction unusual_action() {
  struct sigaction action{};
  action.sa_sigaction = old_handler;
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaddset(&action.sa_mask, SIGUSR1);
  sigaddset(&action.sa_mask, SIGTERM);
  return action;
}

// Watchers of two loops are started in one order and stopped in each other one; some are stopped
// by the end of their loop.
void start_and_stop(const LoopOptions& options, const std::array<int, 4>& stops, bool by_loop) {
  std::optional<Loop> first(std::in_place, options);
  std::optional<Loop> second(std::in_place, options);
  std::array<SignalWatcher, 4> watchers{SignalWatcher(*first), SignalWatcher(*second),
                                        SignalWatcher(*first), SignalWatcher(*second)};
  std::array<int, 4> calls{};
  for (std::size_t i = 0; i < watchers.size(); ++i) {
    ASSERT_TRUE(watchers[i].start(SIGUSR2, [&calls, i](int) { ++calls[i]; }));
  }
  ASSERT_EQ(std::raise(SIGUSR2), 0);
  first->run_ready();
  second->run_ready();
  EXPECT_EQ(calls, (std::array{1, 1, 1, 1}));
  for (const int which : stops) {
    if (by_loop) {
      (which % 2 == 0 ? first : second).reset();
    } else {
      watchers[static_cast<std::size_t>(which)].stop();
    }
  }
}

void expect_restored(const LoopOptions& options, const struct sigaction& action) {
  const Restore restore(SIGUSR2);
  ASSERT_EQ(::sigaction(SIGUSR2, &action, nullptr), 0);
  const struct sigaction before = disposition(SIGUSR2);
  std::array<int, 4> stops{0, 1, 2, 3};
  do {
    for (const bool by_loop : {false, true}) {
      start_and_stop(options, stops, by_loop);
      ASSERT_TRUE(same(disposition(SIGUSR2), before));
    }
  } while (std::next_permutation(stops.begin(), stops.end()));
}

TEST_P(Signal, TrapT104HandlerComesBackWithFlagsAndMask) {
  expect_restored(options(), unusual_action());
  const Restore restore(SIGUSR2);
  const struct sigaction action = unusual_action();
  ASSERT_EQ(::sigaction(SIGUSR2, &action, nullptr), 0);
  start_and_stop(options(), {3, 1, 2, 0}, false);
  old_handler_calls = 0;
  ASSERT_EQ(std::raise(SIGUSR2), 0);
  EXPECT_EQ(old_handler_calls, 1);
}

TEST_P(Signal, TrapT104IgnoredAndDefaultComeBack) {
  struct sigaction action{};
  action.sa_handler = SIG_IGN;
  expect_restored(options(), action);
  action.sa_handler = SIG_DFL;
  expect_restored(options(), action);
}

// ---- T108 ------------------------------------------------------------------------------------

/** Each write of a wake object ends in another way, and none of them is heard. */
class DeafCalls : public detail::Calls {
 public:
  int event_write(int) noexcept override {
    static constexpr std::array results{-EAGAIN, 0, -EINTR};
    return results[writes_++ % results.size()];
  }

 private:
  std::atomic<unsigned> writes_ = 0;
};

// 10^5 signals with EVIX_TEST_FULL=1, 2000 by default. The simulator keeps its own calls.
TEST_P(Signal, TrapT108PendingBitsAreTheTruthForAllKinds) {
  DeafCalls deaf;
  LoopOptions with = options();
  if (!is_sim()) with.system_calls = &deaf;
  Loop deaf_loop(with);
  std::vector<SignalWatcher> watchers;
  std::vector<int> kinds;
  std::array<std::uint64_t, signal_max + 1> raised{};
  std::array<std::uint64_t, signal_max + 1> seen{};
  std::uint64_t now = 0;
  for (int signal = 1; signal <= signal_max; ++signal) {
    if (uncatchable.contains(signal)) continue;
    kinds.push_back(signal);
    watchers.emplace_back(deaf_loop);
    ASSERT_TRUE(watchers.back().start(signal, [&seen, &now](int caught) {
      seen[static_cast<std::size_t>(caught)] = now;
    })) << signal;
  }
  EXPECT_EQ(kinds.size(), 60U);
  std::minstd_rand random(1);
  const std::uint64_t signals = scaled(100'000, 2000);
  for (now = 1; now <= signals; ++now) {
    const int signal = kinds[random() % kinds.size()];
    ASSERT_EQ(::pthread_kill(::pthread_self(), signal), 0);
    raised[static_cast<std::size_t>(signal)] = now;
    if (random() % 8 != 0) continue;
    ASSERT_EQ(deaf_loop.run_ready(), 0);
  }
  ASSERT_EQ(deaf_loop.run_ready(), 0);
  for (const int signal : kinds) {
    const auto index = static_cast<std::size_t>(signal);
    EXPECT_GT(raised[index], 0U) << signal;
    EXPECT_GE(seen[index], raised[index]) << signal;
  }
}

// ---- Plain behaviour -------------------------------------------------------------------------

TEST_P(Signal, EveryKindReachesALoopThatSleeps) {
  for (int signal = 1; signal <= signal_max; ++signal) {
    if (uncatchable.contains(signal)) continue;
    const Restore restore(signal);
    int got = 0;
    SignalWatcher watcher(loop);
    ASSERT_TRUE(watcher.once(signal, [&](int caught) { got = caught; }));
    EXPECT_EQ(watcher.signal(), signal);
    std::thread killer([&] { ::pthread_kill(::pthread_self(), signal); });
    EXPECT_EQ(loop.run(), 0);  // a stopped watcher keeps nothing alive
    killer.join();
    EXPECT_EQ(got, signal);
    EXPECT_EQ(watcher.signal(), 0);
    EXPECT_FALSE(watcher.active());
  }
}

TEST_P(Signal, InvalidNumbersAreRefused) {
  SignalWatcher watcher(loop);
  for (const int signal : {0, -1, -64, 65, 1000, SIGKILL, SIGSTOP, 32, 33}) {
    const auto started = watcher.start(signal, [](int) { FAIL(); });
    ASSERT_FALSE(started) << signal;
    EXPECT_EQ(started.error(), std::errc::invalid_argument) << signal;
    EXPECT_FALSE(watcher.active());
    EXPECT_EQ(watcher.signal(), 0);
  }
  EXPECT_EQ(loop.run(), 0);
}

TEST_P(Signal, SeveralWatchersAndLoopsGetOneSignal) {
  std::array<Loop, 3> loops{Loop(options()), Loop(options()), Loop(options())};
  std::vector<SignalWatcher> watchers;
  std::array<int, 6> calls{};
  for (std::size_t i = 0; i < calls.size(); ++i) {
    watchers.emplace_back(loops[i / 2]);
    ASSERT_TRUE(watchers.back().start(SIGUSR1, [&calls, i](int signal) {
      EXPECT_EQ(signal, SIGUSR1);
      ++calls[i];
    }));
  }
  ASSERT_EQ(std::raise(SIGUSR1), 0);
  for (Loop& each : loops) {
    EXPECT_EQ(each.run_ready(), 0);
    EXPECT_EQ(each.run_ready(), 0);
  }
  EXPECT_EQ(calls, (std::array{1, 1, 1, 1, 1, 1}));
}

TEST_P(Signal, PendingOnesMerge) {
  int calls = 0;
  SignalWatcher watcher(loop);
  ASSERT_TRUE(watcher.start(SIGRTMIN + 1, [&](int) { ++calls; }));
  for (int i = 0; i < 20; ++i) ASSERT_EQ(std::raise(SIGRTMIN + 1), 0);
  EXPECT_EQ(loop.run_ready(), 0);
  EXPECT_EQ(loop.run_ready(), 0);
  EXPECT_EQ(calls, 1);
}

TEST_P(Signal, UnreferencedWatcherDoesNotKeepTheLoopRunning) {
  int calls = 0;
  SignalWatcher watcher(loop);
  watcher.unreference();
  ASSERT_TRUE(watcher.start(SIGUSR1, [&](int) { ++calls; }));
  EXPECT_EQ(loop.run(), 0);
  ASSERT_EQ(std::raise(SIGUSR1), 0);
  EXPECT_EQ(loop.run_ready(), 0);
  EXPECT_EQ(calls, 1);
}

TEST_P(Signal, StoppedBeforeTheTurnSeesNothing) {
  SignalWatcher watcher(loop);
  ASSERT_TRUE(watcher.start(SIGUSR1, [](int) { FAIL(); }));
  ASSERT_EQ(std::raise(SIGUSR1), 0);
  watcher.stop();
  watcher.stop();
  EXPECT_EQ(loop.run_ready(), 0);
  EXPECT_EQ(loop.run(), 0);
}

TEST_P(Signal, OneStopsTheOtherInTheSameTurn) {
  int calls = 0;
  std::optional<SignalWatcher> first(std::in_place, loop);
  std::optional<SignalWatcher> second(std::in_place, loop);
  const auto count_and_end_both = [&](int) {
    ++calls;
    first.reset();
    second.reset();
  };
  ASSERT_TRUE(first->start(SIGUSR1, count_and_end_both));
  ASSERT_TRUE(second->start(SIGUSR1, count_and_end_both));
  ASSERT_EQ(std::raise(SIGUSR1), 0);
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(calls, 1);
}

TEST_P(Signal, RestartInsideTheCallbackChangesTheSignal) {
  std::vector<int> caught;
  SignalWatcher watcher(loop);
  ASSERT_TRUE(watcher.start(SIGUSR1, [&](int first) {
    caught.push_back(first);
    ASSERT_TRUE(watcher.once(SIGUSR2, [&](int second) { caught.push_back(second); }));
    ASSERT_EQ(std::raise(SIGUSR2), 0);
  }));
  ASSERT_EQ(std::raise(SIGUSR1), 0);
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(caught, (std::vector{SIGUSR1, SIGUSR2}));
}

TEST_P(Signal, WatcherOfADeadLoopIsClosed) {
  std::optional<Loop> dying(std::in_place, options());
  SignalWatcher watcher(*dying);
  ASSERT_TRUE(watcher.start(SIGUSR1, [](int) { FAIL(); }));
  dying.reset();
  EXPECT_EQ(watcher.start(SIGUSR1, [](int) {}).error(), Errc::closed);
  watcher.stop();
  EXPECT_FALSE(watcher.active());
}

TEST_P(Signal, IdleWatcherDoesNotSpin) {
  SignalWatcher watcher(loop);
  ASSERT_TRUE(watcher.start(SIGUSR1, [](int) {}));
  EXPECT_TRUE(rests());
}

}  // namespace
}  // namespace evix::test
