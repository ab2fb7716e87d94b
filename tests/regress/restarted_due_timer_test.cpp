#include <evix/evix.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <optional>

namespace evix::test {
namespace {

using namespace std::chrono_literals;

class RestartedDueTimer : public testing::TestWithParam<BackendKind> {
 protected:
  Loop loop{LoopOptions{.backend = GetParam()}};
};
INSTANTIATE_TEST_SUITE_P(Backends, RestartedDueTimer,
                         testing::Values(BackendKind::epoll, BackendKind::poll, BackendKind::sim));

// A timer that is due in this turn is restarted before the timers run: from an immediate of the
// next turn, after the wait had found it due. It ran at once, with its new callback.
TEST_P(RestartedDueTimer, WaitsForItsNewDelay) {
  Timer first{loop};
  Timer second{loop};
  int early = 0;
  int late = 0;
  first.after(1ms, [&] {
    loop.post([&] { second.after(20ms, [&] { ++late; }); });
    loop.stop();  // leaves `second`, which is due as well, for the next turn
  });
  second.after(1ms, [&] { ++early; });
  loop.run();
  const TimePoint restarted = loop.now();
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(early, 0);
  EXPECT_EQ(late, 1);
  EXPECT_GE(loop.now() - restarted, 20ms);
}

// The same from the completions of one turn, and destroyed there: its place in the list of fresh
// timers dangled.
TEST_P(RestartedDueTimer, MayBeDestroyedInItsCallback) {
  std::optional<Timer> timer{loop};
  int calls = 0;
  Timer blocker{loop};
  blocker.after(1ms, [&] {
    loop.post([&] {
      timer->after(1ms, [&] {
        ++calls;
        timer.reset();
      });
    });
    loop.stop();
  });
  timer->after(1ms, [&] { ++calls; });
  loop.run();
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(loop.counters().timers_armed, 0U);
}

}  // namespace
}  // namespace evix::test
