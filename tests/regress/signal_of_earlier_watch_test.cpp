#include <evix/evix.hpp>

#include <gtest/gtest.h>

#include <csignal>
#include <vector>

// A watcher that was restarted for another signal, while an earlier one was queued for it, was
// told of the new signal, which had not come.
namespace evix::test {
namespace {

TEST(SignalOfEarlierWatch, IsNotTold) {
  Loop loop;
  SignalWatcher first{loop};
  SignalWatcher second{loop};
  std::vector<int> told;
  ASSERT_TRUE(first.start(SIGUSR1, [&](int) {
    ASSERT_TRUE(second.start(SIGUSR2, [&](int signal) { told.push_back(signal); }));
  }));
  ASSERT_TRUE(second.start(SIGUSR1, [&](int signal) { told.push_back(signal); }));
  std::raise(SIGUSR1);
  loop.run_ready();
  loop.run_ready();
  // Whichever of the two came first, SIGUSR2 never did.
  for (const int signal : told) EXPECT_EQ(signal, SIGUSR1);
  std::raise(SIGUSR2);
  loop.run_ready();
  ASSERT_FALSE(told.empty());
  EXPECT_EQ(told.back(), SIGUSR2);
}

}  // namespace
}  // namespace evix::test
