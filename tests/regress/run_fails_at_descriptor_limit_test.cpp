#include <evix/evix.hpp>

#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>

#include "support/fault_calls.hpp"
#include "support/offered.hpp"

// The loop made its wake descriptor at the first wait that could sleep: a program that had used up
// its descriptors by then got EMFILE from run(), at each call again.
namespace evix::test {
namespace {

using namespace std::chrono_literals;
using detail::CallId;

class RunFailsAtDescriptorLimit : public testing::TestWithParam<BackendKind> {
 protected:
  detail::FaultCalls faults;
  LoopOptions options{.backend = GetParam(), .system_calls = &faults};
};
INSTANTIATE_TEST_SUITE_P(Backends, RunFailsAtDescriptorLimit,
                         testing::ValuesIn(offered({BackendKind::epoll, BackendKind::poll,
                                                    BackendKind::io_uring})));

TEST_P(RunFailsAtDescriptorLimit, FirstSleep) {
  Loop loop(options);
  for (const CallId id : {CallId::event_create, CallId::epoll_create, CallId::socket}) {
    faults.refuse(id, EMFILE);
  }
  Timer timer(loop);
  int calls = 0;
  timer.after(1ms, [&] { ++calls; });
  EXPECT_EQ(loop.run(), 0);
  EXPECT_EQ(calls, 1);
  // And what needs the descriptor can do with it.
  loop.wake();
  EXPECT_EQ(loop.run_once(1h), 0);
}

// Then it is making the loop that fails.
TEST_P(RunFailsAtDescriptorLimit, OrMakingTheLoop) {
  faults.refuse(CallId::event_create, EMFILE);
  const auto made = Loop::create(options);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code().value(), EMFILE);
}

}  // namespace
}  // namespace evix::test
