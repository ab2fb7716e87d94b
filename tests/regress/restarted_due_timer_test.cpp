#include <evix/evix.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <optional>

#include "support/offered.hpp"

// A timer that was due in a turn, and was restarted by a completion of that turn, ran at once with
// its new callback; when it was destroyed there, its place in the list of fresh timers dangled.
namespace evix::test {
namespace {

using namespace std::chrono_literals;

class RestartedDueTimer : public testing::TestWithParam<BackendKind> {
 protected:
  // In the completions of the next turn: a receive on a stream that is not connected.
  template <class Task>
  void in_next_completions(Task task) {
    unconnected.receive([task](const Result<Buffer>& refused) mutable {
      ASSERT_EQ(refused.error(), Errc::not_connected);
      task();
    });
  }
  Loop loop{LoopOptions{.backend = GetParam()}};
  TcpStream unconnected{loop};
};
INSTANTIATE_TEST_SUITE_P(Backends, RestartedDueTimer,
                         testing::ValuesIn(offered({BackendKind::epoll, BackendKind::poll,
                                                    BackendKind::sim, BackendKind::io_uring})));

TEST_P(RestartedDueTimer, WaitsForItsNewDelay) {
  Timer timer{loop};
  int early = 0;
  int late = 0;
  TimePoint restarted;
  timer.after(0ms, [&] { ++early; });
  in_next_completions([&] {
    restarted = loop.now();
    timer.after(20ms, [&] { ++late; });
  });
  EXPECT_EQ(loop.run_ready(), 0);
  EXPECT_EQ(early, 0);
  EXPECT_EQ(late, 0);
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(early, 0);
  EXPECT_EQ(late, 1);
  EXPECT_GE(loop.now() - restarted, 20ms);
}

TEST_P(RestartedDueTimer, MayBeDestroyedInItsCallback) {
  std::optional<Timer> timer{loop};
  int calls = 0;
  timer->after(0ms, [&] { ++calls; });
  in_next_completions([&] {
    timer->after(1ms, [&] {
      ++calls;
      timer.reset();
    });
  });
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(loop.counters().timers_armed, 0U);
  Timer another{loop};
  another.after(1ms, [&] { ++calls; });
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace evix::test
