#include <algorithm>
#include <array>
#include <csignal>

#include "backend/conformance.hpp"
#include "support/fault_calls.hpp"
#include "support/offered.hpp"

// Any signal that the program handled by itself ended run_once(), long before its time was over and
// without a callback.
namespace evix::test {
namespace {

using detail::CallId;

class WaitCutShortBySignal : public testing::TestWithParam<BackendKind> {
 protected:
  static constexpr std::array waits{CallId::epoll_wait_ns, CallId::epoll_wait_ms, CallId::poll,
                                    CallId::ring_enter};
  static bool is_wait(CallId id) { return std::ranges::find(waits, id) != waits.end(); }

  void SetUp() override {
    faults.before = [this](CallId id) {
      if (is_wait(id) && interrupts_left > 0) --interrupts_left;
    };
  }
  /** The next `times` waits are interrupted, as by a signal; they take no time. */
  void interrupt(std::uint64_t times) {
    for (const CallId id : waits) faults.fail(id, 1, EINTR, times);
    interrupts_left = times;
  }
  detail::FaultCalls faults;
  std::uint64_t interrupts_left = 0;
  Loop loop{LoopOptions{.backend = GetParam(), .system_calls = &faults}};
};
INSTANTIATE_TEST_SUITE_P(Backends, WaitCutShortBySignal,
                         testing::ValuesIn(offered({BackendKind::epoll, BackendKind::poll,
                                                    BackendKind::io_uring})));

TEST_P(WaitCutShortBySignal, RunOnceGoesOn) {
  const KeepAlive waiting = loop.keep_alive();
  loop.update_now();
  const TimePoint begin = loop.now();
  interrupt(3);
  EXPECT_EQ(loop.run_once(30ms), 0);
  loop.update_now();
  EXPECT_EQ(interrupts_left, 0U);
  EXPECT_GE(loop.now() - begin, 30ms);
  EXPECT_EQ(loop.counters().turns, 1U);
}

TEST_P(WaitCutShortBySignal, RunForGoesOn) {
  const KeepAlive waiting = loop.keep_alive();
  loop.update_now();
  const TimePoint begin = loop.now();
  interrupt(3);
  EXPECT_EQ(loop.run_for(30ms), 0);
  loop.update_now();
  EXPECT_GE(loop.now() - begin, 30ms);
  EXPECT_EQ(interrupts_left, 0U);
}

// One that is watched ends it, with its callback.
TEST_P(WaitCutShortBySignal, ButAWatchedOneIsTold) {
  SignalWatcher watcher(loop);
  int signals = 0;
  ASSERT_TRUE(watcher.start(SIGUSR1, [&](int) { ++signals; }));
  bool armed = true;
  faults.before = [&](CallId id) {
    if (is_wait(id) && std::exchange(armed, false)) std::raise(SIGUSR1);
  };
  EXPECT_EQ(loop.run_once(), 0);
  EXPECT_EQ(signals, 1);
}

}  // namespace
}  // namespace evix::test
