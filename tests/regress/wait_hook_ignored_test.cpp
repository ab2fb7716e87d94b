#include <evix/evix.hpp>

#include <gtest/gtest.h>

#include <chrono>

// What the hook before the wait posted, started or stopped was not seen by that wait, which slept
// until something else happened.
namespace evix::test {
namespace {

using namespace std::chrono_literals;

TEST(WaitHookIgnored, PostStopAndTimer) {
  Loop loop{LoopOptions{.backend = BackendKind::sim}};
  Timer far{loop};
  Timer near{loop};
  int posted = 0;
  int fired = 0;
  int hooks = 0;
  far.after(1h, [] {});
  const TimePoint begin = loop.now();
  loop.set_wait_hooks(
      [&] {
        if (++hooks == 1) loop.post([&] { ++posted; });
        if (hooks == 2) near.after(5ms, [&] { ++fired; });
        if (hooks == 3) loop.stop();
      },
      {});
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(posted, 1);
  EXPECT_EQ(fired, 1);
  EXPECT_EQ(hooks, 3);
  EXPECT_EQ(loop.now() - begin, 5ms);
}

TEST(WaitHookIgnored, HookReplacesItself) {
  Loop loop;
  int first = 0;
  int second = 0;
  loop.set_wait_hooks(
      [&] {
        ++first;
        loop.set_wait_hooks([&] { ++second; }, {});
      },
      {});
  loop.run_ready();
  loop.run_ready();
  EXPECT_EQ(first, 1);
  EXPECT_EQ(second, 1);
}

}  // namespace
}  // namespace evix::test
