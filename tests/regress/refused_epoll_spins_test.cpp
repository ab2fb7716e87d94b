#include <evix/evix.hpp>
#include <evix/poller.hpp>

#include <gtest/gtest.h>

#include <cerrno>

#include "support/fault_calls.hpp"

// A sandbox refused epoll_ctl(2) with EPERM. That is also what the kernel says about a file, which
// is always ready: each descriptor was taken for one, so the loop never slept, and a connection
// never came to anything. Found by tests/degraded.
namespace evix::test {
namespace {

using detail::CallId;

TEST(RefusedEpollSpins, AutomaticChoiceGoesOnWithPoll) {
  for (const int error : {EPERM, ENOSYS, EACCES}) {
    detail::FaultCalls faults;
    faults.refuse(CallId::epoll_control, error);
    auto loop = Loop::create({.system_calls = &faults});
    ASSERT_TRUE(loop) << error;
    EXPECT_EQ(loop->backend(), BackendKind::poll);
    for (const BackendChoice& choice : loop->backend_report().choices) {
      if (choice.kind != BackendKind::epoll) continue;
      EXPECT_FALSE(choice.available);
      EXPECT_TRUE(choice.reason.starts_with("the kernel refuses it: ")) << choice.reason;
    }
    // Nothing is ready, so one that waits sleeps: each wait is one call.
    faults.reset_counts();
    EXPECT_EQ(loop->run_once(std::chrono::milliseconds(1)), 0);
    EXPECT_EQ(faults.count(CallId::poll), 1U);
  }
}

TEST(RefusedEpollSpins, ByNameIsAnErrorAndLeavesNothingOpen) {
  detail::FaultCalls faults;
  faults.refuse(CallId::epoll_control, EPERM);
  const auto loop = Loop::create({.backend = BackendKind::epoll, .system_calls = &faults});
  ASSERT_FALSE(loop);
  EXPECT_EQ(loop.error(), Errc::backend_unavailable);
  const auto poller = Poller::create({.kind = BackendKind::epoll, .system_calls = &faults});
  ASSERT_FALSE(poller);
  EXPECT_EQ(poller.error().code().value(), EPERM);
  EXPECT_EQ(faults.count(CallId::epoll_create), 2U);
  EXPECT_EQ(faults.count(CallId::close), 2U);
}

}  // namespace
}  // namespace evix::test
