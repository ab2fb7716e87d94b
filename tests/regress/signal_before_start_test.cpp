#include <csignal>

#include "backend/conformance.hpp"

// A signal that was caught for a watcher that has stopped was given to one that started after it.
namespace evix::test {
namespace {

class SignalBeforeStart : public Conformance {};
EVIX_OVER_BACKENDS(SignalBeforeStart);

TEST_P(SignalBeforeStart, IsNotTold) {
  SignalWatcher earlier(loop);
  SignalWatcher later(loop);
  int earlier_calls = 0;
  int later_calls = 0;
  ASSERT_TRUE(earlier.start(SIGUSR1, [&](int) { ++earlier_calls; }));
  std::raise(SIGUSR1);
  earlier.stop();
  ASSERT_TRUE(later.start(SIGUSR1, [&](int) { ++later_calls; }));
  EXPECT_EQ(loop.run_ready(), 0);
  EXPECT_EQ(loop.run_ready(), 0);
  EXPECT_EQ(earlier_calls, 0);
  EXPECT_EQ(later_calls, 0);
  std::raise(SIGUSR1);
  EXPECT_EQ(loop.run_ready(), 0);
  EXPECT_EQ(later_calls, 1);
}

// The one that was there before is told all the same.
TEST_P(SignalBeforeStart, IsToldToWhoWatched) {
  SignalWatcher earlier(loop);
  SignalWatcher later(loop);
  int earlier_calls = 0;
  int later_calls = 0;
  ASSERT_TRUE(earlier.start(SIGUSR1, [&](int) { ++earlier_calls; }));
  std::raise(SIGUSR1);
  ASSERT_TRUE(later.start(SIGUSR1, [&](int) { ++later_calls; }));
  EXPECT_EQ(loop.run_ready(), 0);
  EXPECT_EQ(loop.run_ready(), 0);
  EXPECT_EQ(earlier_calls, 1);
  EXPECT_EQ(later_calls, 0);
}

}  // namespace
}  // namespace evix::test
