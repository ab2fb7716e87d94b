#include <csignal>

#include "backend/conformance.hpp"

// A signal that was caught for a watcher that has stopped was given to one that started after it.
namespace evix::test {
namespace {

class SignalBeforeStart : public Conformance {
 protected:
  /** Caught while `earlier` watches. */
  void raise_for_the_earlier() {
    ASSERT_TRUE(earlier.start(SIGUSR1, [this](int) { ++earlier_calls; }));
    std::raise(SIGUSR1);
  }
  void run_the_later() {
    ASSERT_TRUE(later.start(SIGUSR1, [this](int) { ++later_calls; }));
    EXPECT_EQ(loop.run_ready(), 0);
    EXPECT_EQ(loop.run_ready(), 0);
  }
  SignalWatcher earlier{loop};
  SignalWatcher later{loop};
  int earlier_calls = 0;
  int later_calls = 0;
};
EVIX_OVER_BACKENDS(SignalBeforeStart);

TEST_P(SignalBeforeStart, IsNotTold) {
  raise_for_the_earlier();
  earlier.stop();
  run_the_later();
  EXPECT_EQ(earlier_calls, 0);
  EXPECT_EQ(later_calls, 0);
  std::raise(SIGUSR1);
  EXPECT_EQ(loop.run_ready(), 0);
  EXPECT_EQ(later_calls, 1);
}

// The one that was there before is told all the same.
TEST_P(SignalBeforeStart, IsToldToWhoWatched) {
  raise_for_the_earlier();
  run_the_later();
  EXPECT_EQ(earlier_calls, 1);
  EXPECT_EQ(later_calls, 0);
}

}  // namespace
}  // namespace evix::test
