#include <evix/evix.hpp>

#include <gtest/gtest.h>

#include "backend/fork_support.hpp"
#include "support/fault_calls.hpp"

// A one-shot watcher that was started again in its callback took its descriptor out of the epoll
// set and put it back: two calls for each event.
namespace evix::test {
namespace {

using detail::CallId;

TEST(OnceAgainCostsTwoCalls, AtMostOneIsMade) {
  constexpr int events = 1000;
  detail::FaultCalls calls;
  Loop loop{LoopOptions{.backend = BackendKind::epoll, .system_calls = &calls}};
  const Pipe pipe;
  pipe.put();
  Watcher watcher(loop);
  int told = 0;
  struct Again {
    Watcher& watcher;
    const Pipe& pipe;
    int& told;
    void operator()(Ready) const {
      if (++told < events) {
        ASSERT_TRUE(watcher.once(pipe.read_end(), Ready::readable, *this));
      }
    }
  } const again{watcher, pipe, told};
  ASSERT_TRUE(watcher.once(pipe.read_end(), Ready::readable, again));
  calls.reset_counts();
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(told, events);
  EXPECT_LE(calls.count(CallId::epoll_control), events + 1U) << "the last one takes it out";
  EXPECT_FALSE(watcher.active());
}

}  // namespace
}  // namespace evix::test
