#include <evix/evix.hpp>

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <vector>

// A program closed a descriptor that it still watched, and the loop's wake descriptor got the
// number: over poll(2), which cannot tell, it was refused as registered already, and run() failed
// for ever.
namespace evix::test {
namespace {

using namespace std::chrono_literals;

class ClosedWatchedNumberReused : public testing::TestWithParam<BackendKind> {
 protected:
  void SetUp() override {
    std::array<int, 2> ends{};
    ASSERT_EQ(pipe(ends.data()), 0);
    number = ends[0];
    writer = ends[1];
    ASSERT_TRUE(
        watcher.start(number, Ready::readable, [this](Ready ready) { calls.push_back(ready); }));
  }
  void TearDown() override { close(writer); }
  Loop loop{LoopOptions{.backend = GetParam()}};
  Watcher watcher{loop};
  std::vector<Ready> calls;
  int number = -1;
  int writer = -1;
};
INSTANTIATE_TEST_SUITE_P(Backends, ClosedWatchedNumberReused,
                         testing::Values(BackendKind::epoll, BackendKind::poll));

TEST_P(ClosedWatchedNumberReused, ByTheWakeDescriptor) {
  EXPECT_EQ(loop.run_ready(), 0);
  close(number);  // the first wait that may sleep makes the wake descriptor
  EXPECT_EQ(loop.run_once(10ms), 0);
  EXPECT_EQ(loop.run_once(10ms), 0);
  EXPECT_EQ(calls, std::vector<Ready>{Ready::invalid});
  EXPECT_FALSE(watcher.active());
}

}  // namespace
}  // namespace evix::test
